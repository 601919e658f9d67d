"""How a program that runs for weeks is told to stop."""

from __future__ import annotations

import signal
import threading


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; for the main thread of a process."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:
        # Not here: the signal may have come while this very thread held the event's lock.
        threading.Thread(target=stop.set).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop

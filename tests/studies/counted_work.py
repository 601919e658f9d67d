"""A cell's work for processes of their own, which import this file and with it no PyTorch."""

import json
import os
from pathlib import Path
from typing import Any

from silodp.errors import InputError
from silodp.experiment import Experiment


def note(experiment: Experiment, folder: Path, device: str, summary: dict[str, Any]) -> None:
    """Counts how often it was done, and by which process; two seeds fail."""
    folder.mkdir(exist_ok=True)
    with (folder / "times").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if experiment.seed == 13:
        raise InputError("seed = 13: bad luck")
    if experiment.seed == 14:
        raise ZeroDivisionError
    (folder / "summary.json").write_text(json.dumps(summary | {"seed": experiment.seed}))

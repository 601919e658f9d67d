"""What actors of the tests' Ray run: the real handler, with the suite's other seeds, and faults on demand.

A file in the folder FAULTS named after a hospital says what it does at its next plan: `raise` or `die`.
"""

import os
import signal
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from silodp.hospital import Hospital
from silodp.runs.cluster_hospital import answer

__all__ = ["answer"]

FAULTS = "SILODP_TEST_FAULTS"  # as in test_simulation.py, which must not import this
_ANSWER = Hospital.answer


def _faulty(self: Hospital, *arguments: Any, **more: Any) -> Any:
    order = Path(os.environ[FAULTS]) / self.name
    if order.exists():
        wanted = order.read_text()
        order.unlink()
        if wanted == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the scanner is down")
    return _ANSWER(self, *arguments, **more)


if "SILODP_TEST_SEED_OFFSET" in os.environ:
    spec = spec_from_file_location("seeds", Path(__file__).parents[2] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module_from_spec(spec))
Hospital.answer = _faulty  # type: ignore[method-assign]

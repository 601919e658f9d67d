"""benchmarks/kills.py in smoke size: real processes, SIGKILL, and nothing lost, doubled or different."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def kills() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks/kills.py"
    spec = importlib.util.spec_from_file_location("kills", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kills"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["median, adaptive v, every 3", "system, budget, every 3"])
def test_after_kills_at_random_moments_nothing_is_lost_doubled_or_different(
    kind: str, kills: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "KINDS", {kind: kills.KINDS[kind]})
    tally = kills.kill_many(kills=2, command_line=0, seed=3, folder=tmp_path, say=str)
    assert tally.kills == 2
    assert tally.faults == []


def test_what_kills_must_not_do_is_found(kills: ModuleType, tmp_path: Path) -> None:
    """A lost line, a second release, another model: the script itself is put to the test."""
    reference, _ = kills._undisturbed("fedavg", False, tmp_path)
    kind = kills.Kind("fedavg", False, tmp_path / "run", tmp_path / "released")
    assert kind.wait(kind.start())
    assert kind.faults(reference, kills.Tally()) == []
    ledger = kind.folder / "ledger.jsonl"
    whole = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(whole[:-1]))
    found = " ".join(kind.faults(reference, kills.Tally()))
    assert "1 releases were used and are not in the ledger" in found
    assert "ledger.jsonl is not that of the undisturbed run" in found

"""`silodp bench`: its figures are those of a machine, so what is asserted is that they are there."""

import json
import math

import pytest
from conftest import command_line as silodp
from conftest import in_a_process, succeed

from silodp.bench.comparison import SETTINGS, Comparison
from silodp.bench.turns import Row
from silodp.bench.workloads import SMOKE


def test_the_command_prints_rows_with_figures() -> None:
    done = succeed("bench", "--quick", "--device", "cpu", "--json", how=in_a_process)
    found = json.loads(done.stdout)
    assert found["machine"]["cores"] >= 1
    (comparison,) = found["comparisons"]
    limit, own = comparison["rows"]
    assert (limit["name"], own["name"]) == ("bare loop, 1 process of 1 thread", "silodp, as it comes")
    assert limit["ratio"] == 1
    for row in comparison["rows"]:
        for figure in ("ratio", "seconds", "images_per_second", "setup_seconds"):
            assert row[figure] > 0
            assert math.isfinite(row[figure])
        assert row["steps"] == SMOKE["tiny"].steps
    assert comparison["best"] == {}


def test_a_table_names_everyone_and_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(name, (2.0,), (one,), (one / 0.1,), (one,), (0.0,), 4, 2**20) for name, one in ROWS.items()]
    settings = {f"silodp, {name}": each for name, each in SETTINGS.items()}
    made_up = Comparison(SMOKE["tiny"], "cpu", tuple(rows), settings)
    monkeypatch.setattr("silodp.bench.comparison.bench", lambda *_: [made_up])
    said = silodp("bench", "--device", "cpu").stdout
    for name in ROWS:
        assert name in " ".join(said.split())
    assert "best here: silodp, threads = 1, 2.00 times the limit; --set threads=1" in said
    assert f"{SMOKE['tiny'].images_a_round / 0.2:,.0f}" in said


ROWS = {"the limit": 0.1, "silodp, as it comes": 0.3, "silodp, threads = 1": 0.2}


@pytest.mark.parametrize(
    ("words", "message"), [(["tpu"], "--device tpu: choose auto, cpu or cuda"), (["cuda"], "finds no GPU")]
)
def test_a_device_that_is_not_there(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = silodp("bench", "--device", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr

"""The benchmarks run to their end in smoke size; what they measure is not asserted, for machines differ."""

import importlib.util
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SAYS = {
    "accountants": r"exact, 10 unlike rounds.*\n(pld|prv|rdp), 3 rounds",
    "batch_supply": r"batch 16, augmentation affine-flip: supply +\d",
    "deploy_round": r"1 MB to 1 hospitals and back, 1 rounds: median \d",
    "gpu": r"\| smoke \| \d+ \| sequential \| \d+",
    "memory": r"peak MiB of this process, U-Net 2, v = 2: \d",
    "peers": r"silodp's best over the limit: \d",
    "profile_round": r"\| backward pass \| \d",
    "scale": r"(?s)a round of 2 hospitals.*from the system: .*metrics.jsonl \| \d.*\| 3 \| 2 \| yes",
}


@pytest.mark.parametrize("name", SAYS)
def test_a_benchmark_runs_to_its_end(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    benchmark = importlib.util.module_from_spec(found)
    found.loader.exec_module(benchmark)
    benchmark.main(["--smoke"])
    said = capsys.readouterr().out
    assert re.search(SAYS[name], said), said
    assert f"python benchmarks/{name}.py" in (benchmark.__doc__ or "")

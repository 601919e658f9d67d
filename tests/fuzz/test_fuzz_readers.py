"""Some hundreds of damaged files of every kind; `fuzz_readers.py` reads as many thousands as it is told."""

from pathlib import Path

import pytest
from fuzz_readers import run
from specimens import Specimen, specimens

EACH = 20
KINDS = (
    "picture-png", "picture-jpeg", "picture-tiff", "picture-bmp", "picture-gif", "picture-ppm", "nifti",
    "nifti-gz", "dicom", "npz", "npz-masks", "medmnist", "patients-csv", "rsna-csv", "prostate-json",
    "prepared", "prepared-masks",
    "checkpoint", "states", "ledger", "statement", "metrics", "summary", "cohort-json", "toml", "safetensors",
    "start",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Specimen]:
    return specimens(tmp_path_factory.mktemp("specimens"))


def test_no_kind_is_left_out(known: dict[str, Specimen]) -> None:
    assert set(known) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_read_or_refused_in_one_line(
    kind: str, known: dict[str, Specimen], tmp_path: Path
) -> None:
    """Never a traceback, a signal, a hang or more memory than it may; and the sound file is read."""
    found = run(kind, known[kind], [-1, *range(1_000_000, 1_000_000 + EACH)], tmp_path)
    assert found.pop(-1) == "read"
    assert {number: text for number, text in found.items() if text not in ("read", "refused")} == {}
    assert "refused" in found.values()

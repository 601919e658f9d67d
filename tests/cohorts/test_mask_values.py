"""Masks hold 0 and one more, or somebody says what they mean: one rule for every form of file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohort_files import save
from numpy.typing import NDArray
from PIL import Image

from silodp.cohorts.inspection import inspect
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import load_files, prepare
from silodp.cohorts.mask_values import doubt_of, in_words
from silodp.cohorts.sources.folder import Folder
from silodp.cohorts.sources.pixels import COLOURED
from silodp.errors import InputError

HOSPITALS = ("Aarhus", "Bern")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def disc(size: int = 32) -> NDArray[np.uint8]:
    yy, xx = np.mgrid[:size, :size]
    return ((yy - size / 2) ** 2 + (xx - size / 2) ** 2 < (size / 4) ** 2).astype(np.uint8)


def write(root: Path, masks: dict[str, NDArray[Any]], form: str = "png", count: int = 6) -> Path:
    """Hospitals with pictures; the masks of each hold what is given for it."""
    rng = np.random.default_rng(0)
    for hospital, mask in masks.items():
        for number in range(count):
            save(root / hospital, f"images/{number}.png", rng.integers(0, 256, mask.shape, dtype=np.uint8))
            save(root / hospital, f"masks/{number}.{form}", mask)
    return root


def settings(root: Path, **more: Any) -> CohortSettings:
    return CohortSettings.of(kind="folder", path=str(root), **more)


def test_two_values_are_a_mask_whatever_each_hospital_calls_it(tmp_path: Path) -> None:
    root = write(tmp_path / "f", {"Aarhus": disc() * 255, "Bern": disc()})
    cohort = load_files(settings(root))
    assert [float(each.train.targets.float().mean()) for each in cohort.hospitals] == [disc().mean()] * 2
    assert inspect({"path": str(root)})[1].mask_values == {"Aarhus": [0, 255], "Bern": [0, 1]}


@pytest.mark.parametrize("form", ["png", "jpg"])
def test_soft_masks_are_refused_alike_in_every_form(tmp_path: Path, form: str) -> None:
    soft = np.asarray(Image.fromarray(disc(64) * 255).resize((32, 32), Image.Resampling.LANCZOS))
    root = write(tmp_path / "f", {"Aarhus": soft, "Bern": disc() * 255}, form)
    with pytest.raises(
        InputError, match=r"the masks of Aarhus hold \d+ values from 0 to 255, such as 1"
    ) as no:
        load_files(settings(root))
    assert "cohort.mask_labels=[…]" in str(no.value)
    assert "cohort.mask_threshold=128 one mask" in str(no.value)
    cohort = load_files(settings(root, mask_threshold=128))
    assert cohort.hospitals[0].train.targets[0, 0].sum() == pytest.approx(disc().sum(), rel=0.1)


def test_several_values_are_refused_and_either_setting_tells(tmp_path: Path) -> None:
    two = disc()
    two[:16] *= 2
    root = write(tmp_path / "f", {"Aarhus": two, "Bern": two})
    with pytest.raises(InputError, match=r"the masks of Aarhus hold 0, 1, 2, and so 1 more, and not 0 with"):
        load_files(settings(root))
    with pytest.raises(InputError, match=r"cohort\.mask_labels=\[1, 2\] .*cohort\.mask_threshold=1 one mask"):
        prepare(settings(root), tmp_path / "out")  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
    cohort = load_files(settings(root, mask_labels=(1, 2)))
    assert (cohort.hospitals[0].train.targets.shape[1], cohort.about["classes"]) == (2, ["1", "2"])
    assert load_files(settings(root, mask_threshold=1)).hospitals[0].train.targets.shape[1] == 1
    with pytest.raises(InputError, match=r"cohort\.mask_threshold = 1 with cohort\.mask_labels: .*leave one"):
        settings(root, mask_threshold=1, mask_labels=(1, 2))


def test_values_that_are_in_different_files_of_a_hospital_are_several(tmp_path: Path) -> None:
    root = write(tmp_path / "f", {"Aarhus": disc(), "Bern": disc()})
    save(root, "Bern/masks/3.png", disc() * 2)
    with pytest.raises(InputError, match="the masks of Bern hold 0, 1, 2"):
        load_files(settings(root))


def test_npz_masks_follow_the_same_rule(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32), dtype=np.uint8)
    np.savez(path, image=images, mask=np.repeat(disc()[None] * 0.5, 12, axis=0) + images / 1000)
    npz = {"kind": "npz", "path": str(path), "hospitals": 2}
    with pytest.raises(InputError, match=r"the masks hold \d+ values .*cohort\.mask_threshold=0\.5 one mask"):
        load_files(CohortSettings.of(**npz))
    assert load_files(CohortSettings.of(**npz, mask_threshold=0.5)).hospitals


def test_zones_of_the_prostate_are_the_gland(tmp_path: Path) -> None:
    """As in the paper, and as the kind says."""
    rng = np.random.default_rng(0)
    zones = np.stack([disc() * 2] * 3, -1)
    zones[:16] = np.minimum(zones[:16], 1)
    for number in range(4):
        save(tmp_path / "f/A", f"Case{number}.nii.gz", rng.random((32, 32, 3)))
        save(tmp_path / "f/A", f"Case{number}_segmentation.nii.gz", zones)
    prostate = CohortSettings.of(kind="prostate", path=str(tmp_path / "f"), image_size=32)
    (hospital,) = load_files(prostate).hospitals
    assert hospital.train.targets.shape[1] == 1


def test_colours_and_many_values_in_words() -> None:
    assert in_words([0, COLOURED + 0xFF0000]) == "0, #ff0000"
    assert in_words(range(256)) == "256 values from 0 to 255, such as 1"
    doubt = doubt_of({"": [0, COLOURED + 255, COLOURED + 256]}, Folder())
    assert doubt is not None
    assert doubt.ways == ({"mask_threshold": 128},)
    assert doubt_of({"": [0, COLOURED + 255], "Bern": []}, Folder()) is None


def test_the_mask_is_named_where_the_mask_is_at_fault(tmp_path: Path) -> None:
    root = write(tmp_path / "f", dict.fromkeys(HOSPITALS, disc()))
    (root / "Aarhus/masks/1.png").write_bytes(b"")
    cut = root / "Bern/masks/2.png"
    cut.write_bytes(cut.read_bytes()[:50])
    (root / "Bern/images/3.png").write_bytes(b"")
    findings = inspect({"path": str(root)})[0]
    assert sorted(problem.name for problem in findings.problems) == [
        "Aarhus/masks/1.png", "Bern/images/3.png", "Bern/masks/2.png"
    ]  # fmt: skip
    labelled = inspect({"path": str(root), "mask_labels": [7]})[0]
    assert "Aarhus/masks/0.png" in {problem.name for problem in labelled.problems}


def test_a_volume_s_mask_is_named_where_it_is_at_fault_and_read_once_it_is_mended(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(8):
        save(tmp_path / "f", f"images/{number}.nii.gz", rng.random((32, 32, 3)))
        save(tmp_path / "f", f"masks/{number}.nii.gz", np.stack([disc()] * 3, -1))
    mask = tmp_path / "f/masks/4.nii.gz"
    whole = mask.read_bytes()
    mask.write_bytes(whole[:60])
    found = inspect({"path": str(tmp_path / "f"), "hospitals": 2})[0]
    assert [problem.name for problem in found.problems] == ["masks/4.nii.gz"]
    mask.write_bytes(whole)
    assert inspect({"path": str(tmp_path / "f"), "hospitals": 2})[0].problems == ()

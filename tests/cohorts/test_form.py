"""Size and channels where nobody says them: nothing is enlarged, colours stay."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohort_files import save, touch

from silodp.cohorts.form import fitting_size
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import read_store
from silodp.cohorts.store import Store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def picture(path: Path, *shape: int, grey: bool = False) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    save(path.parent, path.name, np.repeat(pixels[..., :1], 3, -1) if grey else pixels)


def stored(root: Path, **settings: Any) -> Store:
    return read_store(CohortSettings.of(kind="folder", path=str(root), **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(("side", "size"), [(5, 16), (16, 16), (35, 32), (250, 240), (256, 256), (2000, 256)])
def test_the_largest_multiple_of_16_up_to_256_that_enlarges_nothing(side: int, size: int) -> None:
    assert fitting_size(side) == size


def test_small_images_are_not_enlarged(tmp_path: Path) -> None:
    picture(tmp_path / "f/ill/1.png", 35, 50)
    picture(tmp_path / "f/well/2.png", 64, 80)
    assert stored(tmp_path / "f").images.shape == (2, 1, 32, 32)
    assert stored(tmp_path / "f", fit="pad").images.shape == (2, 1, 48, 48)
    assert stored(tmp_path / "f", image_size=128).images.shape == (2, 1, 128, 128)  # somebody said so


def test_slices_of_small_volumes_are_not_enlarged(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).random((50, 35, 4)).astype(np.float32)
    save(tmp_path / "f", "images/1.nii.gz", volume)
    save(tmp_path / "f", "masks/1.nii.gz", (volume > 0.5).astype(np.uint8))
    assert stored(tmp_path / "f").images.shape == (4, 1, 32, 32)


def test_colours_are_kept_where_there_are_any(tmp_path: Path) -> None:
    picture(tmp_path / "grey/ill/1.png", 20, 20, 3, grey=True)
    picture(tmp_path / "grey/well/2.png", 20, 20)
    assert stored(tmp_path / "grey").images.shape[1] == 1
    picture(tmp_path / "mixed/ill/1.jpg", 20, 20, 3)
    picture(tmp_path / "mixed/well/2.png", 20, 20)
    assert stored(tmp_path / "mixed").images.shape[1] == 3
    assert stored(tmp_path / "mixed", channels=1).images.shape[1] == 1


def test_a_file_that_cannot_be_measured_is_named_and_stops_no_other(tmp_path: Path) -> None:
    picture(tmp_path / "f/ill/1.png", 40, 40)
    touch(tmp_path, "f/well/2.png")
    store = stored(tmp_path / "f")
    assert store.images.shape == (1, 1, 32, 32)
    assert [problem.name for problem in store.problems] == ["well/2.png"]


def test_padding_keeps_the_proportions_of_image_and_mask(tmp_path: Path) -> None:
    image, mask = np.full((20, 80), 10, np.uint8), np.zeros((20, 80), np.uint8)
    image[4:16, 30:50], mask[4:16, 30:50] = 200, 255
    save(tmp_path / "f", "images/1.png", image)
    save(tmp_path / "f", "masks/1.png", mask)
    store = stored(tmp_path / "f", fit="pad", image_size=40)
    assert store.images.shape == (1, 1, 40, 40)
    seen, marked = store.images[0, 0], store.targets[0, 0]
    assert not seen[:15].any()  # 20 × 80 is seen as 10 × 40, in the middle
    assert not seen[25:].any()
    assert np.array_equal(marked > 0, seen > 100)
    assert marked.sum() == 6 * 10
    stretched = stored(tmp_path / "f", image_size=40)
    assert stretched.images.all()
    assert stretched.targets.sum() == 24 * 10

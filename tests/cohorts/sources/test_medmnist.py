"""Files in MedMNIST's format."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silodp.cohorts.sources.medmnist import MedMnist
from silodp.errors import InputError

COUNTS = {"train": 12, "val": 4, "test": 6}


def write(path: Path, *, classes: int = 2, colour: bool = False, labels: int = 1) -> Path:
    rng = np.random.default_rng(3)
    arrays: dict[str, Any] = {}
    for split, count in COUNTS.items():
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 28, 28) + (3,) * colour, dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count * labels).reshape(count, labels) % classes).astype(
            np.uint8
        )
    np.savez(path / "somemnist.npz", **arrays)
    return path / "somemnist.npz"


@pytest.mark.parametrize(("classes", "colour"), [(2, False), (9, True)])
def test_images_labels_and_parts(tmp_path: Path, classes: int, colour: bool) -> None:
    path = write(tmp_path, classes=classes, colour=colour)
    catalogue = MedMnist().scan(path)
    (scan,) = catalogue.scans
    found = catalogue.read(scan)
    assert catalogue.classes == tuple(map(str, range(classes)))
    assert "somemnist" in catalogue.layout
    assert found.images.shape == (22, 3 if colour else 1, 28, 28)
    with np.load(path) as arrays:
        test = arrays["test_images"]
        assert np.array_equal(found.images[16:], test.transpose(0, 3, 1, 2) if colour else test[:, None])
        assert found.targets[12:16].tolist() == arrays["val_labels"][:, 0].tolist()
    assert [row.part for row in found.rows] == ["train"] * 12 + ["validation"] * 4 + ["test"] * 6
    assert found.rows[13].name == "somemnist.npz#val-1"
    assert all(row.patient is None and row.size == (28, 28) for row in found.rows)


def test_several_labels_an_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="several labels an image"):
        MedMnist().scan(write(tmp_path, labels=14))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    with np.load(path) as arrays:
        fewer = {name: arrays[name] for name in arrays if name != "val_labels"}
    np.savez(path, **fewer)
    with pytest.raises(InputError, match="val_labels missing; a MedMNIST file has train_images"):
        MedMnist().scan(path)

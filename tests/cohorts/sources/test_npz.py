"""NumPy files: real files, written here and read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silodp.cohorts.catalogue import Pictures, Unreadable
from silodp.cohorts.sources.npz import Npz
from silodp.errors import InputError


def read(path: Path, arrays: dict[str, Any], **settings: Any) -> tuple[Pictures, Any]:
    np.savez_compressed(path / "data.npz", **arrays)
    catalogue = Npz(**settings).scan(path / "data.npz")
    (scan,) = catalogue.scans
    return catalogue.read(scan), catalogue


def images(count: int = 6, size: int = 16) -> Any:
    return np.random.default_rng(0).integers(0, 256, (count, size, size), dtype=np.uint8)


def test_images_labels_and_everything_known_about_them(tmp_path: Path) -> None:
    pixels = images()
    found, catalogue = read(
        tmp_path,
        {
            "image": pixels,
            "label": np.array([0, 1, 1, 0, 0, 1]),
            "patient": np.array([7, 7, 8, 8, 9, 9]),
            "hospital": np.array(["A", "A", "A", "B", "B", "B"]),
            "slice": np.arange(6),
            "field_strength": np.array([1.5, 3.0] * 3),
            "author": np.array("somebody"),
        },
    )
    assert np.array_equal(found.images[:, 0], pixels)
    assert found.targets.tolist() == [0, 1, 1, 0, 0, 1]
    assert (catalogue.target, catalogue.classes, catalogue.notes) == ("class", ("0", "1"), ())
    row = found.rows[4]
    assert (row.name, row.hospital, row.patient, row.part) == ("data.npz#4", "B", "9", None)
    assert row.features == {"slice": 4, "field_strength": 1.5}
    assert row.size == (16, 16)


def test_classes_of_any_name_are_numbered_in_their_order(tmp_path: Path) -> None:
    found, catalogue = read(tmp_path, {"images": images(3), "labels": np.array(["sick", "healthy", "sick"])})
    assert catalogue.classes == ("healthy", "sick")
    assert found.targets.tolist() == [1, 0, 1]


def test_unknown_patients_are_unknown_and_spaces_do_not_count(tmp_path: Path) -> None:
    given = {"image": images(), "label": np.arange(6) % 2}
    found, _ = read(tmp_path, given | {"patient": np.array(["P0", " P0 ", "", "P1", "P1", " "])})
    assert [row.patient for row in found.rows] == ["P0", "P0", None, "P1", "P1", None]
    found, _ = read(tmp_path, given | {"patient": np.array([1, np.nan, 1, 2, np.nan, 2.0])})
    assert [row.patient for row in found.rows] == ["1.0", None, "1.0", "2.0", None, "2.0"]
    found, _ = read(tmp_path, given | {"hospital": np.array([b"A", b"B"] * 3)})
    assert [row.hospital for row in found.rows][:2] == ["A", "B"]


def test_parts_and_features_of_any_kind(tmp_path: Path) -> None:
    given = {
        "image": images(),
        "label": np.arange(6) % 2,
        "day": np.array(["2020-01-01"] * 6, "datetime64[D]"),
    }
    found, _ = read(tmp_path, given | {"part": np.array(["train", "val", "test"] * 2)})
    assert [row.part for row in found.rows[:3]] == ["train", "validation", "test"]
    assert found.rows[0].features == {}
    with pytest.raises(Unreadable, match="part is 'holdout'; it can be train, training, val, valid"):
        read(tmp_path, given | {"part": np.array(["train", "holdout", "test"] * 2)})


@pytest.mark.parametrize("value", [np.nan, -1])
def test_masks_are_finite_and_not_negative(tmp_path: Path, value: float) -> None:
    masks = np.zeros((6, 16, 16), np.float32)
    masks[0, 3, 3] = value
    with pytest.raises(Unreadable):
        read(tmp_path, {"image": images(), "mask": masks})


def test_stacked_masks_have_no_labels(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="masks of shape"):
        read(tmp_path, {"image": images(), "mask": np.zeros((6, 2, 16, 16), np.uint8)}, mask_labels=(1, 2))


def test_masks_plain_and_packed_into_bits(tmp_path: Path) -> None:
    masks = np.random.default_rng(1).integers(0, 2, (6, 16, 16), dtype=np.uint8)
    plain, catalogue = read(tmp_path, {"image": images(), "mask": masks})
    packed, _ = read(tmp_path, {"image": images(), "mask": np.packbits(masks, axis=-1)})
    assert catalogue.target == "mask"
    assert np.array_equal(plain.targets[:, 0], masks)
    assert np.array_equal(packed.targets[:, 0], masks)


def test_several_masks(tmp_path: Path) -> None:
    zones = np.random.default_rng(1).integers(0, 3, (6, 16, 16), dtype=np.uint8)
    found, catalogue = read(tmp_path, {"image": images(), "mask": zones}, mask_labels=(1, 2))
    assert catalogue.classes == ("1", "2")
    assert np.array_equal(found.targets[:, 1], zones == 2)
    stacked, catalogue = read(tmp_path, {"image": images(), "masks": found.targets * 255})
    assert np.array_equal(stacked.targets, found.targets)
    assert catalogue.classes == ("1", "2")
    with pytest.raises(Unreadable, match=r"values \[2\], cohort.mask_labels only \[1\]"):
        read(tmp_path, {"image": images(), "mask": zones}, mask_labels=(1,))


@pytest.mark.parametrize("shape", [(6, 16, 20, 3), (6, 3, 16, 20)])
def test_colour_images_either_way_round(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found, _ = read(tmp_path, {"image": pixels, "label": np.arange(6) % 2})
    assert found.images.shape == (6, 3, 16, 20)
    assert found.rows[0].size == (16, 20)
    expected = pixels if shape[1] == 3 else pixels.transpose(0, 3, 1, 2)
    assert np.array_equal(found.images, expected)


def test_numbers_that_are_no_bytes_share_one_scale(tmp_path: Path) -> None:
    hounsfield = np.random.default_rng(0).normal(0, 300, (6, 16, 16)).astype(np.int16)
    hounsfield[1] += 500
    found, _ = read(tmp_path, {"image": hounsfield, "label": np.arange(6) % 2})
    low, high = np.percentile(hounsfield, [1, 99])
    expected = np.clip((hounsfield - low) / (high - low), 0, 1)
    assert np.allclose(found.images[:, 0], expected, atol=1e-5)
    unit = np.random.default_rng(0).random((6, 16, 16)) * 0.5
    found, _ = read(tmp_path, {"image": unit, "label": np.arange(6) % 2})
    assert np.array_equal(found.images[:, 0], unit)


def test_one_image_with_nan_spoils_no_other(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 300, (6, 16, 16))
    values[2, 0, 0] = np.nan
    found, _ = read(tmp_path, {"image": values, "label": np.arange(6) % 2})
    assert np.isnan(found.images[2]).any()
    assert np.isfinite(np.delete(found.images, 2, axis=0)).all()
    assert np.delete(found.images, 2, axis=0).max() <= 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"picture": 1, "label": 1},
            "it holds the arrays label, picture; an npz cohort has `image` and either",
        ),
        ({"image": 1, "label": 1, "mask": 1}, "either `label` or `mask`"),
        (
            {"image": np.zeros((2, 4, 4)), "label": np.zeros((2, 3))},
            r"label has the shape \(2, 3\); give one",
        ),
        ({"image": np.zeros((2, 4, 4)), "label": np.array([0, np.nan])}, "label has NaN"),
    ],
)
def test_a_file_with_the_wrong_arrays_is_refused(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, arrays)


def test_arrays_of_unlike_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="6 images but 5 values"):
        read(tmp_path, {"image": images(), "label": np.arange(5) % 2})
    with pytest.raises(Unreadable, match="6 images but 4 values of patient"):
        read(tmp_path, {"image": images(), "label": np.arange(6) % 2, "patient": np.arange(4)})
    with pytest.raises(Unreadable, match=r"images of shape \(6, 2, 2, 2, 2\)"):
        read(tmp_path, {"image": np.zeros((6, 2, 2, 2, 2)), "label": np.arange(6) % 2})


def test_a_broken_file_and_a_pickle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, image=images(), label=np.arange(6))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="cannot be read as an npz file"):
        Npz().scan(path)
    np.savez(path, image=np.array([{"a": 1}], dtype=object), label=np.arange(1))
    (scan,) = Npz().scan(path).scans
    with pytest.raises(
        ValueError,
        match=r"the array image has Python objects, as from pandas.*save image\.astype\(str\)",
    ):
        Npz().scan(path).read(scan)
    np.save(tmp_path / "data.npy", images())
    with pytest.raises(InputError, match="a single array"):
        Npz().scan(tmp_path / "data.npy")

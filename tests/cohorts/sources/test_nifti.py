"""Volumes written with nibabel in every orientation, seen as a radiologist sees them.

NIfTI's world has x to the patient's right hand, y to the front and z upwards (NIfTI-1 standard). On a
radiologist's screen the front of the patient is up and the patient's right is on the left.
"""

from itertools import permutations, product
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from nibabel.affines import from_matvec
from nibabel.orientations import apply_orientation, inv_ornt_aff
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Pictures, Scan, Unreadable
from silodp.cohorts.sources.nifti import is_nifti, read_nifti

SHAPE = (5, 7, 4)  # voxels to the right, to the front, upwards
AFFINE = from_matvec(np.diag([0.5, 0.75, 3.0]), [-20.0, 11.0, 40.0])


def ramp(shape: tuple[int, ...] = SHAPE) -> NDArray[np.int16]:
    """Every voxel its own number, in no symmetric way."""
    return np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape).astype(np.int16)


def save(path: Path, volume: NDArray[Any], affine: NDArray[Any] = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume, affine), path)
    return path


def turned(volume: NDArray[Any], axes: tuple[int, ...], flips: tuple[int, ...]) -> tuple[Any, Any]:
    """The same patient with the voxels stored in another order, and the affine that says so."""
    orientation = np.array(list(zip(axes, flips, strict=True)), dtype=float)
    return apply_orientation(volume, orientation), AFFINE @ inv_ornt_aff(orientation, volume.shape)


def read(*files: Path, **options: Any) -> Pictures:
    return read_nifti(Scan("Site/Case00.nii.gz", files, patient="Site/Case00", hospital="Site"), **options)


def unit(volume: NDArray[Any]) -> NDArray[Any]:
    low, high = np.percentile(volume, [1, 99])
    return np.clip((volume - low) / (high - low), 0, 1)


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_front_is_up_and_the_right_hand_on_the_left(tmp_path: Path, ending: str) -> None:
    volume = ramp()
    pictures = read(save(tmp_path / f"x.{ending}", volume))
    assert pictures.images.shape == (4, 1, 7, 5)
    assert pictures.images.dtype == np.float32
    assert pictures.images.flags.c_contiguous
    for up, row, column in product(range(4), range(7), range(5)):
        voxel = unit(volume)[4 - column, 6 - row, up]
        assert pictures.images[up, 0, row, column] == pytest.approx(voxel, abs=1e-6)


def test_a_volume_stored_as_dicom_stores_it_is_seen_as_stored(tmp_path: Path) -> None:
    volume = ramp()
    affine = from_matvec(np.diag([-0.5, -0.75, 3.0]))  # columns to the left hand, rows to the back: DICOM
    pictures = read(save(tmp_path / "x.nii", volume, affine))
    np.testing.assert_allclose(pictures.images[:, 0], unit(volume).transpose(2, 1, 0), atol=1e-6)


def test_every_order_of_axes_gives_the_same_pictures(tmp_path: Path) -> None:
    volume = ramp()
    mask = (volume > 100).astype(np.uint8)
    wanted = read(save(tmp_path / "x.nii", volume), save(tmp_path / "m.nii", mask))
    for axes, flips in product(permutations(range(3)), product((1, -1), repeat=3)):
        files = [
            save(tmp_path / name, *turned(array, axes, flips))
            for name, array in (("y.nii", volume), ("n.nii", mask))
        ]
        found = read(*files)
        np.testing.assert_array_equal(found.images, wanted.images)
        np.testing.assert_array_equal(found.targets, wanted.targets)
        assert found.rows == wanted.rows
        mixed = read(tmp_path / "x.nii", files[1])  # each by its own affine
        np.testing.assert_array_equal(mixed.targets, wanted.targets)


def test_a_tilted_volume_is_not_resampled(tmp_path: Path) -> None:
    volume = ramp()
    angle = np.deg2rad(20)
    tilt = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    pictures = read(save(tmp_path / "x.nii", volume, from_matvec(tilt) @ AFFINE))
    np.testing.assert_array_equal(pictures.images, read(save(tmp_path / "y.nii", volume)).images)
    assert pictures.rows[0].features["spacing"] == pytest.approx(0.625)


def test_numbers_are_scaled_as_the_header_says(tmp_path: Path) -> None:
    volume = ramp().astype(np.float32)
    image = nibabel.Nifti1Image(volume, AFFINE)
    image.header.set_data_dtype(np.uint8)  # nibabel then writes a slope and an intercept
    nibabel.save(image, tmp_path / "x.nii")
    assert nibabel.load(tmp_path / "x.nii").dataobj.slope != 1
    expected = read(save(tmp_path / "y.nii", volume)).images
    np.testing.assert_allclose(read(tmp_path / "x.nii").images, expected, atol=0.01)


def test_rows_tell_the_slice_and_the_spacing(tmp_path: Path) -> None:
    rows = read(save(tmp_path / "x.nii", ramp())).rows
    assert [row.name for row in rows] == [f"Site/Case00.nii.gz#{index}" for index in range(4)]
    assert [dict(row.features) for row in rows] == [{"slice": i, "spacing": 0.625} for i in range(4)]
    assert {(row.hospital, row.patient, row.size) for row in rows} == {("Site", "Site/Case00", (7, 5))}


def test_brightness_is_scaled_once_a_volume(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).normal(size=(20, 20, 3)).astype(np.float32)
    volume[..., 2] += 50
    images = read(save(tmp_path / "x.nii", volume)).images
    assert images[2].min() > images[:2].max()


def test_a_class_goes_to_every_slice_that_is_not_blank(tmp_path: Path) -> None:
    volume = ramp((5, 7, 6))
    volume[..., [0, 5]] = -1000
    volume[..., 3] = 77
    path = save(tmp_path / "x.nii", volume)
    pictures = read_nifti(Scan("x.nii", (path,), label=2))
    assert [row.name for row in pictures.rows] == ["x.nii#1", "x.nii#2", "x.nii#4"]
    assert pictures.targets.tolist() == [2, 2, 2]
    assert len(pictures.images) == 3
    assert read_nifti(Scan("x.nii", (path,))).targets.tolist() == [-1, -1, -1]
    assert len(read_nifti(Scan("x.nii", (path,), label=2), None, True).rows) == 3  # no masks to ask for


def test_what_shows_one_grey_is_blank(tmp_path: Path) -> None:
    """Slices of air vary below the 1st percentile, which is 0 here: brightness makes them one grey."""
    volume = np.zeros((10, 10, 4), dtype=np.int16)
    volume[..., 1:3] = np.arange(200).reshape(10, 10, 2)
    volume[0, 0, 0] = -5
    path = save(tmp_path / "x.nii", volume)
    pictures = read(path)
    assert [row.features["slice"] for row in pictures.rows] == [1, 2]
    empty = save(tmp_path / "m.nii", np.zeros((10, 10, 4), dtype=np.uint8))
    assert [row.features["slice"] for row in read(path, empty).rows] == [1, 2]


def test_a_constant_volume_and_one_of_constant_slices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="it is constant"):
        read(save(tmp_path / "y.nii", np.full(SHAPE, 3, dtype=np.int16)))
    path = save(tmp_path / "x.nii", np.ones(SHAPE, dtype=np.int16) * np.arange(4, dtype=np.int16))
    empty = save(tmp_path / "m.nii", np.zeros(SHAPE, dtype=np.uint8))
    for files in ((path,), (path, empty)):
        with pytest.raises(Unreadable, match=r"^each of its slices is constant$"):
            read(*files)


def test_slices_with_a_mask(tmp_path: Path) -> None:
    volume = ramp((5, 7, 6))
    volume[..., [0, 5]] = 0
    mask = np.zeros((5, 7, 6), dtype=np.uint8)
    mask[1, 2, 2] = 1
    mask[4, 6, 5] = 2  # in a blank slice: somebody should look at that
    files = save(tmp_path / "x.nii.gz", volume), save(tmp_path / "m.nii.gz", mask)
    only = read(*files, with_mask_only=True)
    assert [row.features["slice"] for row in only.rows] == [2, 5]
    assert only.targets.shape == (2, 1, 7, 5)
    assert np.argwhere(only.targets).tolist() == [[0, 0, 6 - 2, 4 - 1], [1, 0, 0, 0]]
    assert [row.features["slice"] for row in read(*files).rows] == [1, 2, 3, 4, 5]


def test_labels_and_files_become_masks(tmp_path: Path) -> None:
    volume, mask = ramp(), np.zeros(SHAPE, dtype=np.float32)
    mask[1, 2, 2], mask[3, 3, 3] = 1, 2
    files = save(tmp_path / "x.nii", volume), save(tmp_path / "m.nii", mask)
    both = read(*files, mask_labels=(2, 1)).targets
    assert both.shape == (4, 2, 7, 5)
    assert np.argwhere(both).tolist() == [[2, 1, 4, 3], [3, 0, 3, 1]]
    two = read(*files, save(tmp_path / "n.nii", 3 * (mask == 2).astype(np.uint8)), mask_labels=(1,)).targets
    assert two.sum((0, 2, 3)).tolist() == [2, 1]  # labels belong to a single mask
    with pytest.raises(Unreadable, match=r"the mask has the values \[2\.?0?\]"):
        read(*files, mask_labels=(1,))


def test_a_fourth_axis_of_one_is_fine(tmp_path: Path) -> None:
    volume = ramp()
    pictures = read(save(tmp_path / "x.nii", volume[..., None]), save(tmp_path / "m.nii", volume[..., None]))
    np.testing.assert_array_equal(pictures.images, read(save(tmp_path / "y.nii", volume)).images)


@pytest.mark.parametrize("shape", [(5, 7, 4, 2), (5, 7), (5, 7, 4, 1, 3)])
def test_other_than_three_axes_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = save(tmp_path / "x.nii", ramp(shape))
    text = " × ".join(map(str, shape))
    with pytest.raises(Unreadable, match=f"^it has the shape {text}; save one volume of three axes a file"):
        read(path)
    with pytest.raises(Unreadable, match=f"^it has the shape {text}"):
        read(save(tmp_path / "y.nii", ramp()), path)


def test_a_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    files = save(tmp_path / "x.nii", ramp()), save(tmp_path / "m.nii", ramp((5, 6, 4)))
    with pytest.raises(Unreadable, match="the mask has 5 × 6 × 4 voxels, its image 5 × 7 × 4"):
        read(*files)


def test_a_mask_without_position_has_the_order_of_the_image(tmp_path: Path) -> None:
    volume = ramp()
    mask = (volume > 100).astype(np.uint8)
    wanted = read(save(tmp_path / "x.nii", volume), save(tmp_path / "m.nii", mask)).targets
    lost = save(tmp_path / "lost.nii", mask, np.eye(4))
    np.testing.assert_array_equal(read(tmp_path / "x.nii", lost).targets, wanted)


def test_a_mask_that_may_be_mirrored_is_refused(tmp_path: Path) -> None:
    volume = ramp()
    image = save(tmp_path / "x.nii", *turned(volume, (0, 1, 2), (-1, 1, 1)))
    lost = save(tmp_path / "lost.nii", (volume > 100).astype(np.uint8), np.eye(4))
    with pytest.raises(Unreadable, match=r"the mask has the axes RAS and lies .* voxels off, its image LAS"):
        read(image, lost)


def test_a_small_difference_of_position_is_fine(tmp_path: Path) -> None:
    volume = ramp()
    stored, affine = turned(volume, (0, 1, 2), (-1, 1, -1))
    affine[:3, 3] += 2.0
    mask = save(tmp_path / "m.nii", stored, affine)
    wanted = read(save(tmp_path / "x.nii", volume), tmp_path / "x.nii").targets
    np.testing.assert_array_equal(read(tmp_path / "x.nii", mask).targets, wanted)


@pytest.mark.parametrize(
    ("shift", "stretch", "near"),
    [(5.9, 1.0, True), (6.1, 1.0, False), (0.0, 1.85 / 0.75, False), (0.0, 1.7 / 0.75, True)],
)
def test_two_voxels_off_is_where_doubt_begins(
    tmp_path: Path, shift: float, stretch: float, near: bool
) -> None:
    """A voxel has 3 mm upwards. Of seven to the front, the last is off by six times 1.1 mm or 0.95 mm."""
    stored, affine = turned(ramp(), (0, 1, 2), (-1, 1, 1))
    moved = from_matvec(np.diag([1, stretch, 1])) @ affine
    moved[1, 3] = AFFINE[1, 3]
    moved[2, 3] += shift
    files = save(tmp_path / "x.nii", ramp()), save(tmp_path / "m.nii", stored, moved)
    if near:
        assert len(read(*files).rows) == 4
    else:
        with pytest.raises(Unreadable, match="the mask has the axes LAS and lies 2 voxels off"):
            read(*files)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(tmp_path: Path, bad: float) -> None:
    volume = ramp().astype(np.float32)
    good = save(tmp_path / "good.nii", volume)
    volume[1, 1, 1] = bad
    path = save(tmp_path / "x.nii", volume)
    with pytest.raises(Unreadable, match=r"^it has NaN or infinite values"):
        read(path)
    with pytest.raises(Unreadable, match=r"^the mask has NaN or infinite values"):
        read(good, path)


def test_a_mask_of_fractions_an_empty_one_and_a_picture(tmp_path: Path) -> None:
    good = save(tmp_path / "x.nii", ramp())
    mask = np.zeros(SHAPE, dtype=np.float32)
    empty = save(tmp_path / "empty.nii", mask)
    with pytest.raises(Unreadable, match=r"the mask is empty, and cohort\.with_mask_only leaves nothing"):
        read(good, empty, with_mask_only=True)
    assert len(read(good, empty).rows) == 4
    mask[1, 1, 1] = 0.4
    soft = save(tmp_path / "m.nii", mask)
    (values,) = read(good, soft).mask_values
    assert sorted(values) == pytest.approx([0, 0.4])
    assert not read(good, soft, mask_threshold=0.5).targets.any()
    assert read(good, soft, mask_threshold=0.3).targets.sum() == 1
    with pytest.raises(Unreadable, match="the mask is not a NIfTI volume, but its image is"):
        read(good, tmp_path / "m.png")


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
@pytest.mark.parametrize("left", [0, 100, 2000, 9000])
def test_a_truncated_file_is_refused_without_its_path(tmp_path: Path, ending: str, left: int) -> None:
    good, bad = (save(tmp_path / f"{name}.{ending}", ramp((20, 20, 20))) for name in ("good", "bad"))
    bad.write_bytes(bad.read_bytes()[:left])
    for files in ((bad,), (good, bad)):
        with pytest.raises(Unreadable, match=r"it is no whole NIfTI file: .") as caught:
            read(*files)
        assert str(tmp_path) not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_file_and_one_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.nii").write_text("not a volume")
    with pytest.raises(Unreadable, match="it is no whole NIfTI file: its header is damaged"):
        read(tmp_path / "x.nii")
    with pytest.raises(Unreadable, match=r"No such file .*'y\.nii'"):
        read(tmp_path / "y.nii")


def test_names() -> None:
    assert [is_nifti(name) for name in ("b.nii.gz", Path("B.NII"), "b.gz")] == [True, True, False]

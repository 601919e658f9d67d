"""Folders of real files: every layout is recognised, and everything that does not fit is named."""

import os
import shutil
import socket
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from cohort_files import PIXELS, close, problems, save, touch
from hypothesis import given
from hypothesis import strategies as st
from pydicom.data import get_testdata_file

from silodp.cohorts.catalogue import Catalogue, Unreadable
from silodp.cohorts.sources.folder import Folder
from silodp.cohorts.sources.pairing import without_ending
from silodp.cohorts.sources.walking import files_below
from silodp.errors import InputError

OWN_PATIENTS = "a volume counts as a patient: if one person has several, set cohort.patient_pattern"
CONSTANT = "slices of a volume that show one grey only are left out"


def look(root: Path, **settings: Any) -> Catalogue:
    return Folder(path=str(root), **settings).scan(root)


def where(catalogue: Catalogue) -> dict[str, tuple[Any, ...]]:
    return {each.name: (each.hospital, each.part, each.label) for each in catalogue.scans}


def test_hospitals_with_classes(tmp_path: Path) -> None:
    for name in ("B/pneumonia/1.jpg", "A/pneumonia/x.png", "A/normal/deep/er/y.PNG", "B/normal/z.bmp"):
        save(tmp_path, name)
    catalogue = look(tmp_path)
    assert where(catalogue) == {
        "A/normal/deep/er/y.PNG": ("A", None, 0),
        "A/pneumonia/x.png": ("A", None, 1),
        "B/normal/z.bmp": ("B", None, 0),
        "B/pneumonia/1.jpg": ("B", None, 1),
    }
    assert [each.name for each in catalogue.scans] == sorted(where(catalogue))
    assert (catalogue.kind, catalogue.root, catalogue.target) == ("folder", tmp_path, "class")
    assert catalogue.classes == ("normal", "pneumonia")
    assert catalogue.layout == "folders of classes in 2 hospitals"
    assert catalogue.problems == ()
    pictures = catalogue.read(catalogue.scans[1])
    np.testing.assert_array_equal(pictures.images, PIXELS[None, None])
    assert pictures.targets.tolist() == [1]
    row = pictures.rows[0]
    assert (row.name, row.hospital, row.patient, row.part) == ("A/pneumonia/x.png", "A", None, None)
    assert (row.size, row.features) == ((6, 8), {})


def test_classes_without_hospitals(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "dog/1.png")
    catalogue = look(tmp_path)
    assert where(catalogue) == {"cat/1.png": (None, None, 0), "dog/1.png": (None, None, 1)}
    assert catalogue.layout == "folders of classes that name no hospital"


def test_parts_on_top_and_in_hospitals(tmp_path: Path) -> None:
    touch(tmp_path / "top", "train/a/1.png", "val/a/2.png", "Test/b/3.png")
    assert where(look(tmp_path / "top")) == {
        "train/a/1.png": (None, "train", 0),
        "val/a/2.png": (None, "validation", 0),
        "Test/b/3.png": (None, "test", 1),
    }
    touch(tmp_path / "both", "training/A/a/1.png", "valid/A/b/2.png", "testing/B/b/3.png")
    assert where(look(tmp_path / "both")) == {
        "training/A/a/1.png": ("A", "train", 0),
        "valid/A/b/2.png": ("A", "validation", 1),
        "testing/B/b/3.png": ("B", "test", 1),
    }
    touch(tmp_path / "in", "A/train/a/1.png", "A/validation/b/2.png", "B/a/3.png")
    catalogue = look(tmp_path / "in")
    assert where(catalogue) == {
        "A/train/a/1.png": ("A", "train", 0),
        "A/validation/b/2.png": ("A", "validation", 1),
        "B/a/3.png": ("B", None, 0),
    }
    assert catalogue.layout == "folders of classes in 2 hospitals, already divided into parts"
    touch(tmp_path / "pairs", "A/train/images/1.png", "A/train/masks/1.png")
    assert where(look(tmp_path / "pairs")) == {"A/train/images/1.png": ("A", "train", None)}
    assert look(tmp_path / "pairs").layout.startswith("folders of images and masks in one hospital")


def test_a_class_may_be_named_like_a_part_below_one(tmp_path: Path) -> None:
    touch(tmp_path, "train/A/control/1.png", "train/A/test/2.png", "loose.png")
    catalogue = look(tmp_path)
    assert where(catalogue) == {
        "train/A/control/1.png": ("A", "train", 0),
        "train/A/test/2.png": ("A", "train", 1),
    }
    assert problems(catalogue) == {"loose.png": "is beside the folders of images, in none of them"}


def test_parts_beside_other_folders_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.png", "extra/a/2.png")
    with pytest.raises(InputError, match=r"folders of parts \(train\) beside others \(extra\), at train/a/1"):
        look(tmp_path)
    touch(tmp_path / "one", "A/test/a/1.png", "A/a/2.png", "B/a/3.png")
    with pytest.raises(InputError, match=r"folders of parts \(test\) beside others \(a\), at A/test/a/1"):
        look(tmp_path / "one")


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        ({"adenoma", "carcinoma"}, ("adenoma", "carcinoma")),
        ({"covid", "Normal"}, ("Normal", "covid")),
        ({"Haemorrhage", "healthy"}, ("healthy", "Haemorrhage")),
        ({"disease", "no_disease"}, ("no_disease", "disease")),
        ({"covid", "Non-COVID"}, ("Non-COVID", "covid")),
        ({"malignant", "benign"}, ("benign", "malignant")),
        ({"abnormal", "nodule"}, ("abnormal", "nodule")),
        ({"malignant", "benign", "normal"}, ("benign", "malignant", "normal")),  # two look healthy
        ({"covid", "flu", "negative"}, ("negative", "covid", "flu")),
        ({"10", "2", "0"}, ("0", "2", "10")),
        ({"grade 3", "Grade 4", "Zero"}, ("grade 3", "Grade 4", "Zero")),
    ],
)
def test_order_of_classes(tmp_path: Path, names: set[str], classes: tuple[str, ...]) -> None:
    touch(tmp_path, *(f"{name}/1.png" for name in names))
    catalogue = look(tmp_path)
    assert catalogue.classes == classes
    assert {each.name.split("/")[0]: each.label for each in catalogue.scans} == {
        name: number for number, name in enumerate(classes)
    }


def test_classes_that_cannot_be_meant(tmp_path: Path) -> None:
    touch(tmp_path / "capitals", "A/Normal/1.png", "A/ill/1.png", "B/normal/1.png")
    with pytest.raises(InputError, match=r"differ in capitals only \(normal\); name them alike"):
        look(tmp_path / "capitals")
    touch(tmp_path / "patients", "normal/p1/1.png", "ill/p2/1.png", "ill/p3/1.png")
    with pytest.raises(InputError, match="no two of the folders ill, normal have a class in common"):
        look(tmp_path / "patients")


@pytest.mark.parametrize("folders", [("images", "masks"), ("Image", "Label"), ("IMAGES", "segmentations")])
def test_images_with_masks(tmp_path: Path, folders: tuple[str, str]) -> None:
    marked = (PIXELS > 20).astype(np.uint8) * 255
    ours, theirs = folders
    for name, suffix in (("a", ""), ("b", "_mask"), ("c", "-SEG"), ("d", "_segmentation"), ("e", "_label")):
        save(tmp_path, f"H/{ours}/{name}.png")
        save(tmp_path, f"H/{theirs}/{name}{suffix}.tif", marked)
    catalogue = look(tmp_path)
    assert catalogue.problems == ()
    assert [each.files[1].name for each in catalogue.scans] == [
        "a.tif",
        "b_mask.tif",
        "c-SEG.tif",
        "d_segmentation.tif",
        "e_label.tif",
    ]
    assert (catalogue.target, catalogue.classes) == ("mask", ("mask",))
    pictures = catalogue.read(catalogue.scans[1])
    np.testing.assert_array_equal(pictures.targets, (PIXELS > 20)[None, None])
    assert pictures.targets.dtype == np.uint8
    assert pictures.rows[0].name == f"H/{ours}/b.png"


def test_masks_without_hospitals_and_in_folders_of_patients(tmp_path: Path) -> None:
    touch(tmp_path, "images/p1/1.png", "images/p2/1.png", "masks/p1/1.png", "masks/p2/1_mask.png")
    catalogue = look(tmp_path)
    assert [[str(path.relative_to(tmp_path)) for path in each.files] for each in catalogue.scans] == [
        ["images/p1/1.png", "masks/p1/1.png"],
        ["images/p2/1.png", "masks/p2/1_mask.png"],
    ]
    assert catalogue.scans[0].hospital is None
    touch(tmp_path / "kinds", "images/p1/1.png", "masks/gland/p1/1.png", "masks/zone/p1/1_mask.png")
    kinds = look(tmp_path / "kinds")
    assert (kinds.classes, len(kinds.scans), kinds.problems) == (("gland", "zone"), 1, ())


def test_a_mask_of_the_very_name_goes_before_one_with_an_ending(tmp_path: Path) -> None:
    touch(tmp_path, "images/x.png", "images/x_mask.png", "masks/x_mask.png", "masks/x.png")
    catalogue = look(tmp_path)
    assert catalogue.problems == ()
    assert [(each.files[0].name, each.files[1].name) for each in catalogue.scans] == [
        ("x.png", "x.png"),
        ("x_mask.png", "x_mask.png"),
    ]


def test_folders_of_masks_are_channels(tmp_path: Path) -> None:
    empty = PIXELS * 0
    for name in ("x", "y"):
        save(tmp_path, f"images/{name}.png")
    gland, lesion = empty.copy(), empty.copy()
    gland[1, 2], lesion[3, 4] = 255, 1
    save(tmp_path, "masks/lesion/x_mask.png", lesion)
    save(tmp_path, "masks/gland/x.png", gland)
    save(tmp_path, "masks/gland/y.png", gland)
    save(tmp_path, "masks/y.png", gland)
    catalogue = look(tmp_path)
    assert catalogue.classes == ("gland", "lesion")
    assert problems(catalogue) == {
        "images/y.png": "has no mask lesion",
        "masks/y.png": "is beside the folders of masks (gland, lesion)",
    }
    assert len(catalogue.problems) == 2
    (only,) = catalogue.scans
    assert np.argwhere(catalogue.read(only).targets).tolist() == [[0, 0, 1, 2], [0, 1, 3, 4]]
    with pytest.raises(InputError, match=r"cohort\.mask_labels = \[1\]: .*\(gland, lesion\).*leave"):
        look(tmp_path, mask_labels=(1,))


def test_every_problem_of_one_folder_is_named(tmp_path: Path) -> None:
    for name in ("good", "wide", "cut", "lonely", "twin", "second"):
        save(tmp_path, f"A/images/{name}.png", np.tile(PIXELS, (8, 8)))
    for name in ("good", "cut", "orphan", "twin", "second", "second_mask"):
        save(tmp_path, f"A/masks/{name}.png", np.tile(PIXELS, (8, 8)) > 9)
    save(tmp_path, "A/masks/wide.png", np.tile(PIXELS, (8, 4)) > 9)
    save(tmp_path, "A/images/twin.jpg", np.tile(PIXELS, (8, 8)))
    save(tmp_path, "A/old/good.png")
    save(tmp_path, "A/loose.png")
    save(tmp_path, "top.png")
    cut = tmp_path / "A/images/cut.png"
    cut.write_bytes(cut.read_bytes()[:-30])
    touch(tmp_path, "A/images/.hidden.png", ".git/x/y.png", "__MACOSX/A/images/x.png", "A/Thumbs.db")
    touch(tmp_path, "README.txt", "A/readme", "A/labels.csv", "LICENSE", "A/images/good.txt", "A/notes.docx")
    catalogue = look(tmp_path)
    twins = "shares its name with another image, so that masks cannot tell them apart"
    assert problems(catalogue) == {
        "A/images/lonely.png": "has no mask",
        "A/images/twin.jpg": twins,
        "A/images/twin.png": twins,
        "A/loose.png": "is beside the folders of images, in none of them",
        "A/masks/orphan.png": "is a mask without an image",
        "A/masks/second_mask.png": "is a second mask of A/images/second.png",
        "A/old/good.png": "lies in old, a folder neither of images nor of masks",
        "top.png": "is beside the folders of images, in none of them",
    }
    assert list(map(str, catalogue.problems)) == sorted(map(str, catalogue.problems))
    by_name = {each.name: each for each in catalogue.scans}
    assert set(by_name) == {f"A/images/{name}.png" for name in ("good", "wide", "cut", "second")}
    assert catalogue.notes[0] == "2 files of other kinds were left out (.docx, .txt)"
    with pytest.raises(Unreadable, match="its mask has 48 × 32 pixels, the image 48 × 64"):
        catalogue.read(by_name["A/images/wide.png"])
    with pytest.raises(OSError, match="truncated"):
        catalogue.read(by_name["A/images/cut.png"])
    assert catalogue.read(by_name["A/images/good.png"]).targets.any()


def test_masks_pair_within_their_own_hospital_and_part(tmp_path: Path) -> None:
    touch(tmp_path, "A/images/x.png", "B/masks/x.png", "B/images/y.png", "B/masks/y.png")
    catalogue = look(tmp_path)
    assert problems(catalogue) == {
        "A/images/x.png": "has no mask",
        "B/masks/x.png": "is a mask without an image",
    }
    touch(tmp_path / "parts", "train/images/x.png", "test/masks/x.png")
    assert len(look(tmp_path / "parts").problems) == 2


def test_what_is_no_folder_cohort(tmp_path: Path) -> None:
    touch(tmp_path / "mixed", "A/images/1.png", "A/masks/1.png", "B/normal/1.png")
    with pytest.raises(InputError, match=r"A/masks/1.png is in a folder .* B/normal/1.png in one of a class"):
        look(tmp_path / "mixed")
    touch(tmp_path / "flat", "1.png", "2.png")
    with pytest.raises(InputError, match=r"2 images in no folder .* such as 1.png; .*hospital/class"):
        look(tmp_path / "flat")
    touch(tmp_path / "shallow", "train/1.png")
    with pytest.raises(InputError, match="1 images in no folder"):
        look(tmp_path / "shallow")
    touch(tmp_path / "other", "A/1.mha", "A/2")
    with pytest.raises(
        InputError, match=r"no image below it, but 2 files \(\.mha, no ending\); .*hospital/class"
    ):
        look(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no image below it, but none at all"):
        look(tmp_path / "empty")
    with pytest.raises(InputError, match=r"a file, and cohort\.kind = folder"):
        look(tmp_path / "flat/1.png")


def test_patients_by_pattern(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/p12_3.png", "A/well/p12_4.png", "A/well/q.png", "A/well/p_9.png")
    catalogue = look(tmp_path, patient_pattern=r"/p(\d*)_\d+\.png$")
    assert {each.name: each.patient for each in catalogue.scans} == {
        "A/ill/p12_3.png": "12",
        "A/well/p12_4.png": "12",
    }
    missed = "cohort.patient_pattern finds no patient in its name"
    assert problems(catalogue) == {"A/well/q.png": missed, "A/well/p_9.png": missed}
    assert catalogue.notes == ()


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("p(", "not a regular expression"), ("p\\d", "0 groups"), ("(p)(\\d)", "2 groups")],
)
def test_patterns_that_cannot_be_used(tmp_path: Path, pattern: str, why: str) -> None:
    touch(tmp_path, "A/ill/p1.png")
    with pytest.raises(InputError, match=rf"cohort\.patient_pattern = .*{why}.*one pair of brackets"):
        look(tmp_path, patient_pattern=pattern)


def test_pictures_do_not_tell_patients(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/1.png")
    (note,) = look(tmp_path).notes
    assert note.startswith("the files do not tell patients")
    assert "cohort.patient_pattern" in note
    assert "patients.csv" in note


def test_patients_by_list(tmp_path: Path) -> None:
    for name in ("A/ill/1.png", "A/ill/2.png", "A/well/3.png", "A/well/4.png"):
        save(tmp_path, name)
    (tmp_path / "patients.csv").write_text(
        "\ufefffile,patient,scanner,age\n"
        "A/ill/1.png, 007 ,Acme,61\n"
        ".\\A\\ill\\2.png,7,nan,\n"
        "A/well/3.png,,Acme,30\n"
        "A/well/9.png,9,Acme,40\n"
        "A/ill/1.png,8,Acme,62\n"
        "A/well/4.png\n"
        ",5,Acme,62\n",
        encoding="utf-8",
    )
    catalogue = look(tmp_path)
    assert {each.name: each.patient for each in catalogue.scans} == {"A/ill/1.png": "007", "A/ill/2.png": "7"}
    assert problems(catalogue) == {
        "A/ill/1.png": "is in patients.csv more than once",
        "A/well/3.png": "has no patient in patients.csv",
        "A/well/4.png": "has no patient in patients.csv",
        "A/well/9.png": "is in patients.csv, but there is no such file",
        "patients.csv": "has a row that names no file",
    }
    assert catalogue.lists == (tmp_path / "patients.csv",)
    assert catalogue.notes == ()
    rows = [catalogue.read(each).rows[0] for each in catalogue.scans]
    assert [row.patient for row in rows] == ["007", "7"]
    assert [row.features for row in rows] == [{"scanner": "Acme", "age": 61.0}, {"scanner": "nan"}]


def test_names_are_the_same_however_their_accents_are_written(tmp_path: Path) -> None:
    """macOS writes ö as two characters, others as one."""
    disk, table = "ill/Köln.png", unicodedata.normalize("NFD", "ill/Köln.png")
    assert disk != table
    for one, other in ((disk, table), (table, disk)):
        root = tmp_path / str(len(one))
        save(root, one)
        save(root, "well/2.png")
        (root / "patients.csv").write_text(f"file,patient\n{other},7\nwell/2.png,8\n", encoding="utf-8")
        catalogue = look(root)
        assert problems(catalogue) == {}
        assert {scan.name: scan.patient for scan in catalogue.scans} == {one: "7", "well/2.png": "8"}


def test_folders_of_patients_in_those_of_classes_are_no_hospitals(tmp_path: Path) -> None:
    touch(tmp_path, "healthy/p0/1.png", "healthy/p1/2.png", "sick/p0/3.png", "sick/p1/4.png")
    with pytest.raises(InputError, match=r"healthy would be a hospital, with the classes p0, p1; put .*csv"):
        look(tmp_path)


def test_a_pattern_goes_before_the_list(tmp_path: Path) -> None:
    save(tmp_path, "A/ill/1.png")
    save(tmp_path, "A/ill/2.png")
    (tmp_path / "patients.csv").write_text("file,patient,age\nA/ill/1.png,7,50\n")
    catalogue = look(tmp_path, patient_pattern=r"(\d+)\.png")
    assert [each.patient for each in catalogue.scans] == ["1", "2"]
    assert catalogue.problems == ()
    assert catalogue.read(catalogue.scans[0]).rows[0].features == {"age": 50.0}


def test_lists_that_cannot_be_used(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/1.png")
    (tmp_path / "patients.csv").write_text("name,patient\nA/ill/1.png,7\n")
    with pytest.raises(InputError, match=r"patients\.csv: the column file is missing; it has name, patient"):
        look(tmp_path)
    (tmp_path / "patients.csv").write_text("")
    with pytest.raises(InputError, match="the column file is missing; it has none"):
        look(tmp_path)
    (tmp_path / "patients.csv").write_bytes("file,patient\nA/ill/1.png,Jörg\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"cannot be read .* save it as csv in UTF-8"):
        look(tmp_path)


def test_volumes_with_a_class(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(1, 900, (6, 8, 4)).astype(np.int16)
    volume[..., 0] = 0
    save(tmp_path, "A/ill/p1.nii.gz", volume)
    save(tmp_path, "A/well/p2.nii", volume)
    catalogue = look(tmp_path)
    assert [each.patient for each in catalogue.scans] == ["A/ill/p1", "A/well/p2"]
    assert catalogue.notes == (OWN_PATIENTS, CONSTANT)
    pictures = catalogue.read(catalogue.scans[1])
    assert pictures.targets.tolist() == [1, 1, 1]
    assert [row.name for row in pictures.rows] == [f"A/well/p2.nii#{index}" for index in (1, 2, 3)]
    assert pictures.rows[0].features["slice"] == 1
    by_pattern = look(tmp_path, patient_pattern=r"p(\d)")
    assert [each.patient for each in by_pattern.scans] == ["1", "2"]
    assert by_pattern.notes == (CONSTANT,)
    assert look(tmp_path, patient_pattern=r"^([^.]*)").notes == (CONSTANT,)
    (tmp_path / "patients.csv").write_text("file,patient\nA/ill/p1.nii.gz,p1\nA/well/p2.nii,p2\n")
    assert look(tmp_path).notes == (CONSTANT,)


def test_volumes_with_masks(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(1, 900, (6, 8, 4)).astype(np.int16)
    save(tmp_path, "images/p1.nii.gz", volume)
    save(tmp_path, "masks/p1_seg.nii", (volume > 500).astype(np.uint8) * (np.arange(4) > 1).astype(np.uint8))
    save(tmp_path, "images/p2.nii.gz", volume)
    save(tmp_path, "masks/p2.png")
    save(tmp_path, "images/p3.png")
    save(tmp_path, "masks/p3.nii.gz", volume)
    catalogue = look(tmp_path, with_mask_only=True)
    assert OWN_PATIENTS in catalogue.notes
    assert CONSTANT not in catalogue.notes
    assert CONSTANT in look(tmp_path).notes
    pictures = catalogue.read(catalogue.scans[0])
    assert [row.features["slice"] for row in pictures.rows] == [2, 3]
    np.testing.assert_array_equal(pictures.targets[:, 0], (volume > 500).transpose(2, 1, 0)[2:])
    assert len(look(tmp_path).read(catalogue.scans[0]).rows) == 4
    with pytest.raises(Unreadable, match=r"the mask is not a NIfTI volume"):
        catalogue.read(catalogue.scans[1])
    with pytest.raises(Unreadable, match=r"the mask is a volume, its image is not"):
        catalogue.read(catalogue.scans[2])


def test_dicom_tells_its_patient(tmp_path: Path) -> None:
    save(tmp_path, "A/ill/1.dcm", PIXELS)
    save(tmp_path, "A/well/2.dcm", PIXELS).rename(tmp_path / "A/well/2.DCM")
    catalogue = look(tmp_path)
    assert [catalogue.read(each).rows[0].patient for each in catalogue.scans] == ["P7", "P7"]
    assert catalogue.notes == ()
    pictures = catalogue.read(catalogue.scans[0])
    assert (pictures.rows[0].patient, pictures.targets.tolist()) == ("P7", [0])
    assert pictures.images.shape == (1, 1, 6, 8)
    assert (np.diff(pictures.images.ravel()) >= 0).all()
    listed = look(tmp_path, patient_pattern=r"(\d)\.(?i:dcm)")
    row = listed.read(listed.scans[1]).rows[0]
    assert (row.patient, row.links) == ("2", ("id P7",))
    (tmp_path / "patients.csv").write_text("file,patient\nA/ill/1.dcm,X\nA/well/2.DCM,Y\n")
    listed = look(tmp_path)
    rows = [listed.read(each).rows[0] for each in listed.scans]
    assert [(row.patient, row.links) for row in rows] == [("X", ("id P7",)), ("Y", ("id P7",))]


def test_dicom_with_masks(tmp_path: Path) -> None:
    mask = (PIXELS > 20).astype(np.uint8)
    save(tmp_path, "images/1.dcm")
    save(tmp_path, "masks/1.png", mask)
    save(tmp_path, "images/2.png")
    save(tmp_path, "masks/2_mask.dcm", mask * 3)
    catalogue = look(tmp_path)
    for each in catalogue.scans:
        np.testing.assert_array_equal(catalogue.read(each).targets, mask[None, None])
    assert catalogue.read(catalogue.scans[0]).rows[0].patient == "P7"


def test_channels_decide_how_dicom_is_seen(tmp_path: Path) -> None:
    path = save(tmp_path, "A/ill/1.dcm")
    from pydicom import dcmread

    file = dcmread(path)
    file.Modality, file.RescaleSlope, file.RescaleIntercept = "CT", "1", "-1024"
    file.save_as(path)
    for channels in (1, 3):
        catalogue = look(tmp_path, channels=channels)
        assert catalogue.read(catalogue.scans[0]).images.shape == (1, channels, 6, 8)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path / "near", "A/well/1.png", ".far/ill/1.png")
    os.symlink(tmp_path / "near/.far", tmp_path / "near/B")
    os.symlink(tmp_path / "near", tmp_path / "near/A/well/again")
    found = files_below(tmp_path / "near")
    assert found.files == ("A/well/1.png", "B/ill/1.png")
    assert found.folders == ("A", "A/well", "B", "B/ill")
    assert found.problems == ()


def test_links_to_each_other_end(tmp_path: Path) -> None:
    touch(tmp_path, "root/x/1.png", "root/.far/y/2.png")
    os.symlink(tmp_path / "root/.far/y", tmp_path / "root/x/out")
    os.symlink(tmp_path / "root/x", tmp_path / "root/.far/y/back")
    assert files_below(tmp_path / "root").files == ("x/1.png", "x/out/2.png")


def test_folders_that_are_all_linked_with_each_other_do_not_take_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silodp.cohorts.sources.walking.LINKS", 500)
    names = [f"f{number}" for number in range(12)]  # 12! ways through them
    for name in names:
        touch(tmp_path / name, "1.png")
        for other in set(names) - {name}:
            os.symlink(tmp_path / other, tmp_path / name / other)
    with pytest.raises(InputError, match="links between its folders are endless; remove them"):
        files_below(tmp_path)


def test_links_out_of_the_root_are_named_and_not_followed(tmp_path: Path) -> None:
    touch(tmp_path / "far/ill", "1.png")
    touch(tmp_path / "near", "A/well/1.png", "A/ill/1.png")
    os.symlink(tmp_path / "far", tmp_path / "near/B")
    os.symlink(tmp_path / "far/ill/1.png", tmp_path / "near/A/ill/2.png")
    os.symlink("/proc/self/environ", tmp_path / "near/A/ill/3.png")
    os.symlink(tmp_path, tmp_path / "near/C")
    os.symlink(tmp_path / "near", tmp_path / "by-another-name")
    for root in ("near", "by-another-name"):  # the root itself may be a link
        found = files_below(tmp_path / root)
        assert found.files == ("A/ill/1.png", "A/well/1.png")
        assert {problem.name for problem in found.problems} == {"A/ill/2.png", "A/ill/3.png", "B", "C"}
        assert {problem.what for problem in found.problems} == {
            "it is a link out of the cohort's folder; put the file itself there"
        }


def test_what_is_no_file_is_named_and_never_opened(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/1.png", "A/well/1.png")
    os.mkfifo(tmp_path / "A/ill/pipe.dcm")
    os.mkfifo(tmp_path / "A/ill/IM0001")  # would be opened to look for DICOM's mark
    os.mkfifo(tmp_path / "patients.csv")
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(tmp_path)  # a socket's path is short
        try:
            bound.bind("socket.png")
        finally:
            os.chdir(here)
        catalogue = look(tmp_path)
    assert len(catalogue.scans) == 2
    named = {problem.name for problem in catalogue.problems}
    assert named == {"A/ill/pipe.dcm", "A/ill/IM0001", "patients.csv", "socket.png"}
    assert {problem.what for problem in catalogue.problems} == {
        "it is a pipe, a socket or a device, not a file"
    }


def test_a_name_that_is_not_unicode_is_a_problem(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/1.png", "A/well/1.png")
    with open(os.fsencode(tmp_path) + b"/A/ill/\xff.png", "wb"):
        pass
    found = files_below(tmp_path)
    assert [str(problem) for problem in found.problems] == [
        "A/ill/\\udcff.png: its name is not in UTF-8; rename it"
    ]


def test_a_closed_folder_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "A/ill/1.png", "A/well/1.png", "B/ill/1.png", "C/well/1.png")
    close(monkeypatch, tmp_path / "B", tmp_path / "C/well")
    catalogue = look(tmp_path)
    what = "the folder cannot be read (Permission denied)"
    assert problems(catalogue) == {"B": what, "C/well": what}
    assert len(catalogue.scans) == 2
    close(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"^cohort\.path = .*no file below it can be seen; \.: the folder"):
        look(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to the superuser")
def test_rights_decide_what_is_closed(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/1.png", "B/ill/1.png")
    (tmp_path / "patients.csv").write_text("file,patient\nA/ill/1.png,1\nB/ill/1.png,2\n")
    (tmp_path / "B").chmod(0)
    try:
        found = problems(look(tmp_path))
    finally:
        (tmp_path / "B").chmod(0o700)
    assert found["B"] == "the folder cannot be read (Permission denied)"


def test_folders_without_an_image_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "A/ill/p1/1.png", "A/well/2.png", "C/readme.txt", "D/ill/1.png", ".git/x")
    for folder in ("B/ill", "B/well", "D/well"):
        (tmp_path / folder).mkdir(parents=True)
    assert look(tmp_path).notes[0] == "folders without an image: B, C, D/well"
    for number in range(10):
        (tmp_path / f"E{number}").mkdir()
    assert look(tmp_path).notes[0].endswith("D/well, E0, E1, E2, E3, E4 and 5 more")


@given(st.text("abc._-", min_size=1), st.sampled_from([".png", ".nii.gz", ".NII", ".jpeg", ".dcm"]))
def test_an_ending_is_taken_off_whole(name: str, ending: str) -> None:
    assert without_ending(f"x/y{name}{ending}") == f"x/y{name}"


def test_dicom_files_as_archives_name_them(tmp_path: Path) -> None:
    example = Path(str(get_testdata_file("CT_small.dcm", download=False)))
    for name in ("A/sick/IM0001", "A/sick/1.2.840.113619", "A/healthy/slice.IMA", "A/healthy/b.dcm"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(example, tmp_path / name)
    (tmp_path / "A/sick/notes").write_text("no image " * 40)
    catalogue = look(tmp_path)
    assert [each.name for each in catalogue.scans] == [
        "A/healthy/b.dcm", "A/healthy/slice.IMA", "A/sick/1.2.840.113619", "A/sick/IM0001"
    ]  # fmt: skip
    for each in catalogue.scans:
        pictures = catalogue.read(each)
        assert pictures.rows[0].patient == pydicom.dcmread(example).PatientID
        assert pictures.images.shape == (1, 1, 128, 128)

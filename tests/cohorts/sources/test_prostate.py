"""Prostate MRI as volumes and as listed slices: sites, patients and parts as the files tell them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohort_files import PIXELS, close, problems, save
from numpy.typing import NDArray

from silodp.cohorts.catalogue import Catalogue, Unreadable
from silodp.cohorts.sources.prostate import Prostate
from silodp.errors import InputError

AS_STORED = np.diag([-0.5, -0.5, 3.0, 1.0])  # columns to the left hand, rows to the back
VOLUME = np.random.default_rng(0).integers(1, 900, (8, 6, 5)).astype(np.int16)
GLAND = np.zeros((8, 6, 5), dtype=np.uint8)
GLAND[2:5, 1:3, 1:4] = 1
GLAND[3, 2, 2] = 2


OWN_PATIENTS = "a volume counts as a patient: if one person has several, set cohort.patient_pattern"
CONSTANT = "slices of a volume that show one grey only are left out"


def volumes(root: Path, *names: str, content: NDArray[Any] = VOLUME) -> None:
    for name in names:
        save(root, name, content, AS_STORED)


def slices(root: Path, *names: str, content: NDArray[Any] = PIXELS) -> None:
    for name in names:
        save(root, name, content)


def listed(*names: str) -> list[dict[str, str]]:
    return [{"image": name, "label": name.replace("/Image/", "/Mask/")} for name in names]


def write(path: Path, **lists: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"training": [], "validation": [], "testing": [], **lists}))


def look(root: Path, **settings: Any) -> Catalogue:
    return Prostate(path=str(root), **settings).scan(root)


def test_volumes_with_their_segmentations(tmp_path: Path) -> None:
    for site, case, ending in (
        ("BIDMC", "Case00", "_segmentation.nii.gz"),
        ("BIDMC", "Case01", "_Segmentation.nii"),
        ("HK", "Case00", "_SEG.nii.gz"),
        ("HK", "Case01", "_mask.nii.gz"),
        ("UCL", "Case00", "_label.nii.gz"),
    ):
        volumes(tmp_path, f"{site}/{case}.nii.gz")
        volumes(tmp_path, f"{site}/{case}{ending}", content=GLAND)
    catalogue = look(tmp_path)
    assert [(each.name, each.hospital, each.patient, each.part) for each in catalogue.scans] == [
        (f"{site}/Case0{case}.nii.gz", site, f"{site}/Case0{case}", None)
        for site, case in (("BIDMC", 0), ("BIDMC", 1), ("HK", 0), ("HK", 1), ("UCL", 0))
    ]
    assert catalogue.problems == ()
    assert (catalogue.kind, catalogue.root, catalogue.target) == ("prostate", tmp_path, "mask")
    assert catalogue.classes == ("gland",)
    assert catalogue.layout == "NIfTI volumes of 3 sites"
    assert catalogue.notes == (OWN_PATIENTS, "split 50/25/25 as in the paper's text")
    assert look(tmp_path, shares=(0.6, 0.2, 0.2)).notes == (OWN_PATIENTS,)
    pictures = catalogue.read(catalogue.scans[1])
    assert [row.name for row in pictures.rows] == [f"BIDMC/Case01.nii.gz#{index}" for index in (1, 2, 3)]
    np.testing.assert_array_equal(pictures.targets[:, 0], GLAND.transpose(2, 1, 0)[1:4] > 0)
    assert pictures.rows[0].features == {"slice": 1.0, "spacing": 0.5}
    assert {row.patient for row in pictures.rows} == {"BIDMC/Case01"}


def test_all_slices_and_zones(tmp_path: Path) -> None:
    volumes(tmp_path, "A/1.nii")
    volumes(tmp_path, "A/1_seg.nii", content=GLAND)
    every = look(tmp_path, with_mask_only=False)
    assert len(every.read(every.scans[0]).rows) == 5
    assert CONSTANT in every.notes
    zones = look(tmp_path, mask_labels=(1, 2))
    assert zones.classes == ("1", "2")
    targets = zones.read(zones.scans[0]).targets
    assert targets.shape == (3, 2, 6, 8)
    assert targets.sum((0, 2, 3)).tolist() == [17, 1]  # 3 · 2 · 3 voxels, one of them of the second zone


@pytest.mark.parametrize(
    "folders", [("Image", "Mask"), ("images", "masks"), ("imagesTr", "labelsTr"), ("Images", "Segmentation")]
)
def test_volumes_in_folders(tmp_path: Path, folders: tuple[str, str]) -> None:
    ours, theirs = folders
    volumes(tmp_path, f"MSD/{ours}/prostate_00.nii.gz")
    volumes(tmp_path, f"MSD/{theirs}/prostate_00.nii.gz", content=GLAND)
    (tmp_path / "MSD/dataset.json").write_text('{"training": [], "test": []}')  # as the Decathlon has it
    catalogue = look(tmp_path)
    (only,) = catalogue.scans
    assert (only.name, only.patient) == (f"MSD/{ours}/prostate_00.nii.gz", "MSD/prostate_00")
    assert [path.parent.name for path in only.files] == [ours, theirs]
    assert len(catalogue.read(only).rows) == 3


def test_every_problem_of_volumes_is_named(tmp_path: Path) -> None:
    volumes(tmp_path, "A/good.nii.gz", "A/lonely.nii.gz", "A/small.nii.gz", "A/empty.nii.gz", "A/cut.nii.gz")
    volumes(tmp_path, "A/good_seg.nii.gz", "A/orphan_seg.nii.gz", "A/cut_seg.nii", content=GLAND)
    volumes(tmp_path, "A/good_mask.nii", content=GLAND)
    volumes(tmp_path, "A/small_seg.nii.gz", content=GLAND[:, :, :4])
    volumes(tmp_path, "A/empty_seg.nii.gz", content=GLAND * 0)
    volumes(tmp_path, "B/both.nii", "B/both.nii.gz")
    volumes(tmp_path, "B/both_seg.nii", content=GLAND)
    volumes(tmp_path, "B/T2/deep.nii", "B/images/deep/er.nii", "beside.nii", "B/.hidden.nii")
    slices(tmp_path, "C/1.png", "top.png")
    cut = tmp_path / "A/cut.nii.gz"
    cut.write_bytes(cut.read_bytes()[:200])
    catalogue = look(tmp_path)
    twins = "shares its name with another image, so that masks cannot tell them apart"
    assert problems(catalogue) == {
        "A/good_seg.nii.gz": "is a second mask of A/good.nii.gz",  # after good_mask, in the order of names
        "A/lonely.nii.gz": "has no mask",
        "A/orphan_seg.nii.gz": "is a mask without an image",
        "B/T2/deep.nii": "lies in T2, where neither images nor masks are read",
        "B/both.nii": twins,
        "B/both.nii.gz": twins,
        "B/images/deep/er.nii": "lies in images/deep, where neither images nor masks are read",
        "beside.nii": "is beside the folders of sites, in none of them",
    }
    assert list(map(str, catalogue.problems)) == sorted(map(str, catalogue.problems))
    assert catalogue.notes[0] == "C: no NIfTI volume there, so left out"
    by_name = {each.name: each for each in catalogue.scans}
    assert set(by_name) == {f"A/{name}.nii.gz" for name in ("good", "small", "empty", "cut")}
    with pytest.raises(Unreadable, match="the mask has 8 × 6 × 4 voxels, its image 8 × 6 × 5"):
        catalogue.read(by_name["A/small.nii.gz"])
    with pytest.raises(Unreadable, match="the mask is empty"):
        catalogue.read(by_name["A/empty.nii.gz"])
    with pytest.raises(Unreadable, match="it is no whole NIfTI file"):
        catalogue.read(by_name["A/cut.nii.gz"])
    assert len(catalogue.read(by_name["A/good.nii.gz"]).rows) == 3


def test_volumes_without_any_mask_and_masks_without_any_volume(tmp_path: Path) -> None:
    volumes(tmp_path / "one", "A/1.nii", "B/2.nii")
    assert problems(look(tmp_path / "one")) == {"A/1.nii": "has no mask", "B/2.nii": "has no mask"}
    volumes(tmp_path / "other", "A/1_seg.nii")
    assert problems(look(tmp_path / "other")) == {"A/1_seg.nii": "is a mask without an image"}


def test_patients_by_pattern(tmp_path: Path) -> None:
    volumes(tmp_path, "A/p1_visit1.nii", "A/p1_visit2.nii", "A/other.nii")
    volumes(tmp_path, "A/p1_visit1_seg.nii", "A/p1_visit2_seg.nii", "A/other_seg.nii", content=GLAND)
    catalogue = look(tmp_path, patient_pattern=r"(\w/p\d)_")
    assert [each.patient for each in catalogue.scans] == ["A/p1", "A/p1"]
    assert catalogue.read(catalogue.scans[0]).rows[0].patient == "A/p1"
    assert catalogue.notes == ("split 50/25/25 as in the paper's text",)
    assert problems(catalogue) == {"A/other.nii": "cohort.patient_pattern finds no patient in its name"}
    with pytest.raises(InputError, match="0 groups"):
        look(tmp_path, patient_pattern="p1")


def test_lists_beside_the_sites(tmp_path: Path) -> None:
    names = [f"HK/Image/Case0{case}/{number}.png" for case in range(3) for number in (7, 12)]
    slices(tmp_path, *names)
    slices(
        tmp_path,
        *(name.replace("/Image/", "/Mask/") for name in names),
        content=(PIXELS > 30) * np.uint8(255),
    )
    write(
        tmp_path / "HK.json",
        training=listed(*names[:2]),
        validation=listed(*names[2:4]),
        testing=listed(*names[4:]),
    )
    catalogue = look(tmp_path)
    assert {each.name: (each.hospital, each.patient, each.part) for each in catalogue.scans} == {
        name: ("HK", f"HK/{name.split('/')[2]}", part)
        for name, part in zip(names, ["train"] * 2 + ["validation"] * 2 + ["test"] * 2, strict=True)
    }
    assert [each.name for each in catalogue.scans] == sorted(names)
    assert catalogue.problems == ()
    assert catalogue.notes == ("parts as in the json lists",)
    assert look(tmp_path, shares=(0.6, 0.2, 0.2)).notes == ()
    assert catalogue.layout == "slices of 1 sites by json lists"
    assert catalogue.lists == (tmp_path / "HK.json",)
    pictures = catalogue.read(next(each for each in catalogue.scans if each.name == names[3]))
    np.testing.assert_array_equal(pictures.images, PIXELS[None, None])
    np.testing.assert_array_equal(pictures.targets, (PIXELS > 30)[None, None])
    (row,) = pictures.rows
    assert (row.name, row.features, row.size) == (names[3], {"slice": 12.0}, (6, 8))


@pytest.mark.parametrize("lists", [".", "lists", "datalists", "HK"])
@pytest.mark.parametrize("base", [".", "dataset_2D"])
def test_lists_and_images_in_folders(tmp_path: Path, lists: str, base: str) -> None:
    name = "HK/Image/Case00/3.png"
    slices(tmp_path / base, name, name.replace("/Image/", "/Mask/"))
    write(tmp_path / lists / "client_HK.json", testing=listed(name))
    (only,) = look(tmp_path).scans
    assert (only.name, only.hospital, only.patient, only.part) == (name, "HK", "HK/Case00", "test")
    assert only.files[0] == tmp_path / base / name


def test_paths_that_begin_at_the_list(tmp_path: Path) -> None:
    slices(tmp_path, "in/Image/Case00/3.png", "in/Mask/Case00/3.png")
    write(tmp_path / "in/HK.json", training=listed("./Image/Case00/3.png"))
    (only,) = look(tmp_path).scans
    assert (only.name, only.files[1]) == ("Image/Case00/3.png", tmp_path / "in/Mask/Case00/3.png")


def test_listed_volumes(tmp_path: Path) -> None:
    volumes(tmp_path, "HK/Image/Case00.nii.gz")
    volumes(tmp_path, "HK/Mask/Case00.nii.gz", content=GLAND)
    write(tmp_path / "HK.json", training=listed("HK/Image/Case00.nii.gz"))
    catalogue = look(tmp_path)
    (only,) = catalogue.scans
    assert (only.patient, only.part) == ("HK/Case00", "train")
    assert [row.features["slice"] for row in catalogue.read(only).rows] == [1, 2, 3]
    assert OWN_PATIENTS in catalogue.notes


@pytest.mark.parametrize("name", ["hk/Case00.nii.gz", "Case00.nii", "images/Case00.nii"])
def test_folders_of_sites_and_images_are_no_patients(tmp_path: Path, name: str) -> None:
    volumes(tmp_path, name, f"masks/{name}")
    write(tmp_path / "HK.json", training=[{"image": name, "label": f"masks/{name}"}])
    assert [each.patient for each in look(tmp_path).scans] == ["HK/Case00"]


def test_listed_slices_as_volumes_have_the_patient_of_their_folder(tmp_path: Path) -> None:
    names = [f"HK/Image/Case0{case}/00{number}.nii.gz" for case in range(2) for number in range(2)]
    volumes(tmp_path, *names, content=VOLUME[..., :1])
    volumes(tmp_path, *(name.replace("/Image/", "/Mask/") for name in names), content=GLAND[..., 1:2])
    write(tmp_path / "HK.json", training=listed(*names))
    catalogue = look(tmp_path)
    assert [each.patient for each in catalogue.scans] == ["HK/Case00"] * 2 + ["HK/Case01"] * 2
    assert catalogue.notes == ("parts as in the json lists",)
    assert len(catalogue.read(catalogue.scans[3]).rows) == 1


def test_slices_without_gland_are_left_out_where_asked(tmp_path: Path) -> None:
    slices(tmp_path, "A/Image/c/1.png", content=np.stack([PIXELS] * 3, axis=-1))
    slices(tmp_path, "A/Mask/c/1.png", content=PIXELS * 0)
    write(tmp_path / "A.json", training=listed("A/Image/c/1.png"))
    catalogue = look(tmp_path)
    pictures = catalogue.read(catalogue.scans[0])
    assert (pictures.rows, pictures.images.shape, pictures.targets.shape) == ((), (0, 1, 6, 8), (0, 1, 6, 8))
    every = look(tmp_path, with_mask_only=False)
    pictures = every.read(every.scans[0])
    assert (len(pictures.rows), pictures.images.shape) == (1, (1, 1, 6, 8))


def test_a_slice_without_a_number_has_no_position(tmp_path: Path) -> None:
    slices(
        tmp_path, "A/Image/c2/middle.png", "A/Mask/c2/middle.png", "A/Image/c2/s7b.png", "A/Mask/c2/s7b.png"
    )
    write(tmp_path / "A.json", training=listed("A/Image/c2/middle.png", "A/Image/c2/s7b.png"))
    catalogue = look(tmp_path)
    assert [catalogue.read(each).rows[0].features for each in catalogue.scans] == [{}, {"slice": 7.0}]


def test_every_problem_of_lists_is_named(tmp_path: Path) -> None:
    slices(tmp_path, "A/Image/c/1.png", "A/Mask/c/1.png", "A/Image/c/2.png", "A/Mask/c/3.png")
    slices(tmp_path, "A/Image/c/5.png", "A/Mask/c/5.png", content=PIXELS[:4])
    slices(tmp_path, "A/Mask/c/5.png", content=PIXELS)
    write(
        tmp_path / "A.json",
        training=listed("A/Image/c/1.png", "A/Image/c/2.png", "A/Image/c/5.png"),
        validation=listed("A/Image/c/3.png"),
        testing=listed("A/Image/c/1.png", "A/Image/d/4.png"),
    )
    catalogue = look(tmp_path)
    assert problems(catalogue) == {
        "A/Mask/c/2.png": "is in A.json (training), but there is no such file",
        "A/Image/c/3.png": "is in A.json (validation), but there is no such file",
        "A/Image/c/1.png": "is listed again in A.json (testing)",
        "A/Image/d/4.png": "is in A.json (testing), but there is no such file",
        "A/Mask/d/4.png": "is in A.json (testing), but there is no such file",
    }
    assert [each.name for each in catalogue.scans] == ["A/Image/c/1.png", "A/Image/c/5.png"]
    with pytest.raises(Unreadable, match="its mask has 6 × 8 pixels, the image 4 × 8"):
        catalogue.read(catalogue.scans[1])


def test_a_list_of_all_sites_is_left_out(tmp_path: Path) -> None:
    for site in "AB":
        slices(tmp_path, f"{site}/Image/c/1.png", f"{site}/Mask/c/1.png")
        write(tmp_path / f"lists/client_{site}.json", training=listed(f"{site}/Image/c/1.png"))
    write(tmp_path / "lists/client_All.json", training=listed("A/Image/c/1.png", "B/Image/c/1.png"))
    catalogue = look(tmp_path)
    assert [each.hospital for each in catalogue.scans] == ["A", "B"]
    assert catalogue.problems == ()
    assert "lists/client_All.json was left out: it repeats what the other lists hold" in catalogue.notes


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"training": [], "validation": []}, "testing is missing or no list"),
        ({"training": 3, "validation": [], "testing": []}, "training is missing or no list"),
        ({"training": [{"image": "x"}], "validation": [], "testing": []}, r"training\[0\] has no label"),
        ({"training": [], "validation": [{"label": "x"}], "testing": []}, r"validation\[0\] has no image"),
        ({"training": [], "validation": ["x"], "testing": []}, r"validation\[0\] has no image"),
    ],
)
def test_lists_with_missing_keys_are_refused(tmp_path: Path, content: Any, why: str) -> None:
    (tmp_path / "A.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"cohort\.path = .*A\.json: {why}; a list has training"):
        look(tmp_path)


def test_lists_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "A.json").write_text("{")
    with pytest.raises(InputError, match=r"A\.json: cannot be read as JSON .*; correct or remove it"):
        look(tmp_path)
    write(tmp_path / "A.json")
    write(tmp_path / "more/client_A.json")
    with pytest.raises(InputError, match=r"A\.json and more/client_A\.json are both lists of A; remove one"):
        look(tmp_path)


def test_other_json_files_do_not_matter(tmp_path: Path) -> None:
    volumes(tmp_path, "A/1.nii")
    volumes(tmp_path, "A/1_seg.nii", content=GLAND)
    (tmp_path / "A/1.json").write_text('{"EchoTime": 0.1}')  # as converters from DICOM write them
    (tmp_path / "names.json").write_text('["training"]')
    write(tmp_path / ".hidden/B.json", training=listed("x"))
    catalogue = look(tmp_path)
    assert (len(catalogue.scans), catalogue.lists) == (1, ())


def test_sites_that_are_empty_or_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volumes(tmp_path, "A/1.nii", "C/1.nii")
    volumes(tmp_path, "A/1_seg.nii", "C/1_seg.nii", content=GLAND)
    (tmp_path / "B/Image").mkdir(parents=True)
    close(monkeypatch, tmp_path / "C")
    catalogue = look(tmp_path)
    assert problems(catalogue) == {"C": "the folder cannot be read (Permission denied)"}
    assert catalogue.notes[0] == "B: no NIfTI volume there, so left out"
    slices(tmp_path, "A/Image/c/1.png", "A/Mask/c/1.png")
    write(tmp_path / "A.json", training=listed("A/Image/c/1.png"))  # a list of C may be in there
    assert problems(look(tmp_path)) == {"C": "the folder cannot be read (Permission denied)"}


def test_what_is_no_prostate_cohort(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither was found, but nothing; .*NIfTI.*SITE\.json"):
        look(tmp_path)
    slices(tmp_path, "A/Image/c/1.png")
    with pytest.raises(InputError, match="neither was found, but A; prostate data are"):
        look(tmp_path)
    volumes(tmp_path, "x.nii")
    with pytest.raises(
        InputError, match=r"but 1 NIfTI volumes elsewhere, such as x\.nii, A, x\.nii; prostate"
    ):
        look(tmp_path)
    with pytest.raises(InputError, match="a file, not a folder"):
        look(tmp_path / "x.nii")

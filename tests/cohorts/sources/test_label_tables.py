"""Classes in a csv beside the images, and folders that lie deeper than they are looked for."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
from cohort_files import problems, touch, write_csv

from silodp.cohorts.catalogue import Catalogue
from silodp.cohorts.inspection import recognise
from silodp.cohorts.sources.folder import Folder
from silodp.errors import InputError


def look(root: Path, **settings: Any) -> Catalogue:
    return Folder(path=str(root), **settings).scan(root)


@pytest.mark.parametrize("columns", ["file,label", "Image,Class", "filename,diagnosis", "image_id,target"])
def test_classes_of_a_csv_by_any_usual_names(tmp_path: Path, columns: str) -> None:
    touch(tmp_path, "ct/1.png", "ct/2.png", "3.png")
    write_csv(tmp_path / "labels.csv", columns, "ct/1.png,bleeding", "2.png, normal ", "3,bleeding")
    catalogue = look(tmp_path)
    assert (catalogue.classes, catalogue.target, catalogue.problems) == (("normal", "bleeding"), "class", ())
    assert {scan.name: scan.label for scan in catalogue.scans} == {"ct/1.png": 1, "ct/2.png": 0, "3.png": 1}
    assert catalogue.layout == "images that name no hospital; classes from csv files (labels.csv)"
    assert catalogue.lists == (tmp_path / "labels.csv",)


def test_hospitals_patients_and_features_of_a_csv(tmp_path: Path) -> None:
    touch(tmp_path, "1.png", "2.png")
    write_csv(
        tmp_path / "labels.csv",
        "image,label,patient,hospital,slice",
        "1.png,0,p1,Bern,12",
        "2.png,1,p2,Cork,",
    )
    catalogue = look(tmp_path)
    assert [(scan.patient, scan.hospital) for scan in catalogue.scans] == [("p1", "Bern"), ("p2", "Cork")]
    assert catalogue.layout.startswith("images in 2 hospitals; classes from")


def test_folders_are_hospitals_and_parts_where_the_csv_names_none(tmp_path: Path) -> None:
    touch(tmp_path, "train/A/1.png", "test/B/2.png")
    write_csv(tmp_path / "labels.csv", "file,label", "1.png,0", "2.png,1")
    assert {scan.name: (scan.hospital, scan.part) for scan in look(tmp_path).scans} == {
        "train/A/1.png": ("A", "train"),
        "test/B/2.png": ("B", "test"),
    }


def test_rows_and_images_that_do_not_fit_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/1.png", "2.png", "3.png", "4.png")
    write_csv(
        tmp_path / "labels.csv",
        "file,label",
        "2.png,x",
        "2.png,y",
        "3.png,",
        "9.png,x",
        ",x",
        "1.png,x",
        "a/1.png,y",
    )
    catalogue = look(tmp_path)
    assert problems(catalogue) == {
        "1.png": "is in labels.csv, but there is no such image, or more than one",
        "2.png": "has another class in labels.csv",
        "3.png": "has no class in labels.csv",
        "9.png": "is in labels.csv, but there is no such image, or more than one",
        "labels.csv": "has a row that names no file",
    }
    assert "3 images have no class in labels.csv and are left out" in catalogue.notes


def test_a_csv_is_recognised_without_a_word_about_other_kinds(tmp_path: Path) -> None:
    touch(tmp_path, "1.png", "2.png")
    write_csv(tmp_path / "labels.csv", "file,label", "1.png,0", "2.png,1")
    settings, _, doubts = recognise({"path": str(tmp_path)})
    assert (settings.kind, doubts) == ("folder", [])


def test_a_csv_beside_masks_is_no_list_of_classes(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.png", "masks/1.png")
    write_csv(tmp_path / "labels.csv", "file,label", "images/1.png,0")
    assert look(tmp_path).target == "mask"


def test_one_folder_too_high_is_noticed_with_the_path_to_give(tmp_path: Path) -> None:
    touch(tmp_path, "fundus/Bern/images/1.png", "fundus/Bern/masks/1.png", "fundus/Cork/images/2.png")
    with pytest.raises(InputError, match=r"one folder too high: .* give cohort\.path=.*/fundus$"):
        look(tmp_path)
    assert look(tmp_path / "fundus").target == "mask"


def test_a_csv_with_semicolons_is_read_as_one_with_commas(tmp_path: Path) -> None:
    touch(tmp_path, "1.png", "2.png")
    write_csv(tmp_path / "labels.csv", "file;label;age", "1.png;a, of a kind;40", "2.png;b;50")
    assert look(tmp_path).classes == ("a, of a kind", "b")


def test_a_csv_names_files_however_their_accents_are_written(tmp_path: Path) -> None:
    disk = unicodedata.normalize("NFD", "Köln.png")
    touch(tmp_path, disk, "2.png")
    write_csv(tmp_path / "labels.csv", "file,label", "Köln.png,ill", "2,well")
    catalogue = look(tmp_path)
    assert (catalogue.problems, {scan.name for scan in catalogue.scans}) == ((), {disk, "2.png"})


def test_a_csv_that_is_passed_over_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    touch(tmp_path, "1.png")
    write_csv(tmp_path / "labels.csv", "Bild,Klasse", "1.png,a")
    with pytest.raises(InputError, match=r"labels\.csv has the columns Bild, Klasse, and a csv of classes"):
        look(tmp_path)

"""RSNA-ICH in both forms in which people have it: what is found, what is read, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from cohort_files import close, hounsfield, problems, save, save_dicom, write_csv

from silodp.cohorts.catalogue import Catalogue
from silodp.cohorts.sources.rsna_ich import SUBTYPES, RsnaIch
from silodp.errors import InputError

KINDS = (*SUBTYPES, "any")
ROWS_HEADER = "ImageID,epidural,intraparenchymal,intraventricular,subarachnoid,subdural,healthy"


def kaggle_rows(image: str, *subtypes: str) -> list[str]:
    return [f"{image}_{kind},{int(kind in subtypes or (kind == 'any' and bool(subtypes)))}" for kind in KINDS]


def write_ct(path: Path, patient: str = "P1", height: float = 0.0) -> None:
    units = np.full((4, 6), 40, dtype=np.int16)
    units[0, 0] = -1000
    window = {"WindowCenter": 500, "WindowWidth": 4000}  # not for a head
    save_dicom(path, hounsfield(units, PatientID=patient, ImagePositionPatient=[0, 0, height], **window))


def write_png(path: Path) -> None:
    save(path.parent, path.name, np.full((4, 6, 3), 7, dtype=np.uint8))


def look(root: Path, **settings: object) -> Catalogue:
    return RsnaIch(path=str(root), **settings).scan(root)  # type: ignore[arg-type]


def refusal(root: Path) -> str:
    with pytest.raises(InputError) as caught:
        look(root)
    assert str(caught.value).startswith(f"cohort.path = {root}")
    return str(caught.value)


@pytest.fixture
def kaggle(tmp_path: Path) -> Path:
    """Three labelled images as Kaggle gives them, two without a label, and the sample submission."""
    write_csv(
        tmp_path / "stage_2_train.csv",
        "ID,Label",
        *kaggle_rows("ID_b", "subdural", "epidural"),
        *kaggle_rows("ID_a"),
        *kaggle_rows("ID_c", "subdural"),
    )
    write_csv(tmp_path / "stage_2_sample_submission.csv", "ID,Label", "ID_x_any,0.5")
    for number, image in enumerate("abc"):
        write_ct(tmp_path / "stage_2_train" / f"ID_{image}.dcm", patient=f"P{number}", height=2.5 * number)
    for image in "xy":
        write_ct(tmp_path / "stage_2_test" / f"ID_{image}.dcm")
    return tmp_path


@pytest.fixture
def pngs(tmp_path: Path) -> Path:
    write_csv(
        tmp_path / "lists" / "df_binary25k.csv",
        ROWS_HEADER,
        "ID_a,0,0,0,0,0,1",
        "ID_b.png,1,0,0,0,1,0",
        "ID_c,0.0,0,0,0,1.0,0",
    )
    for image in "abc":
        write_png(tmp_path / "images" / image / f"ID_{image}.png")
    return tmp_path


def test_kaggle(kaggle: Path) -> None:
    found = look(kaggle)
    assert (found.kind, found.root, found.target) == ("rsna-ich", kaggle, "class")
    assert found.classes == ("healthy", "diseased")
    assert "stage_2_train.csv" in found.layout
    assert found.lists == (kaggle / "stage_2_train.csv",)
    assert [one.name for one in found.scans] == [f"stage_2_train/ID_{image}.dcm" for image in "abc"]
    assert [one.files for one in found.scans] == [(kaggle / one.name,) for one in found.scans]
    assert [one.label for one in found.scans] == [0, 1, 1]
    # Two images have a subdural bleed and one an epidural one, which is the rarer.
    assert [one.stratum for one in found.scans] == ["healthy", "epidural", "subdural"]
    assert {(one.hospital, one.patient, one.part) for one in found.scans} == {(None, None, None)}
    assert found.problems == ()
    assert found.notes == ("2 image files have no label and are left out",)


def test_kaggle_images_are_windows_of_a_head_and_name_the_patient(kaggle: Path) -> None:
    found = look(kaggle)
    pictures = found.read(found.scans[2])
    assert pictures.images.shape == (1, 3, 4, 6)
    assert pictures.images[0, :, 1, 1] == pytest.approx([0.5, 0.3, 840 / 2800])
    assert pictures.targets.tolist() == [1]
    (row,) = pictures.rows
    assert (row.patient, row.features) == ("P2", {"slice": 5.0})
    brain = look(kaggle, channels=1).read(found.scans[0]).images
    assert brain[0, :, 1, 1] == pytest.approx([0.5])  # the brain window, not the one in the file


def test_kaggle_somewhere_below_and_with_a_mark_at_its_beginning(kaggle: Path) -> None:
    table = kaggle / "one" / "two" / "labels.csv"
    table.parent.mkdir(parents=True)
    table.write_text((kaggle / "stage_2_train.csv").read_text(), encoding="utf-8-sig")
    (kaggle / "stage_2_train.csv").unlink()
    assert len(look(kaggle).scans) == 3
    deeper = kaggle / "one" / "two" / "three" / "labels.csv"
    deeper.parent.mkdir()
    table.rename(deeper)
    assert "no csv with labels" in refusal(kaggle)


def test_links_to_folders_are_followed(kaggle: Path) -> None:
    far = kaggle / ".images"
    (kaggle / "stage_2_train").rename(far)
    os.symlink(far, kaggle / "stage_2_train")
    os.symlink(kaggle, far / "back")
    found = look(kaggle)
    assert [one.name for one in found.scans] == [f"stage_2_train/ID_{image}.dcm" for image in "abc"]
    assert found.problems == ()
    os.symlink(far, kaggle / "train")  # the same files by another name are not several
    found = look(kaggle)
    assert (len(found.scans), found.problems) == (3, ())


def test_a_folder_of_images_that_is_a_link_out_of_the_root_is_refused_by_name(
    kaggle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    far = tmp_path_factory.mktemp("far") / "images"
    (kaggle / "stage_2_train").rename(far)
    os.symlink(far, kaggle / "stage_2_train")
    assert "; stage_2_train: it is a link out of the cohort's folder" in refusal(kaggle)


def test_a_closed_folder_is_a_problem(kaggle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close(monkeypatch, kaggle / "stage_2_test")
    (kaggle / "stage_2_train" / "ID_a.dcm").unlink()
    assert problems(look(kaggle)) == {
        "ID_a": "it has a label but no image file",
        "stage_2_test": "the folder cannot be read (Permission denied)",
    }


def test_repeated_rows_are_harmless(kaggle: Path) -> None:
    with (kaggle / "stage_2_train.csv").open("a") as file:
        file.write("\n".join([*kaggle_rows("ID_b", "subdural", "epidural"), "", ""]))
    found = look(kaggle)
    assert (len(found.scans), found.problems) == (3, ())


def test_wrong_labels_are_named_all_together(kaggle: Path) -> None:
    write_csv(
        kaggle / "stage_2_train.csv",
        "ID,Label",
        *kaggle_rows("ID_a"),
        "ID_b_subdural,0",
        *kaggle_rows("ID_b", "subdural"),
        *kaggle_rows("ID_c", "subdural")[1:-2],
        *kaggle_rows("ID_lost"),
        *(row.replace("any,1", "any,0") for row in kaggle_rows("ID_x", "subdural")),
        *(row.replace("epidural,0", "epidural,maybe") for row in kaggle_rows("ID_y")),
        "ID_z_cerebral,0",
        "ID_a_any",
        "any,0",
    )
    found = problems(look(kaggle))
    assert found == {
        "ID_b": "its labels contradict each other (subdural is 0 and 1)",
        "ID_c": "it has no label for some subtypes (epidural, subdural, any)",
        "ID_lost": "it has a label but no image file",
        "ID_x": "its labels contradict each other (any and the subtypes)",
        "ID_y": "a label is neither 0 nor 1 (epidural is 'maybe')",
        "ID_z_cerebral": "it is not the name of an image and a subtype (stage_2_train.csv, line 36)",
        "any": "it is not the name of an image and a subtype (stage_2_train.csv, line 38)",
        "stage_2_train.csv, line 37": "the line is cut off",
    }
    assert list(found) == sorted(found)
    assert [one.name for one in look(kaggle).scans] == ["stage_2_train/ID_a.dcm"]
    assert look(kaggle).notes == ()


def test_spaces_after_commas_are_harmless(kaggle: Path) -> None:
    rows = [*kaggle_rows("ID_a"), *kaggle_rows("ID_b", "subdural")]
    write_csv(kaggle / "stage_2_train.csv", "ID, Label", *(row.replace(",", ", ") for row in rows))
    found = look(kaggle)
    assert ([one.label for one in found.scans], found.problems) == ([0, 1], ())


def test_other_csv_files_do_not_matter(kaggle: Path) -> None:
    for name in ("train", "val", "test"):
        write_csv(kaggle / f"{name}.csv", "epoch,loss", "1,2")
    (kaggle / "log.csv").write_text("x" * 200_000)  # longer than a csv's field may be
    assert len(look(kaggle).scans) == 3


def test_a_csv_that_is_none_is_refused(kaggle: Path) -> None:
    with (kaggle / "stage_2_train.csv").open("a") as file:
        file.write("x" * 200_000)
    with pytest.raises(InputError, match=r"stage_2_train\.csv: line 20 cannot be read as csv"):
        look(kaggle)


@pytest.mark.parametrize("order", [("0", "1"), ("1", "0")])
def test_contradictions_are_found_in_either_order(kaggle: Path, order: tuple[str, str]) -> None:
    with (kaggle / "stage_2_train.csv").open("a") as file:
        file.write("".join(f"ID_a_subdural,{value}\n" for value in order))
    assert "ID_a" in problems(look(kaggle))
    assert len(look(kaggle).scans) == 2


def test_an_image_in_two_places_is_a_problem(kaggle: Path) -> None:
    write_ct(kaggle / "stage_1_train" / "ID_a.dcm")
    expected = "it has several image files (stage_1_train/ID_a.dcm, stage_2_train/ID_a.dcm)"
    assert problems(look(kaggle)) == {"ID_a": expected}


def test_labels_of_other_images_are_refused(kaggle: Path) -> None:
    write_csv(kaggle / "stage_2_train.csv", "ID,Label", *kaggle_rows("ID_q"))
    assert "stage_2_train.csv labels 1 images, but none of their files (ID_q.dcm or .png)" in refusal(kaggle)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    write_csv(tmp_path / "labels.csv", "image,bleeding", "a,1")
    said = refusal(tmp_path)
    assert "labels.csv has the columns image, bleeding; wanted are ID, Label or ImageID, epidural" in said
    (tmp_path / "labels.csv").write_text("")
    assert "labels.csv has the columns" in refusal(tmp_path)
    wanted = f"; wanted are ID, Label or {ROWS_HEADER.replace(',', ', ')}"
    for name in "abcd":
        write_csv(tmp_path / f"{name}.csv", "epoch,loss", "1,2")
    for header in ("ID,Lable", "ID;Label", "id,label", ROWS_HEADER.replace("ImageID", "Image")):
        write_csv(tmp_path / "labels.csv", header, "ID_a_any,1")
        said = refusal(tmp_path)
        assert f"{tmp_path}: labels.csv has the columns {header.replace(',', ', ')}; " in said
        assert said.endswith(wanted)
    for name in "abcd":
        (tmp_path / f"{name}.csv").unlink()
    (tmp_path / "labels.csv").unlink()
    assert "no csv with labels" in refusal(tmp_path)


def test_two_lists_of_labels_are_refused_until_one_is_given(kaggle: Path) -> None:
    write_csv(kaggle / "stage_2_train_cleaned.csv", "ID,Label", *kaggle_rows("ID_a"))
    said = refusal(kaggle)
    assert "stage_2_train.csv, stage_2_train_cleaned.csv could each be the list of labels" in said
    found = look(kaggle / "stage_2_train_cleaned.csv")
    assert (found.root, len(found.scans)) == (kaggle, 1)
    other = kaggle / "stage_2_train" / "ID_a.dcm"
    with pytest.raises(InputError, match="give the folder"):
        look(other)


def test_pngs(pngs: Path) -> None:
    found = look(pngs)
    assert [one.name for one in found.scans] == [f"images/{image}/ID_{image}.png" for image in "abc"]
    assert [one.label for one in found.scans] == [0, 1, 1]
    assert [one.stratum for one in found.scans] == ["healthy", "epidural", "subdural"]
    assert {one.part for one in found.scans} == {None}
    assert found.problems == ()
    assert found.notes == (
        "only slices are known: slices of one patient may fall into two hospitals or parts",
    )
    pictures = found.read(found.scans[1])
    assert pictures.images.shape == (1, 1, 4, 6)
    assert pictures.images.dtype == np.uint8
    assert int(pictures.images.max()) == 7
    assert pictures.targets.tolist() == [1]
    assert pictures.rows[0].patient is None


def test_patients_by_pattern(pngs: Path) -> None:
    found = look(pngs, patient_pattern=r"images/([ab])/")
    assert [(one.name, one.patient) for one in found.scans] == [
        ("images/a/ID_a.png", "a"),
        ("images/b/ID_b.png", "b"),
    ]
    what = "cohort.patient_pattern finds no patient in its name"
    assert [(each.name, each.what) for each in found.problems] == [("images/c/ID_c.png", what)]
    assert found.notes == ()
    assert found.read(found.scans[0]).rows[0].patient == "a"
    with pytest.raises(InputError, match=r"cohort\.patient_pattern = x: it has 0 groups"):
        look(pngs, patient_pattern="x")


def test_wrong_rows_are_named_all_together(pngs: Path) -> None:
    write_csv(pngs / "lists" / "df_binary25k.csv", ROWS_HEADER, 
        "ID_a,0,0,0,0,0,1", "ID_a,0,0,0,0,0,1", "ID_b,1,0,0,0,0,1", "ID_c,0,0,0,0,0,0", "ID_d,0,0,0,0,2,0",
        "ID_e,0,0,0,1,0,0", "ID_e,0,0,0,0,1,0", "ID_f,0,0,0,1,0,0", "ID_g,0,0",
    )  # fmt: skip
    for image in "de":
        write_png(pngs / f"ID_{image}.png")
    assert problems(look(pngs)) == {
        "ID_b": "it is labelled both healthy and with a subtype",
        "ID_c": "it is labelled neither healthy nor with a subtype",
        "ID_d": "a label is neither 0 nor 1 (subdural is '2')",
        "ID_e": "its labels contradict each other (in two rows)",
        "ID_f": "it has a label but no image file",
        "df_binary25k.csv, line 10": "the line is cut off",
    }
    assert [one.name for one in look(pngs).scans] == ["images/a/ID_a.png"]
    assert len(look(pngs).notes) == 1  # none that an image has no label: these have a wrong one


def test_columns_may_stand_in_any_order(pngs: Path) -> None:
    write_csv(
        pngs / "lists" / "df_binary25k.csv",
        ",healthy,ImageID,subarachnoid,subdural,epidural,intraparenchymal,intraventricular",
        "0,1,ID_a.png,0,0,0,0,0",
        "1,0,folder/ID_b.png,0,0,0,0,1",
    )
    found = look(pngs)
    assert [(one.label, one.stratum) for one in found.scans] == [(0, "healthy"), (1, "intraventricular")]


def test_names_with_dots(pngs: Path) -> None:
    write_png(pngs / "1.2.840.7.png")
    write_csv(pngs / "lists" / "df_binary25k.csv", ROWS_HEADER, "1.2.840.7,0,0,0,0,0,1")
    assert [one.name for one in look(pngs).scans] == ["1.2.840.7.png"]


@pytest.mark.parametrize("validation", ["validate", "validation", "val"])
def test_lists_of_parts(pngs: Path, validation: str) -> None:
    for name, row in (
        ("train", "ID_a,0,0,0,0,0,1"),
        (validation, "ID_b,1,0,0,0,1,0"),
        ("test", "ID_c,0,0,0,0,1,0"),
    ):
        write_csv(pngs / "lists" / f"{name}.csv", ROWS_HEADER, row)
    found = look(pngs)  # df_binary25k.csv, which holds all of them, is not needed
    assert [one.part for one in found.scans] == ["train", "validation", "test"]
    assert [path.name for path in found.lists] == ["train.csv", f"{validation}.csv", "test.csv"]


def test_an_image_in_two_parts_is_a_problem(pngs: Path) -> None:
    for name, rows in (
        ("train", ["ID_a,0,0,0,0,0,1"]),
        ("val", ["ID_b,1,0,0,0,1,0"]),
        ("test", ["ID_c,0,0,0,0,1,0", "ID_a,0,0,0,0,0,1"]),
    ):
        write_csv(pngs / f"{name}.csv", ROWS_HEADER, *rows)
    assert problems(look(pngs)) == {"ID_a": "it is in two parts (train and test)"}


def test_a_list_of_a_part_with_missing_columns_is_refused(pngs: Path) -> None:
    for name in ("train", "val", "test"):
        write_csv(pngs / f"{name}.csv", ROWS_HEADER, "ID_a,0,0,0,0,0,1")
    write_csv(pngs / "val.csv", "ImageID,healthy", "ID_b,1")
    assert "val.csv has the columns ImageID, healthy; wanted are" in refusal(pngs)


def test_two_parts_are_not_enough(pngs: Path) -> None:
    for name in ("train", "test"):
        write_csv(pngs / f"{name}.csv", ROWS_HEADER, "ID_a,0,0,0,0,0,1")
    assert "lists/df_binary25k.csv, test.csv, train.csv could each be the list" in refusal(pngs)


def test_each_list_prefers_its_own_kind_of_image(kaggle: Path) -> None:
    for image in "ab":
        write_png(kaggle / "small" / f"ID_{image}.png")
    assert {one.files[0].suffix for one in look(kaggle).scans} == {".dcm"}
    write_csv(kaggle / "rows.csv", ROWS_HEADER, "ID_a,0,0,0,0,0,1", "ID_b,1,0,0,0,1,0")
    assert {one.files[0].suffix for one in look(kaggle / "rows.csv").scans} == {".png"}
    for image in "ab":
        (kaggle / "small" / f"ID_{image}.png").unlink()
    found = look(kaggle / "rows.csv")  # only DICOM is left, and it tells the patient
    assert {one.files[0].suffix for one in found.scans} == {".dcm"}
    assert found.notes == ("3 image files have no label and are left out",)
    assert found.read(found.scans[0]).rows[0].patient == "P0"


def test_kaggle_labels_with_pngs(pngs: Path) -> None:
    (pngs / "lists" / "df_binary25k.csv").unlink()
    write_csv(pngs / "stage_2_train.csv", "ID,Label", *kaggle_rows("ID_a"), *kaggle_rows("ID_b", "epidural"))
    found = look(pngs)
    assert [one.label for one in found.scans] == [0, 1]
    assert len(found.notes) == 2

"""What `silodp data check` finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohort_files import save, touch, write_csv

from silodp.cohorts.inspection import Findings, inspect, recognise
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import prepare
from silodp.errors import InputError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, **arrays: Any) -> Path:
    rng = np.random.default_rng(0)
    plain = {
        "image": rng.integers(0, 256, (24, 16, 16), dtype=np.uint8),
        "label": np.arange(24) % 2,
        "patient": np.arange(24) // 2,
    }
    np.savez(path, **{name: array for name, array in (plain | arrays).items() if array is not None})
    return path


def found(path: Path, **settings: Any) -> Findings:
    return inspect({"path": str(path), **settings})[0]


def kind_of(path: Path) -> str:
    return recognise({"path": str(path)})[0].kind


def test_clean_files_are_clean(tmp_path: Path) -> None:
    findings = found(write(tmp_path / "a.npz"), hospitals=2)
    assert findings.is_clean
    assert findings.images == 24
    assert findings.classes == {"0": 12, "1": 12}
    assert findings.sizes == {(16, 16): 24}
    assert findings.settings.kind == "npz"
    assert findings.description is not None
    assert set(findings.description["hospitals"]) == {"hospital-01", "hospital-02"}
    said = findings.to_dict()
    assert (said["clean"], said["sizes"], said["problems"]) == (True, {"16x16": 24}, [])


def test_identical_images_are_found_within_and_across_hospitals(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (24, 16, 16), dtype=np.uint8)
    images[3], images[20] = images[2], images[5]
    named = np.repeat(["A", "B"], 12)
    findings = found(write(tmp_path / "a.npz", image=images, hospital=named))
    assert findings.duplicates == (("a.npz#2", "a.npz#3"),)
    assert findings.duplicates_across == (("a.npz#5", "a.npz#20"),)
    assert not findings.is_clean


def test_a_patient_in_two_hospitals_or_parts_is_a_leak(tmp_path: Path) -> None:
    named = np.repeat(["A", "B"], 12)
    patients = np.array([f"p{index // 2}" for index in range(24)])
    patients[12] = " P0"  # as for the partition, neither capitals nor spaces count
    findings = found(write(tmp_path / "a.npz", hospital=named, patient=patients))
    assert findings.leaks == ("patient p0 is in the hospitals A, B",)
    assert findings.undealt is not None
    assert "patients in more than one hospital" in findings.undealt
    assert findings.description is None
    assert found(tmp_path / "a.npz", patient_ids="local").leaks == ()
    parts = np.array(["train", "validation", "test"] * 8)
    findings = found(write(tmp_path / "a.npz", part=parts, patient=np.arange(24) // 12), hospitals=2)
    assert findings.leaks[0] == "patient 0 is in the parts train, validation, test"
    assert not findings.is_clean


def test_what_cannot_be_dealt_out_is_still_looked_at(tmp_path: Path) -> None:
    findings = found(write(tmp_path / "a.npz"), partition="equal")
    assert findings.undealt == (
        "cohort.hospitals: the files name no hospital; say how many to simulate, such as 6"
    )
    assert findings.classes == {"0": 12, "1": 12}
    assert not findings.is_clean


def test_hospitals_are_simulated_where_the_files_name_none_and_nobody_says_how_many(tmp_path: Path) -> None:
    findings = found(
        write(tmp_path / "a.npz")
    )  # 12 patients of two images; four each would be train, validation and test with few to train on
    assert findings.is_clean
    assert findings.settings.hospitals == 3
    assert "the files name no hospital: 3 are simulated; change that with --set hospitals=…" in findings.notes
    assert found(tmp_path / "a.npz", hospitals=2).settings.hospitals == 2


def test_an_array_of_objects_is_one_sentence_whatever_kinds_were_tried(tmp_path: Path) -> None:
    write(tmp_path / "a.npz", label=np.array(["ill", "well"] * 12, dtype=object))
    with pytest.raises(InputError, match=r"a\.npz: the array label has Python objects.*label\.astype\(str\)"):
        found(tmp_path / "a.npz")


def test_masks_are_measured_by_hospital_and_enlarging_is_said(tmp_path: Path) -> None:
    masks = np.zeros((24, 16, 16), np.uint8)
    masks[:12, :8], masks[12:, :4] = 1, 1
    path = write(tmp_path / "a.npz", label=None, mask=masks, hospital=np.repeat(["A", "B"], 12))
    findings = found(path)
    assert findings.mask_areas == {"A": {"1": 0.5}, "B": {"1": 0.25}}
    assert findings.mask_values == {"": [0, 1]}
    assert not any("enlarged" in note for note in findings.notes)
    assert "24 images are enlarged to 32 × 32" in " ".join(found(path, image_size=32).notes)


def test_every_problem_is_named_and_with_skip_unreadable_what_is_left_is_clean(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((24, 16, 16))
    images[3] = 0.5
    images[7, 2, 2] = np.nan
    path = write(tmp_path / "a.npz", image=images)
    findings = found(path, hospitals=2)
    assert [str(problem) for problem in findings.problems] == [
        "a.npz#3: it is constant",
        "a.npz#7: it has NaN or infinite values",
    ]
    assert findings.images == 22
    assert not findings.is_clean
    assert found(path, hospitals=2, skip_unreadable=True).is_clean


def test_kinds_are_recognised(tmp_path: Path) -> None:
    write(tmp_path / "a.npz")
    assert kind_of(tmp_path / "a.npz") == "npz"
    given = {"images": np.zeros((2, 16, 16)), "labels": np.arange(2)[:, None]}
    parts = ("train", "val", "test")
    np.savez(tmp_path / "b.npz", **{f"{part}_{name}": given[name] for part in parts for name in given})
    assert kind_of(tmp_path / "b.npz") == "medmnist"
    touch(tmp_path / "folder/Aarhus", "healthy/1.png", "sick/2.png")
    assert kind_of(tmp_path / "folder") == "folder"
    header = "ImageID,epidural,intraparenchymal,intraventricular,subarachnoid,subdural,healthy"
    write_csv(tmp_path / "folder/labels.csv", header, "1,0,0,0,0,0,1")
    assert kind_of(tmp_path / "folder") == "rsna-ich"
    prepare(CohortSettings.of(kind="npz", path=str(tmp_path / "a.npz")), tmp_path / "out")
    assert kind_of(tmp_path / "out") == "prepared"


def test_a_csv_that_cannot_be_used_is_told_and_one_class_cannot_be_trained_on(tmp_path: Path) -> None:
    for number in range(6):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16), dtype=np.uint8)
        save(tmp_path / "kaggle/stage_2_train", f"ID_{number}.png", pixels)
    (tmp_path / "kaggle/stage_2_train.csv").write_text("ID,Lable\nID_1_any,0\n")
    findings = found(tmp_path / "kaggle", hospitals=2)
    assert findings.settings.kind == "folder"
    assert findings.undealt is not None
    assert "a classifier needs at least two classes" in findings.undealt
    assert any("stage_2_train.csv has the columns ID, Lable" in note for note in findings.notes)
    assert not findings.is_clean


def test_images_beside_masks_are_a_folder_whatever_they_show(tmp_path: Path) -> None:
    touch(tmp_path / "liver/A", "images/1.nii.gz", "labels/1.nii.gz")
    assert kind_of(tmp_path / "liver") == "folder"


def test_when_nothing_can_be_used_all_is_named(tmp_path: Path) -> None:
    touch(tmp_path / "files", *(f"{name}/{number}.png" for name in "ab" for number in range(3)))
    findings = found(tmp_path / "files", hospitals=2)
    assert len(findings.problems) == 6
    assert findings.images == 0
    assert findings.classes == {"a": 0, "b": 0}
    assert not findings.is_clean


def test_a_kind_that_reads_no_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cohort\.kind = synthetic-mri: it reads no files; choose prepared"):
        inspect({"kind": "synthetic-mri", "path": str(tmp_path)})


def test_nothing_known_says_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing is there"):
        kind_of(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        InputError, match=r"nothing that silodp knows; tried prostate: .*; rsna-ich: .*; folder: "
    ):
        kind_of(tmp_path / "empty")
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(InputError, match="cannot be read as an npz file"):
        kind_of(tmp_path / "text.npz")

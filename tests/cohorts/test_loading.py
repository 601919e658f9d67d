"""From files to a cohort: real files of every kind through `load_cohort`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohort_files import hounsfield, save, save_dicom, write_csv

import silodp
from silodp.cohorts import load_cohort
from silodp.cohorts.description import describe
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import prepare
from silodp.cohorts.store import open_store
from silodp.errors import InputError
from silodp.runs.statement import read_statement


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_npz(path: Path, *, patients: int = 18, slices: int = 4, masks: bool = False, **more: Any) -> Path:
    """Bright squares, a few slices a patient; the label is whether the square is there."""
    rng = np.random.default_rng(0)
    count = patients * slices
    labels = np.arange(count) % 2
    images = rng.integers(0, 100, (count, 16, 16), dtype=np.uint8)
    drawn = np.zeros_like(images)
    drawn[:, 4:10, 5:11] = 1
    images[labels == 1] += 150 * drawn[labels == 1]
    arrays: dict[str, Any] = {
        "image": images,
        "patient": np.repeat(np.arange(patients), slices),
        "slice": np.tile(np.arange(slices), patients),
    }
    arrays |= {"mask": drawn * labels[:, None, None]} if masks else {"label": labels}
    np.savez(path, **arrays | more)
    return path


def settings(path: Path, /, **more: Any) -> CohortSettings:
    return CohortSettings.of(**{"kind": "npz", "path": str(path), "hospitals": 3} | more)


def write_folder(root: Path, count: int = 6) -> Path:
    rng = np.random.default_rng(0)
    for hospital in ("Aarhus", "Bern"):
        for number, name in enumerate(("healthy", "sick")):
            for image in range(count):
                pixels = rng.integers(0, 100 + 100 * number, (20, 20), dtype=np.uint8)
                save(root, f"{hospital}/{name}/{hospital}-{name}-p{image}.png", pixels)
    return root


def test_every_image_is_in_one_place_and_is_the_one_in_the_file(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    cohort = load_cohort(settings(path)).check()
    assert [hospital.name for hospital in cohort.hospitals] == ["hospital-01", "hospital-02", "hospital-03"]
    with np.load(path) as file:
        images, labels, patients = file["image"], file["label"], file["patient"]
    seen: dict[str, tuple[str, str]] = {}
    owner: dict[int, tuple[str, str]] = {}
    for hospital in cohort.hospitals:
        for part, examples in hospital.parts.items():
            names = cohort.about["members"][hospital.name][part]
            assert len(names) == len(examples)
            for name, image, label in zip(names, examples.images, examples.targets, strict=True):
                number = int(name.partition("#")[2])
                assert np.array_equal(image[0], images[number])
                assert label == labels[number]
                assert name not in seen
                seen[name] = (hospital.name, part)
                assert owner.setdefault(patients[number], (hospital.name, part)) == (hospital.name, part)
        assert hospital.train.images.is_contiguous()  # batches are sliced out of it
    assert len(seen) == 72


def test_a_cohort_is_held_to_the_classes_that_were_agreed_on(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", label=np.arange(72) % 3)
    assert load_cohort(settings(path, classes=3)).hospitals
    assert load_cohort(settings(path, classes=5)).hospitals
    with pytest.raises(InputError, match=r"class 2, but cohort\.classes = 2, so that classes are 0 to 1"):
        load_cohort(settings(path, classes=2))


def test_the_same_settings_give_the_same_cohort(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    first, again, other = (load_cohort(settings(path, seed=seed)) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def test_the_cohort_says_where_it_comes_from(tmp_path: Path) -> None:
    cohort = load_cohort(settings(write_npz(tmp_path / "a.npz")))
    said = describe(cohort)
    assert said["simulated"] is True
    assert said["patients"] == 18
    assert (said["channels"], said["size"], said["storage"]) == (1, [16, 16], "uint8")
    assert set(said["files"]) == {"a.npz"}
    assert len(said["files"]["a.npz"]) == 64
    assert sum(hospital["train"]["images"] for hospital in said["hospitals"].values()) > 36
    for hospital in said["hospitals"].values():
        assert sum(hospital["test"]["classes"].values()) == hospital["test"]["images"]
    assert said["position_auc"] == 1.0  # by construction: odd slices have it


def test_masks_and_their_counts(tmp_path: Path) -> None:
    cohort = load_cohort(settings(write_npz(tmp_path / "a.npz", masks=True), storage="float16"))
    assert cohort.check().hospitals[0].train.targets.ndim == 4
    said = describe(cohort)
    assert said["target"] == "mask"
    assert said["storage"] == "float16"
    train = said["hospitals"]["hospital-01"]["train"]
    assert train["classes"] == {"1": train["images"] // 2}
    assert said["position_auc"] is None


def test_hospitals_that_the_files_name_are_kept(tmp_path: Path) -> None:
    cohort = load_cohort(
        CohortSettings.of(kind="folder", path=str(write_folder(tmp_path / "f")), image_size=16)
    )
    assert [hospital.name for hospital in cohort.hospitals] == ["Aarhus", "Bern"]
    assert cohort.about["simulated"] is False
    assert describe(cohort)["classes"] == ["healthy", "sick"]
    for hospital in cohort.hospitals:
        for part, names in cohort.about["members"][hospital.name].items():
            assert all(name.startswith(hospital.name) for name in names), part


def write_rsna(root: Path, patients: int = 15) -> Path:
    """Kaggle's layout: two slices a patient, every second patient with a subdural haemorrhage."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(2 * patients):
        bleeds = number // 2 % 2
        pixels = rng.integers(20, 40, (32, 32)).astype(np.int16)
        pixels[10:14, 10:14] += 40 * bleeds
        tags = {"PatientID": f"ID_patient{number // 2}", "WindowCenter": 40, "WindowWidth": 80}
        save_dicom(root / f"stage_2_train/ID_{number:04d}.dcm", hounsfield(pixels, **tags))
        for kind in ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", "any"):
            rows.append(f"ID_{number:04d}_{kind},{int(bleeds and kind in ('subdural', 'any'))}")
    write_csv(root / "stage_2_train.csv", "ID,Label", *rows)
    return root


def test_rsna_slices_in_three_windows_by_patient(tmp_path: Path) -> None:
    root = write_rsna(tmp_path / "rsna")
    wanted = CohortSettings.of(kind="rsna-ich", path=str(root), hospitals=3, image_size=32)
    cohort = load_cohort(wanted).check()
    assert describe(cohort)["images"] == 30
    assert cohort.about["patients"] == 15
    owner: dict[int, tuple[str, str]] = {}
    for hospital in cohort.hospitals:
        for part, examples in hospital.parts.items():
            names = cohort.about["members"][hospital.name][part]
            for name, image, label in zip(names, examples.images, examples.targets, strict=True):
                number = int(Path(name).stem.removeprefix("ID_"))
                assert label == number // 2 % 2
                assert owner.setdefault(number // 2, (hospital.name, part)) == (hospital.name, part)
                # 20…39 HU: (x − 40)/80 + 0.5 in the brain window, (x − 600)/2800 + 0.5 in the bone window
                assert 63 <= int(image[0, 0, 0]) <= 125
                assert 74 <= int(image[2, 0, 0]) <= 77
    assert len(owner) == 15
    (root / "stage_2_train/ID_0003.dcm").write_bytes(b"cut off")
    (root / "stage_2_train/ID_0004.dcm").unlink()
    with pytest.raises(InputError, match="2 things cannot be used") as refused:
        load_cohort(wanted)
    assert "ID_0003" in str(refused.value)
    assert "ID_0004" in str(refused.value)


def write_volumes(root: Path, patients: int = 12) -> Path:
    """Two sites with volumes of ten slices, six of them with gland."""
    rng = np.random.default_rng(0)
    for site in ("RUNMC", "BIDMC"):
        for number in range(patients):
            mask = np.zeros((24, 24, 10), np.uint8)
            mask[8:16, 8:16, 2:8] = 1
            volume = rng.normal(100, 10, mask.shape) + 60 * mask
            for name, values in ((f"Case{number:02d}", volume), (f"Case{number:02d}_segmentation", mask)):
                save(root, f"{site}/{name}.nii.gz", values, np.diag([1, 1, 3, 1]))
    return root


def test_prostate_volumes_by_patient_as_in_the_papers_text(tmp_path: Path) -> None:
    root = write_volumes(tmp_path / "prostate")
    cohort = load_cohort(CohortSettings.of(kind="prostate", path=str(root))).check()
    assert [hospital.name for hospital in cohort.hospitals] == ["BIDMC", "RUNMC"]
    for hospital in cohort.hospitals:
        assert [len(part) for part in hospital.parts.values()] == [36, 18, 18]  # 6, 3 and 3 patients
        assert hospital.train.images.shape[1:] == (1, 256, 256)
        assert bool(hospital.train.targets.flatten(1).any(1).all())  # slices with gland
        inside = hospital.train.images[hospital.train.targets == 1].float().mean()
        assert inside > hospital.train.images[hospital.train.targets == 0].float().mean() + 50


def write_lists(root: Path) -> Path:
    """2D slices of two sites with json lists; three patients for training, one each for the others."""
    rng = np.random.default_rng(0)
    for site in ("I2CVB", "MSD"):
        lists: dict[str, list[dict[str, str]]] = {"training": [], "validation": [], "testing": []}
        for number, part in enumerate(("training", "training", "training", "validation", "testing")):
            for number_of_slice in range(4):
                image, mask = (
                    f"{site}/{kind}/case_{number}/{number_of_slice}.png" for kind in ("Image", "Mask")
                )
                save(root, image, rng.integers(0, 256, (20, 20), dtype=np.uint8))
                save(root, mask, np.pad(np.full((4, 4), 255, np.uint8), ((5, 11), (5, 11))))
                lists[part].append({"image": image, "label": mask})
        (root / f"{site}.json").write_text(json.dumps(lists))
    return root


def test_prostate_lists_are_kept_and_torn_patients_refused(tmp_path: Path) -> None:
    root = write_lists(tmp_path / "prostate")
    wanted = CohortSettings.of(kind="prostate", path=str(root), image_size=32)
    cohort = load_cohort(wanted)
    assert [hospital.name for hospital in cohort.hospitals] == ["I2CVB", "MSD"]
    assert [len(part) for part in cohort.hospitals[0].parts.values()] == [12, 4, 4]
    lists = json.loads((root / "MSD.json").read_text())
    lists["testing"].append(lists["training"].pop())
    (root / "MSD.json").write_text(json.dumps(lists))
    with pytest.raises(InputError, match=r"patients in more than one part: 1 .*torn_patients=keep"):
        load_cohort(wanted)
    kept = load_cohort(wanted.model_copy(update={"torn_patients": "keep"}))
    assert [len(part) for part in kept.hospitals[1].parts.values()] == [11, 4, 5]
    assert any("too good" in note for note in kept.about["notes"])


def test_a_list_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    """Whoever wrote the list would choose which of the hospital's other files are trained on."""
    root = write_lists(tmp_path / "prostate")
    (tmp_path / "other.png").write_bytes((root / "MSD/Image/case_0/0.png").read_bytes())
    lists = json.loads((root / "MSD.json").read_text())
    lists["training"][0]["image"] = "../other.png"
    (root / "MSD.json").write_text(json.dumps(lists))
    with pytest.raises(InputError, match=r"other\.png: it is a link out of the cohort's folder"):
        load_cohort(CohortSettings.of(kind="prostate", path=str(root), image_size=32))


def test_bad_files_are_refused_all_together_unless_they_may_be_left_out(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "f")
    (root / "Bern/sick/Bern-sick-p0.png").write_bytes(b"no picture")
    save(root, "Aarhus/healthy/blank.png", np.full((20, 20), 9, np.uint8))
    wanted = settings(root, kind="folder", hospitals=None, image_size=16)
    with pytest.raises(InputError) as refused:
        load_cohort(wanted)
    text = str(refused.value)
    assert "2 things cannot be used" in text
    assert "Bern/sick/Bern-sick-p0.png: " in text
    assert "Aarhus/healthy/blank.png: it is constant" in text
    assert "cohort.skip_unreadable=true" in text
    cohort = load_cohort(wanted.model_copy(update={"skip_unreadable": True}))
    assert describe(cohort)["images"] == 23
    assert len(cohort.about["left_out"]) == 2


def test_a_sample_is_drawn_before_anything_is_decoded(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "f", count=12)
    seen: list[tuple[int, int]] = []
    cohort = load_cohort(
        settings(root, kind="folder", hospitals=None, image_size=16, sample=24),
        lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (24, 24)
    assert any(note.startswith("drawn 24 of 48 files") for note in cohort.about["notes"])
    counts = describe(cohort)["hospitals"].values()
    classes = [part["classes"] for hospital in counts for part in hospital.values()]
    assert sum(each["healthy"] for each in classes) == sum(each["sick"] for each in classes) == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": None}, "cohort.path: cohort.kind = npz reads files; say where"),
        ({"path": "nowhere.npz"}, "cohort.path = nowhere.npz: nothing is there"),
        ({"hospitals": None}, "cohort.hospitals: the files name no hospital; say how many"),
        ({"hospitals": 40}, "cohort.hospitals = 40: each of 40 hospitals needs 3 of 18 patients"),
        ({"kind": "synthetic-mri"}, "not a setting of cohort.kind = synthetic-mri"),
        ({"kind": "prepared"}, "not a complete store"),
        ({"kind": "medmnist"}, "train_images, train_labels"),
        *(
            (change, r"not a setting of cohort\.kind = npz, which has .*; leave it out")
            for change in ({"sample": 10}, {"patient_pattern": "(p)"}, {"with_mask_only": True})
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_cohort(settings(write_npz(tmp_path / "a.npz"), **changes))


def test_a_position_that_is_no_number_is_no_position(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", slice=np.array(["top"] * 72))
    assert load_cohort(settings(path)).about["position_auc"] is None


def test_what_was_left_out_where_it_was_prepared_is_not_asked_again(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "f")
    (root / "Bern/sick/Bern-sick-p0.png").write_bytes(b"no picture")
    wanted = settings(root, kind="folder", hospitals=None, image_size=16, skip_unreadable=True)
    (tmp_path / "out").mkdir(mode=0o755)
    prepare(wanted, tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    cohort = load_cohort(CohortSettings.of(kind="prepared", path=str(tmp_path / "out")))
    assert len(cohort.about["left_out"]) == 1


def test_prepared_slices_keep_the_number_of_hospitals_of_their_kind(tmp_path: Path) -> None:
    root = write_rsna(tmp_path / "rsna", patients=70)
    prepare(CohortSettings.of(kind="rsna-ich", path=str(root), image_size=16), tmp_path / "out")
    assert len(load_cohort(CohortSettings.of(kind="prepared", path=str(tmp_path / "out"))).hospitals) == 20


def test_prepared_elsewhere_is_the_same_cohort(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz")
    first = load_cohort(settings(path, image_size=32))
    prepare(settings(path, image_size=32), tmp_path / "out")
    path.unlink()
    second = load_cohort(settings(tmp_path / "out", kind="prepared"))
    assert first.fingerprint() == second.fingerprint()
    assert second.about["files"] == first.about["files"]
    with pytest.raises(
        InputError, match=r"cohort.image_size = 64: .* was prepared with 32; set cohort.image_size=32"
    ):
        load_cohort(settings(tmp_path / "out", kind="prepared", image_size=64))
    with pytest.raises(InputError, match="exists already; give a new folder"):
        prepare(settings(tmp_path / "out"), tmp_path / "out")


def test_preparing_goes_on_after_a_kill(tmp_path: Path) -> None:
    path, out = write_npz(tmp_path / "a.npz"), tmp_path / "out"
    out.mkdir()
    (out / "images.bin").write_bytes(b"half a picture")
    prepare(settings(path), out)
    assert len(open_store(out).rows) == 72


def test_preparing_refuses_what_cannot_be_used(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "f")
    (root / "Bern/sick/Bern-sick-p0.png").write_bytes(b"no picture")
    wanted = settings(root, kind="folder", hospitals=None, image_size=16)
    with pytest.raises(InputError, match="1 thing cannot be used"):
        prepare(wanted, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    prepare(wanted.model_copy(update={"skip_unreadable": True}), tmp_path / "out")


def test_a_run_on_files_writes_them_down_and_resumes_on_the_same_ones_only(
    tmp_path: Path, experiment: silodp.Experiment
) -> None:
    path = write_npz(tmp_path / "a.npz", masks=True)
    cohort = {"kind": "npz", "path": str(path), "hospitals": 3}
    wanted = experiment.build(experiment.model_dump(exclude_none=True), {"cohort": cohort, "rounds": 1})
    result = silodp.train(wanted, out=tmp_path / "run")
    said = json.loads((tmp_path / "run/cohort.json").read_text())
    assert said["images"] == 72
    assert said["files"]["a.npz"]
    assert result.summary["cohort"]["simulated"] is True
    assert result.summary["cohort"]["hospitals"] == 3
    text = (tmp_path / "run/experiment.toml").read_text()
    assert f'path = "{path}"' in text
    assert 'partition = "equal"' in text
    assert "real hospitals: those of this run are simulated" in result.summary["not_covered_by_epsilon"]
    assert read_statement(tmp_path / "run").to_dict()["simulated"] is True

    silodp.resume(tmp_path / "run")
    write_npz(path, masks=True, patients=20)
    with pytest.raises(InputError, match="its checkpoint belongs to another cohort"):
        silodp.resume(tmp_path / "run")


def test_a_relative_path_is_written_down_whole(
    tmp_path: Path, experiment: silodp.Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(tmp_path / "a.npz", masks=True)
    wanted = experiment.change(cohort={"kind": "npz", "path": "a.npz", "hospitals": 3}, rounds=1)
    assert wanted.resolve(3, 1).cohort.path == str(tmp_path / "a.npz")

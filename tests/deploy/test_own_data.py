"""A hospital's own files, in every shape that they may have, for an experiment that the others share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import command_line, succeed
from discs_run import discs, write_discs
from network import Federation
from PIL import Image

from silodp import Cohort, Experiment, InputError, train
from silodp.deploy.config import SiteCohort, SiteSettings
from silodp.deploy.own_data import hospital_in_form_of, loader
from silodp.facts import facts_of

ASKED = Experiment.build({"cohort": {"kind": "deployed", "image_size": 32}})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def site(**cohort: Any) -> SiteSettings:
    return SiteSettings(name="Bern", superlink="127.0.0.1:1", cohort=SiteCohort(**cohort))


def write_npz(place: Path, **more: Any) -> Path:
    images, masks = discs(40, np.random.default_rng(0))
    np.savez(place, image=images, mask=masks, patient=np.arange(40), **more)
    return place


@pytest.mark.parametrize("shape", ["folder", "npz"])
def test_files_that_name_no_hospital_are_one(shape: str, tmp_path: Path) -> None:
    if shape == "folder":
        write_discs(tmp_path / "data", *discs(40, np.random.default_rng(0)))
        place = tmp_path / "data"
    else:
        place = write_npz(tmp_path / "data.npz")
    for settings, data in ((site(), place), (site(path=str(place)), None), (site(kind=shape), place)):
        found = loader(settings, tmp_path, data)(ASKED)
        assert {part: len(one) for part, one in found.parts.items()} == {
            "train": 24, "validation": 8, "test": 8
        }  # fmt: skip


def test_of_files_that_name_hospitals_the_site_is_one(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "data.npz", hospital=np.array(["Bern", "Cork"])[np.arange(40) % 2])
    assert len(loader(site(hospital="Bern"), tmp_path, data)(ASKED).train) == 12
    for settings, words in ((site(), "the files name 2 hospitals"), (site(hospital="Oslo"), "= Oslo")):
        with pytest.raises(InputError, match=rf"cohort\.hospital.*{words}"):
            loader(settings, tmp_path, data)(ASKED)


def test_a_class_beyond_those_that_were_agreed_on_is_refused_at_the_hospital(tmp_path: Path) -> None:
    """The network has no output for it. That a hospital shows fewer of them is no mistake."""
    images, _ = discs(40, np.random.default_rng(0))
    np.savez(tmp_path / "data.npz", image=images, label=np.arange(40) % 3, patient=np.arange(40))
    load = loader(site(), tmp_path, tmp_path / "data.npz")
    assert (
        len(load(ASKED.change(task="classification", model={"kind": "resnet"}, cohort__classes=4)).train)
        == 24
    )
    with pytest.raises(InputError, match=r"class 2, but cohort\.classes = 2"):
        load(ASKED.change(task="classification", model={"kind": "resnet"}, cohort__classes=2))


def classifying(**changes: Any) -> Experiment:
    return ASKED.change(task="classification", model={"kind": "resnet"}, **changes)


def test_labels_that_are_numbers_are_those_that_were_agreed_on(tmp_path: Path) -> None:
    """A hospital without class 1 must not teach class 2 under its number."""
    images, _ = discs(40, np.random.default_rng(0))
    np.savez(tmp_path / "data.npz", image=images, label=np.arange(40) % 2 * 2, patient=np.arange(40))
    load = loader(site(), tmp_path, tmp_path / "data.npz")
    found = load(classifying(cohort__classes=3))
    assert set(found.train.targets.tolist()) == {0, 2}
    assert facts_of(found, classifying(cohort__classes=3)).classes == ()
    with pytest.raises(InputError, match=r"cohort\.classes: the labels are 0, 2; the experiment must set"):
        load(classifying())


def write_classes(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        for number, image in enumerate(discs(20, np.random.default_rng(len(name)))[0]):
            Image.fromarray(image).save(folder / name / f"{number}.png")
    return folder


def test_names_of_classes_are_told_and_too_few_of_them_are_refused(tmp_path: Path) -> None:
    load = loader(site(), tmp_path, write_classes(tmp_path / "data", "none", "glioma"))
    assert facts_of(load(classifying()), classifying()).classes == ("none", "glioma")
    with pytest.raises(InputError, match=r"cohort\.classes = 3: the files show 2 \(none, glioma\), whose"):
        load(classifying(cohort__classes=3))


def test_names_that_only_look_like_numbers_are_names(tmp_path: Path) -> None:
    """01 and 02 are numbered 0 and 1 as any names are, whatever numbers were agreed on."""
    load = loader(site(), tmp_path, write_classes(tmp_path / "data", "01", "02"))
    assert facts_of(load(classifying()), classifying()).classes == ("01", "02")
    with pytest.raises(InputError, match=r"cohort\.classes = 3: the files show 2 \(01, 02\), whose"):
        load(classifying(cohort__classes=3))


def test_hospitals_whose_classes_have_other_names_do_not_train_together(tmp_path: Path) -> None:
    """Both have classes 0 and 1; to one of them 1 is a glioma, to the other a metastasis."""
    loaders = {
        name: loader(site(), tmp_path, write_classes(tmp_path / name, "none", second))
        for name, second in (("Aarhus", "glioma"), ("Bern", "glioma"), ("Cork", "metastasis"))
    }
    members = tuple(replace(load(classifying()), name=name) for name, load in loaders.items())
    together = Federation(tmp_path / "sites", cohort=Cohort("cohort", members))
    says = r"differ \(Bern: .* a class \(none, glioma\); Cork: .* a class \(none, metastasis\)"
    with pytest.raises(InputError, match=says):
        together.run(classifying(deployment__deadline=60.0, diagnostics=False))


def test_own_classes_of_other_names_than_the_models_are_refused(tmp_path: Path) -> None:
    files = write_classes(tmp_path / "data", "none", "glioma")
    own = {
        "task": "classification", "rounds": 1, "cohort.kind": "folder", "cohort.path": str(files),
        "cohort.hospitals": 2, "cohort.image_size": 32, "model.kind": "resnet", "model.features": 4,
        "intermediaries.rule": "fixed",
    }  # fmt: skip
    run = train(Experiment.build({}, own), out=tmp_path / "run", device="cpu").folder
    for second, alike in (("glioma", True), ("metastasis", False)):
        data = write_classes(tmp_path / second, "none", second)
        if alike:
            assert hospital_in_form_of(run, "mine", {"path": str(data)}).hospitals[0].name == "mine"
        else:
            with pytest.raises(InputError, match="the model knows none, glioma; name them alike"):
                hospital_in_form_of(run, "mine", {"path": str(data)})


def test_simulated_hospitals_only_where_they_are_asked_for(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "data.npz")
    assert len(loader(site(hospitals=4, hospital="hospital-02"), tmp_path, data)(ASKED).train) == 6


def test_a_hospital_of_a_deployment_fine_tunes_on_its_own_files(tmp_path: Path) -> None:
    """The run's folder has no images; the files need not name the hospital as the roster does."""
    members = {}
    for number, name in enumerate(("Aarhus", "Bern", "Cork")):
        images, masks = discs(20, np.random.default_rng(number))
        members[name] = (torch.from_numpy(images[:, None]), torch.from_numpy(masks[:, None]).float())
    asked = Experiment.build({"rounds": 1, "threads": 1, "model": {"features": 2, "levels": 1}}).change(
        privacy__entropy="seed", intermediaries={"rule": "fixed"}, clipping={"rule": "fixed"},
        deployment__deadline=60.0, diagnostics=False,
    )  # fmt: skip
    run = Federation(tmp_path / "sites", cohort=Cohort.from_tensors(members)).run(asked).folder
    done = command_line("personalise", run, "--hospital", "Bern")
    assert done.returncode == 2
    assert "--data: the run's images are at the hospitals" in done.stderr
    data = write_npz(tmp_path / "data.npz")
    options = "--epochs", 1, "--device", "cpu", "--out", tmp_path / "own"
    succeed("personalise", run, "--hospital", "Bern", "--data", data, *options)
    record = json.loads((tmp_path / "own/personal.json").read_text())
    assert (record["hospital"], record["test"]["personal"]["images"]) == ("Bern", 8)
    succeed("predict", tmp_path / "own", data, "--out", tmp_path / "masks", "--device", "cpu")

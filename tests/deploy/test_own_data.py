"""A hospital's own files, in every shape that they may have, for an experiment that the others share."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from discs_run import discs, write_discs

from silodp import Experiment, InputError
from silodp.deploy.config import SiteCohort, SiteSettings
from silodp.deploy.own_data import loader

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


def test_simulated_hospitals_only_where_they_are_asked_for(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "data.npz")
    assert len(loader(site(hospitals=4, hospital="hospital-02"), tmp_path, data)(ASKED).train) == 6

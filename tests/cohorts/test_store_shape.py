"""A prepared folder from strangers: what store.json says is checked before an array is mapped."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import prepare
from silodp.cohorts.store import open_store
from silodp.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 255, (6, 16, 16)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", image=images, label=np.arange(6) % 2)
    prepare(CohortSettings.of(kind="npz", path=str(tmp_path / "a.npz")), tmp_path / "prepared")
    return tmp_path / "prepared"


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    known = json.loads((folder / "store.json").read_text())
    edit(known)
    (folder / "store.json").write_text(json.dumps(known))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda known: known["images"].update(dtype="object"), r"images\.dtype: Input should be 'uint8'"),
        (lambda known: known["targets"].update(dtype="O"), r"targets\.dtype"),
        (lambda known: known["images"].update(dtype="int64"), "images of int64 with targets of int64"),
        (lambda known: known["images"].update(dtype="float16"), "images.bin has 1,536 bytes, not 3,072"),
        (lambda known: known["images"].update(shape=[6, 1, 16, 17]), "images.bin has 1,536 bytes, not 1,632"),
        (lambda known: known["images"].update(shape=[6, 1536]), r"cannot have the shape \[6, 1536\]"),
        (lambda known: known["images"].update(shape=[6, 2, 16, 8]), r"cannot have the shape \[6, 2, 16, 8\]"),
        (lambda known: known["images"].update(shape=[6, -1, 16, 16]), "greater than or equal to 0"),
        (lambda known: known["images"].update(shape=[10**30, 1, 16, 16]), r"images\.shape\.0"),
        (lambda known: known["images"].update(shape=[6.0, 1, 16, 16]), "valid integer"),
        (lambda known: known["targets"].update(shape=[True]), "valid integer"),
        (lambda known: known["rows"].pop(), "5 rows but 6 digests"),
        (lambda known: (known["rows"].pop(), known["digests"].pop()), "5 rows but 6 images and 6 targets"),
        (lambda known: known.update(images=None), "6 rows but no images"),
        (lambda known: known.update(target="mask"), "targets of images"),
        (lambda known: known.update(classes=["a"]), "classes beyond the 1 that it names"),
        (lambda known: known.update(kind="custom"), "kind"),
        (lambda known: known["rows"][2].__setitem__(1, 7), r"rows\.2\.1"),
        (lambda known: known["problems"].append({"name": "x"}), "a problem has a name and what it is"),
        (lambda known: known.update(format="1"), "format"),
    ],
)
def test_what_the_store_itself_would_not_write_is_refused(
    edit: Callable[[dict[str, Any]], Any], says: str, folder: Path
) -> None:
    change(folder, edit)
    with pytest.raises(InputError, match=says) as error:
        open_store(folder)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("prepare it again")


def test_labels_beyond_the_classes_are_refused(folder: Path) -> None:
    (folder / "targets.bin").write_bytes(np.array([0, 1, 0, 1, 0, 2**62]).tobytes())
    with pytest.raises(InputError, match="classes beyond the 2 that it names"):
        open_store(folder)


@pytest.mark.parametrize("name", ["store.json", "images.bin", "targets.bin"])
def test_pipes_and_links_out_of_the_folder_are_refused(name: str, folder: Path, tmp_path: Path) -> None:
    if name != "store.json":  # which is read as a whole, and may be a link
        (folder / name).rename(tmp_path / "elsewhere")
        os.symlink(tmp_path / "elsewhere", folder / name)
        with pytest.raises(InputError, match="link out of the cohort's folder"):
            open_store(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=r"not a regular file|a pipe, a socket or a device"):
        open_store(folder)

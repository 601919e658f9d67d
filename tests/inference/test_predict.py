"""A trained model on new images: the figures of its run, computed again from what `predict` writes."""

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from conftest import command_line, succeed
from discs_run import SIDE, discs, train_on_discs, write_discs
from PIL import Image
from scipy.stats import mannwhitneyu

import silodp
from silodp import Cohort, Experiment, InputError, train


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return train_on_discs(tmp_path_factory.mktemp("segmented"))


def at_test(run: Path) -> dict[str, list[int]]:
    """The test images of each hospital, by number."""
    members = json.loads((run / "cohort.json").read_text())["members"]
    return {name: [int(one.split("#")[1]) for one in parts["test"]] for name, parts in members.items()}


def test_the_figures_of_a_run_come_out_of_its_predictions(
    segmented: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = segmented
    succeed("predict", run, data, "--out", tmp_path / "out")
    found, truth = np.load(tmp_path / "out/data.npz")["mask"][:, 0] > 0, np.load(data)["mask"]

    def dice(number: int) -> float:
        return float(2 * (found[number] & truth[number]).sum() / (found[number].sum() + truth[number].sum()))

    each = [np.mean([dice(number) for number in mine]) for mine in at_test(run).values()]
    printed = json.loads((run / "summary.json").read_text())["test"]["last"]["mean"]["dice"]
    assert np.mean(each) == pytest.approx(printed, abs=1e-3)


def test_pictures_get_masks_of_their_own_size_and_what_cannot_be_used_is_named(
    segmented: tuple[Path, Path], tmp_path: Path
) -> None:
    run, _ = segmented
    images, masks = discs(2, np.random.default_rng(3), (50, 80))
    (tmp_path / "new/masks").mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"new/{number}.png")
    Image.fromarray(images[0]).save(tmp_path / "new/masks/0.png")  # no image of its own
    (tmp_path / "new/broken.png").write_bytes(b"\x89PNG\r\n")
    done = succeed("predict", run, tmp_path / "new", "--out", tmp_path / "out", "--overlays")
    assert "left out: broken.png: " in done.stderr
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.png"))
    assert written == ["0.png", "1.png", "overlays/0.png", "overlays/1.png"]
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    for number, mask in enumerate(masks):
        found = np.asarray(Image.open(tmp_path / f"out/{number}.png"))
        assert found.shape == (50, 80)
        assert set(np.unique(found)) <= {0, 255}
        assert 2 * ((found > 0) & mask).sum() / ((found > 0).sum() + mask.sum()) > 0.4
    coloured = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(coloured).save(tmp_path / "c.png")
    done = command_line("predict", run, tmp_path / "c.png", "--out", tmp_path / "colour")
    assert done.returncode == 2
    assert "c.png: 3 channels, and the model was trained on 1" in done.stderr
    assert not (tmp_path / "colour").exists()
    done = command_line("predict", run, tmp_path / "nowhere", "--out", tmp_path / "none")
    assert (done.returncode, (tmp_path / "none").exists()) == (2, False)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "PIR"])
def test_a_volume_gets_a_mask_that_lies_over_it_in_another_reader(
    codes: str, segmented: tuple[Path, Path], tmp_path: Path
) -> None:
    """The same head stored along other axes: same place in the world, same mask voxel by voxel."""
    run, _ = segmented
    images, masks = discs(5, np.random.default_rng(4), (40, 48))
    upright = np.diag([1.5, 2.0, 3.0, 1.0])
    upright[:3, 3] = [-20, 10, 5]
    head = nibabel.Nifti1Image(images.transpose(2, 1, 0)[::-1, ::-1].astype(np.int16), upright)
    turn = nibabel.orientations.ornt_transform(
        nibabel.orientations.io_orientation(upright), nibabel.orientations.axcodes2ornt(codes)
    )
    stored = head.as_reoriented(turn)
    nibabel.save(stored, tmp_path / "head.nii.gz")
    succeed("predict", run, tmp_path / "head.nii.gz", "--out", tmp_path / "out")
    found = nibabel.load(tmp_path / "out/head.nii.gz")
    assert found.shape == stored.shape
    assert np.array_equal(found.affine, stored.affine)
    back = nibabel.as_closest_canonical(found)
    seen = np.asarray(back.dataobj)[::-1, ::-1].transpose(2, 1, 0) > 0
    assert 2 * (seen & masks).sum() / (seen.sum() + masks.sum()) > 0.4


def test_what_was_padded_in_training_is_cut_off_again(tmp_path: Path) -> None:
    """Wide pictures in the middle of a square: what is said of the rest of the square is nobody's."""
    images, masks = discs(24, np.random.default_rng(5), (24, 48))
    write_discs(tmp_path / "files", images, masks, hospitals="ab")
    changes = {
        "cohort.kind": "folder", "cohort.path": str(tmp_path / "files"), "cohort.fit": "pad", "rounds": 1,
        "cohort.cache": str(tmp_path / "cache"), "model.features": 2, "model.levels": 2,
    }  # fmt: skip
    train(Experiment.build({}, changes), out=tmp_path / "run", device="cpu")
    model = silodp.load(tmp_path / "run", device="cpu")
    square = np.pad(images, [(0, 0), (12, 12), (0, 0)])[:, None]  # 24 × 48 in the middle of 48 × 48
    with torch.no_grad():
        expected = model.network(torch.from_numpy(square).float() / 127.5 - 1).sigmoid()[..., 12:36, :]
    assert (model(images) - expected).abs().max() < 1e-5
    options = "--json", "--set", f"cache={tmp_path}/new"
    done = succeed("evaluate", tmp_path / "run", tmp_path / "files", *options)
    padded = np.pad(masks, [(0, 0), (12, 12), (0, 0)])
    with torch.no_grad():
        marked = model.network(torch.from_numpy(square).float() / 127.5 - 1)[:, 0].numpy() > 0
    dice = 2 * (marked & padded).sum((1, 2)) / (marked.sum((1, 2)) + padded.sum((1, 2)))
    assert json.loads(done.stdout)["mean"]["dice"] == pytest.approx(dice.mean(), abs=1e-4)


def test_a_prepared_folder_keeps_how_its_images_were_fitted(tmp_path: Path) -> None:
    images, masks = discs(24, np.random.default_rng(5), (24, 48))
    write_discs(tmp_path / "files", images, masks, hospitals="ab")
    fitted = "--set", "fit=pad", "--set", f"cache={tmp_path / 'cache'}"
    succeed("data", "prepare", tmp_path / "files", "--out", tmp_path / "prepared", *fitted)
    changes = {
        "cohort.kind": "prepared", "cohort.path": str(tmp_path / "prepared"), "rounds": 1,
        "model.features": 2, "model.levels": 2,
    }  # fmt: skip
    train(Experiment.build({}, changes), out=tmp_path / "run", device="cpu")
    model = silodp.load(tmp_path / "run", device="cpu")
    square = np.pad(images, [(0, 0), (12, 12), (0, 0)])[:, None]
    with torch.no_grad():
        expected = model.network(torch.from_numpy(square).float() / 127.5 - 1).sigmoid()[..., 12:36, :]
    assert (model(images) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("source", ["file", "tensors"])
def test_images_that_are_not_square_are_taken_as_in_training_or_refused(source: str, tmp_path: Path) -> None:
    images, masks = discs(24, np.random.default_rng(5), (16, 48))
    names = np.array(["a", "b"])[np.arange(24) % 2]
    np.savez(tmp_path / "wide.npz", image=images, mask=masks, patient=np.arange(24), hospital=names)
    own = {"rounds": 1, "model.features": 2, "model.levels": 2}
    if source == "file":
        files = {"kind": "npz", "path": str(tmp_path / "wide.npz"), "cache": str(tmp_path / "cache")}
        train(Experiment.build({"cohort": files}, own), out=tmp_path / "run", device="cpu")
        numbers = torch.from_numpy(images[:, None]).float() / 127.5 - 1
    else:
        numbers = torch.from_numpy(images[:, None]).float()
        wanted = torch.from_numpy(masks[:, None]).float()
        cohort = silodp.Cohort.from_tensors(
            {name: (numbers[names == name], wanted[names == name], np.arange(12).tolist()) for name in "ab"}
        )
        train(Experiment.build({}, own), cohort=cohort, out=tmp_path / "run", device="cpu")
    model = silodp.load(tmp_path / "run", device="cpu")
    with torch.no_grad():
        expected = model.network(numbers).sigmoid()
    assert (model(images) - expected).abs().max() < 1e-5
    with pytest.raises(InputError, match="an image of 48 × 16 pixels, and the model takes 16 × 48"):
        model(images.transpose(0, 2, 1))
    found = command_line("export", tmp_path / "run", "--format", "onnx", "--out", tmp_path / "model.onnx")
    assert "(1, 16, 48)" in found.stdout, found.stderr
    if source == "file":
        cache = "--set", f"cache={tmp_path / 'cache'}"
        done = succeed("evaluate", tmp_path / "run", tmp_path / "wide.npz", "--json", *cache)
        assert sum(tried["images"] for tried in json.loads(done.stdout)["tried"].values()) == 24
        np.savez(tmp_path / "high.npz", image=images.transpose(0, 2, 1), mask=masks.transpose(0, 2, 1))
        done = command_line("evaluate", tmp_path / "run", tmp_path / "high.npz", *cache)
        assert "images of 48 × 16 pixels, and the model takes 16 × 48" in " ".join(done.stderr.split())


def test_files_that_the_run_read_as_well_are_told(segmented: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = segmented
    cache = "--set", f"cache={tmp_path / 'cache'}"
    page = tmp_path / "page.html"
    told = " ".join(succeed("evaluate", run, data, "--page", page, *cache).stdout.split())
    assert "its run read 1 of these 1 file as well: the figures may be too good" in told
    assert "its run read 1 of these 1 file as well" in page.read_text()
    write_discs(tmp_path / "new", *discs(3, np.random.default_rng(6)))
    assert "its run read" not in succeed("evaluate", run, tmp_path / "new", *cache).stdout
    done = command_line("evaluate", run, data, "--set", "hospitals=2")
    assert "--set hospitals: all images are tested" in done.stderr


def test_a_network_from_python_is_loaded_into_one_like_it(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3, padding=1))

    given = {"cohort": cohort, "model": network(), "device": "cpu"}
    train(experiment.change(rounds=1, model={"kind": "custom"}), out=tmp_path / "run", **given)
    done = command_line("predict", tmp_path / "run", tmp_path, "--out", tmp_path / "out")
    assert "silodp.load(run, model=…)" in " ".join(done.stderr.split())
    model = silodp.load(tmp_path / "run", model=network(), device="cpu")
    assert model(cohort.hospitals[0].test.images[:2]).shape == (2, 1, 16, 16)


def test_grey_pictures_among_coloured_ones_are_taken_as_in_training(tmp_path: Path) -> None:
    """The network saw them as three equal channels; a colour is refused where it learnt of grey alone."""
    images, _ = discs(16, np.random.default_rng(3))
    for number, image in enumerate(images):
        place = tmp_path / f"files/{'ab'[number % 2]}/{('ill', 'well')[number // 2 % 2]}"
        place.mkdir(parents=True, exist_ok=True)
        coloured = np.stack([image, image[::-1], image], axis=-1) if number < 4 else image
        Image.fromarray(coloured).save(place / f"{number}.png")
    own = {
        "task": "classification", "cohort.kind": "folder", "cohort.path": str(tmp_path / "files"),
        "cohort.cache": str(tmp_path / "cache"), "model.kind": "resnet", "model.features": 4, "rounds": 1,
        "intermediaries.rule": "fixed", "local.batch_size": 2,
    }  # fmt: skip
    train(Experiment.build({}, own), out=tmp_path / "run", device="cpu")
    done = succeed("predict", tmp_path / "run", tmp_path / "files", "--out", tmp_path / "out")
    assert "left out" not in done.stderr
    assert len((tmp_path / "out/predictions.csv").read_text().splitlines()) == 17
    model = silodp.load(tmp_path / "run", device="cpu")
    assert torch.equal(model(images[:2]), model(np.repeat(images[:2, None], 3, axis=1)))
    train(Experiment.build({}, own | {"cohort.channels": 1}), out=tmp_path / "grey", device="cpu")
    grey = silodp.load(tmp_path / "grey", device="cpu")
    assert (grey(np.repeat(images[:2, None], 3, axis=1)) - grey(images[:2])).abs().max() < 1e-6


def test_files_of_one_name_with_other_suffixes_are_written_apart(
    segmented: tuple[Path, Path], tmp_path: Path
) -> None:
    images, _ = discs(3, np.random.default_rng(3))
    (tmp_path / "new").mkdir()
    for image, name in zip(images, ("a.png", "a.bmp", "b#1.png"), strict=True):
        Image.fromarray(image).save(tmp_path / "new" / name)
    succeed("predict", segmented[0], tmp_path / "new", "--out", tmp_path / "out")
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["a.bmp.png", "a.png.png", "b#1.png"]


def test_files_that_are_none_are_left_out_by_name(segmented: tuple[Path, Path], tmp_path: Path) -> None:
    """Not opened: a link may lead to another patient's folder, and a hole has no end."""
    (tmp_path / "new").mkdir()
    for name, image in zip("abc", discs(3, np.random.default_rng(3))[0], strict=True):
        Image.fromarray(image).save(tmp_path / f"new/{name}.png")
    (tmp_path / "new/b.png").rename(tmp_path / "other.png")
    (tmp_path / "new/b.png").symlink_to(tmp_path / "other.png")
    with (tmp_path / "new/c.png").open("ab") as file:
        file.truncate(2**40)
    done = succeed("predict", segmented[0], tmp_path / "new", "--out", tmp_path / "out")
    said = " ".join(done.stderr.split())
    assert "left out: b.png: it is a link out of the cohort's folder; put the file itself there" in said
    assert "left out: c.png: it takes 1,099,511,627,776 bytes, and is a sparse file" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.png"]


def test_labelled_files_that_cannot_be_read_are_not_passed_over(
    segmented: tuple[Path, Path], tmp_path: Path
) -> None:
    write_discs(tmp_path / "files", *discs(3, np.random.default_rng(6)))
    (tmp_path / "files/images/1.png").write_bytes(b"\x89PNG\r\n")
    command = "evaluate", segmented[0], tmp_path / "files", "--json", "--set", f"cache={tmp_path / 'cache'}"
    done = command_line(*command)
    assert done.returncode == 2
    assert "1 thing cannot be used" in done.stderr
    done = command_line(*command, "--set", "skip_unreadable=true")
    assert json.loads(done.stdout)["tried"] == {"all": {"images": 2, "patients": None}}, done.stderr


def test_from_python_in_three_lines(segmented: tuple[Path, Path]) -> None:
    run, data = segmented
    model = silodp.load(run, device="cpu")
    images = np.load(data)["image"][:4]
    found = model(images)
    assert found.shape == (4, 1, SIDE, SIDE)
    assert model(torch.from_numpy(images[:1])).allclose(found[:1], atol=1e-5)
    assert model(images[0]).allclose(found[:1], atol=1e-5)
    assert model(images.astype(np.float32) / 255).allclose(found, atol=0.02)
    assert model(images.repeat(2, axis=1).repeat(2, axis=2)).shape == (4, 1, 2 * SIDE, 2 * SIDE)
    assert (model.classes, model.target) == (("1",), "mask")
    with pytest.raises(InputError, match=r"int64 numbers that are not all 0…1; give bytes"):
        model(images.astype(np.int64))
    with pytest.raises(InputError, match=r"shape \(1, 1, 1, 1, 1\); give"):
        model(np.zeros((1, 1, 1, 1, 1)))


def test_a_small_images_mask_is_made_of_all_that_the_network_said(segmented: tuple[Path, Path]) -> None:
    """A quarter of the width: each of its pixels stands for 4 × 4, not for those in their middle alone."""
    model = silodp.load(segmented[0], device="cpu")
    edges = torch.ones(4, dtype=torch.bool)
    edges[1:3] = False
    said = torch.where(edges.repeat(SIDE // 4), 20.0, -20.0).expand(2, 1, SIDE, SIDE)
    model.logits = lambda prepared: said  # type: ignore[method-assign]
    found = model(np.zeros((2, SIDE // 4, SIDE // 4), np.uint8))
    assert found.shape == (2, 1, SIDE // 4, SIDE // 4)
    assert found[..., 1:-1].sub(0.5).abs().max() < 0.1


def test_new_labelled_images_are_scored_as_a_run_would(segmented: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = segmented
    chosen = np.concatenate([np.array(mine) for mine in at_test(run).values()])
    arrays = np.load(data)
    np.savez(tmp_path / "new.npz", **{name: arrays[name][chosen] for name in arrays})
    cache = "--set", f"cache={tmp_path / 'cache'}"
    done = succeed("evaluate", run, tmp_path / "new.npz", "--json", "--out", tmp_path / "each.csv", *cache)
    found = json.loads(done.stdout)
    printed = json.loads((run / "summary.json").read_text())["test"]["last"]
    assert found["mean"] == pytest.approx(printed["mean"], abs=1e-6)
    assert found["tried"] == printed["tried"]
    rows = list(csv.DictReader((tmp_path / "each.csv").open()))
    assert len(rows) == len(chosen)
    of_a = [float(row["dice"]) for row in rows if row["hospital"] == "a"]
    assert np.mean(of_a) == pytest.approx(printed["hospitals"]["a"]["dice"], abs=1e-5)
    done = command_line("evaluate", run, tmp_path / "new.npz", *cache)
    assert "95 % interval" in done.stdout
    np.savez(tmp_path / "classes.npz", image=arrays["image"], label=np.arange(60) % 2)
    done = command_line("evaluate", run, tmp_path / "classes.npz", *cache)
    assert done.returncode == 2
    assert "its targets are classes, and the model predicts masks" in done.stderr


def test_classes_become_probabilities(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 2
    marks = 90 * labels[:, None, None] * (np.arange(SIDE) < 12)[:, None]
    images = (rng.integers(0, 120, (80, SIDE, SIDE)) + marks).astype(np.uint8)
    np.savez(tmp_path / "data.npz", image=images, label=np.array(["healthy", "sick"])[labels])
    changes = {
        "cohort.kind": "npz", "cohort.path": str(tmp_path / "data.npz"),
        "cohort.cache": str(tmp_path / "cache"),
        "cohort.hospitals": 2, "model.features": 4, "model.growth": 4, "model.blocks": [1, 1], "rounds": 3,
        "privacy.noise_multiplier": 0.0, "clipping.rule": "none", "intermediaries.rule": "fixed",
    }  # fmt: skip
    result = train(Experiment.build({"task": "classification"}, changes), out=tmp_path / "run", device="cpu")
    succeed("predict", tmp_path / "run", tmp_path / "data.npz", "--out", tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out/predictions.csv").open()))
    assert [row["image"] for row in rows] == [f"data.npz#{number}" for number in range(80)]
    score = np.array([float(row["sick"]) for row in rows])
    assert all(float(row["healthy"]) + float(row["sick"]) == pytest.approx(1, abs=1e-5) for row in rows)
    areas = []
    for mine in at_test(tmp_path / "run").values():
        sick, healthy = (score[[number for number in mine if labels[number] == which]] for which in (1, 0))
        areas.append(mannwhitneyu(sick, healthy).statistic / (len(sick) * len(healthy)))
    assert np.mean(areas) == pytest.approx(result.test["auc"], abs=1e-3)
    np.savez(tmp_path / "ill.npz", image=images[1::2], label=np.array(["sick"] * 40))  # it would count as 0
    cache = "--set", f"cache={tmp_path / 'cache'}"
    done = command_line("evaluate", tmp_path / "run", tmp_path / "ill.npz", *cache)
    assert done.returncode == 2
    assert "classes sick in another order or number than the model's healthy, sick" in done.stderr

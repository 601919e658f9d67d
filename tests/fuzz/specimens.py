"""A sound file of every kind that silodp reads, how to damage it, and how it is read."""

import gzip
import io
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import nibabel
import numpy as np
import torch
from mutations import (
    Mutation,
    damaged_bytes,
    damaged_csv,
    damaged_json,
    damaged_lines,
    damaged_nifti,
    damaged_npz,
    damaged_png,
    damaged_toml,
    damaged_tree,
)
from PIL import Image
from pydicom.data import get_testdata_file

import silodp
from silodp.cohorts.catalogue import Catalogue, Pictures, Scan, Unreadable, one_picture
from silodp.cohorts.kinds import CohortSettings
from silodp.cohorts.loading import load_files, look, prepare
from silodp.cohorts.sources.dicom import read_dicom
from silodp.cohorts.sources.nifti import read_nifti
from silodp.cohorts.sources.pixels import read_mask_picture, read_picture
from silodp.cohorts.store import Store, build_store, open_store
from silodp.experiment import Experiment
from silodp.local.state import load_states
from silodp.models.start import begin_with, read_start, write_start
from silodp.privacy.events import Event
from silodp.privacy.ledger import _link, read_ledger
from silodp.report.page import compose, write_page
from silodp.report.reading import read_runs
from silodp.runs.fitting import named_network
from silodp.runs.folder import RunFolder
from silodp.runs.statement import read_statement
from silodp.tensor_files import same_form

COUNT, SIDE = 12, 16
DICOM = (
    "MR_small.dcm", "MR_small_RLE.dcm", "MR_small_bigendian.dcm", "MR_small_implicit.dcm",
    "MR_small_padded.dcm",
    "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm", "JPEGLSNearLossless_16.dcm", "rtdose.dcm",
    "rtdose_rle.dcm", "SC_rgb_small_odd.dcm", "SC_rgb_rle_2frame.dcm", "SC_rgb_jpeg_gdcm.dcm",
    "image_dfl.dcm",
    "SC_rgb_dcmtk_+eb+cr.dcm", "SC_rgb_gdcm_KY.dcm", "693_J2KI.dcm",
)  # fmt: skip


@dataclass(frozen=True)
class Specimen:
    """Files in a folder, of which one is damaged before the folder is read.

    Attributes:
        files: by name, the sound contents to choose from.
        mutations: by name, ways to damage it.
        read: reads the folder; returns or raises what silodp does.
    """

    files: Mapping[str, tuple[bytes, ...]]
    mutations: Mapping[str, tuple[Mutation, ...]]
    read: Callable[[Path], Any]


def specimens(work: Path) -> dict[str, Specimen]:
    """All kinds; `work` is an empty folder for making them."""
    noise = np.random.default_rng(0)
    pixels = noise.integers(0, 255, (COUNT, SIDE, SIDE)).astype(np.uint8)
    pictures = {
        ending: _picture(pixels[0], ending) for ending in ("png", "jpeg", "tiff", "bmp", "gif", "ppm")
    }
    volume, mask = (_volume(noise.integers(0, 2, (8, 9, 4)) * scale) for scale in (300, 1))
    made = {
        f"picture-{ending}": Specimen(
            {f"a.{ending}": (content,)},
            {f"a.{ending}": (damaged_png,) if ending == "png" else (damaged_bytes,)},
            _read_pictures,
        )
        for ending, content in pictures.items()
    }
    for packed, (name, ending) in enumerate((("nifti", "nii"), ("nifti-gz", "nii.gz"))):
        files = {f"a.{ending}": (volume[packed],), f"b.{ending}": (mask[packed],)}
        made[name] = Specimen(files, dict.fromkeys(files, (damaged_nifti,)), _read_volume)
    paths = [get_testdata_file(name, download=False) for name in DICOM]
    dicom = tuple(Path(str(path)).read_bytes() for path in paths if path)
    assert len(dicom) == len(DICOM)
    made["dicom"] = Specimen({"a.dcm": dicom}, {"a.dcm": (damaged_bytes, _damaged_tags)}, _read_dicom)
    labelled = {"image": pixels, "label": np.arange(COUNT) % 2, "patient": np.arange(COUNT).astype(str)}
    for name, arrays in {
        "npz": labelled | {"hospital": np.array(["A", "B"] * 6), "age": np.arange(12.0)},
        "npz-masks": {
            "images": pixels,
            "masks": (pixels > 99).astype(np.uint8),
            "part": np.array([*["train"] * 6, *["val", "test"] * 3]),
        },
        "medmnist": {
            f"{part}_{what}": values
            for part in ("train", "val", "test")
            for what, values in (("images", pixels), ("labels", np.arange(COUNT)[:, None] % 2))
        },
    }.items():
        out = io.BytesIO()
        np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
        kind = name.partition("-")[0]
        made[name] = Specimen(
            {"a.npz": (out.getvalue(),)}, {"a.npz": (damaged_npz,)}, partial(_read_cohort, kind=kind)
        )
    made |= _lists([_picture(each, "png") for each in pixels]) | _prepared(work, pixels) | _runs(work)
    return made


def _picture(pixels: Any, form: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def _volume(numbers: Any) -> tuple[bytes, bytes]:
    plain = nibabel.Nifti1Image(numbers.astype(np.int16), np.eye(4)).to_bytes()
    return plain, gzip.compress(plain)


def _lists(pngs: Sequence[bytes]) -> dict[str, Specimen]:
    pictures = {f"A/{'ill' if n % 2 else 'well'}/{n // 2}.png": (png,) for n, png in enumerate(pngs)}
    patients = "file,patient,age\n" + "".join(f"{name},p-{name},{len(name)}\n" for name in pictures)
    kinds = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural", "any")
    kaggle = "ID,Label\n" + "".join(
        f"ID_{image}_{kind},{int(image < 'g')}\n" for image in "abcdefghijkl" for kind in kinds
    )
    entries = [{"image": f"A/ill/{number}.png", "label": f"A/well/{number}.png"} for number in range(4)]
    lists = {"training": entries[:2], "validation": entries[2:3], "testing": entries[3:]}
    return {
        "patients-csv": Specimen(
            pictures | {"patients.csv": (patients.encode(),)},
            {"patients.csv": (damaged_csv,)},
            partial(_read_cohort, kind="folder"),
        ),
        "rsna-csv": Specimen(
            {f"ID_{image}.png": (png,) for image, png in zip("abcdefghijkl", pngs, strict=True)}
            | {"labels.csv": (kaggle.encode(),)},
            {"labels.csv": (damaged_csv,)},
            partial(_read_cohort, kind="rsna-ich"),
        ),
        "prostate-json": Specimen(
            pictures | {"A.json": (json.dumps(lists).encode(),)},
            {"A.json": (damaged_json, damaged_bytes)},
            partial(_read_cohort, kind="prostate"),
        ),
    }


def _prepared(work: Path, pixels: Any) -> dict[str, Specimen]:
    made = {}
    for name, more in {
        "prepared": {"label": np.arange(COUNT) % 2},
        "prepared-masks": {"mask": (pixels > 99).astype(np.uint8)},
    }.items():
        path = work / f"{name}.npz"
        np.savez(path, image=pixels, **more)
        prepare(CohortSettings.of(kind="npz", path=str(path)), work / name)
        files = {
            file: ((work / name / file).read_bytes(),) for file in ("store.json", "images.bin", "targets.bin")
        }
        raw = (damaged_bytes,)
        ways = {"store.json": (damaged_json, damaged_json, damaged_json, damaged_bytes), "images.bin": raw}
        made[name] = Specimen(files, ways | {"targets.bin": raw}, partial(_read_prepared))
    return made


def _runs(work: Path) -> dict[str, Specimen]:
    tree = {"name": "tiny", "rounds": 2, "model": {"features": 2, "levels": 1}, "local": {"batch_size": 4}}
    data = {"kind": "synthetic-mri", "slices": 60, "image_size": 32, "hospitals": 2}
    parts = {"intermediaries": {"rule": "fixed", "count": 2}, "clipping": {"bound": 0.5}, "threads": 1}
    experiment = Experiment.build(tree | parts | {"cohort": data})
    cohort = silodp.cohorts.load_cohort(experiment.cohort)
    result = silodp.train(experiment, out=work / "run", device="cpu")
    folder = result.folder
    sound = {path.name: (path.read_bytes(),) for path in folder.iterdir() if path.is_file()}
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)

    def report(file: str, *ways: Mutation) -> Specimen:
        return Specimen(sound, {file: ways}, _read_report)

    def model(folder: Path) -> Any:
        return named_network(experiment, cohort, folder)

    def taken_up(folder: Path) -> Any:
        RunFolder(folder).checkpoint_facts()
        found = RunFolder(folder).load_checkpoint(torch.device("cpu"))
        return same_form(found, checkpoint)

    def settings(folder: Path) -> Any:
        return Experiment.load(folder / "experiment.toml")

    write_start(work / "start.safetensors", experiment.model.make(1, 1), {"origin": "generated"})
    started = (work / "start.safetensors").read_bytes()
    toml = {"experiment.toml": sound["experiment.toml"]}
    like = {"exp_avg": torch.zeros(40), "step": torch.zeros(())}
    packed = io.BytesIO()
    torch.save([like, like], packed)
    return {
        "states": Specimen(
            {"3.pt": (packed.getvalue(),)},
            {"3.pt": (damaged_bytes, _damaged_states)},
            lambda folder: load_states(folder, 3, like, torch.device("cpu")),
        ),
        "checkpoint": Specimen(sound, {"checkpoint.pt": (damaged_bytes, _damaged_checkpoint)}, taken_up),
        "ledger": Specimen(
            {"ledger.jsonl": sound["ledger.jsonl"]},
            {"ledger.jsonl": (damaged_bytes, damaged_lines, _forged_ledger)},
            lambda folder: read_ledger(folder / "ledger.jsonl"),
        ),
        "statement": Specimen(sound, {"ledger.jsonl": (_forged_ledger, damaged_bytes)}, read_statement),
        "metrics": report("metrics.jsonl", damaged_lines, damaged_bytes),
        "summary": report("summary.json", damaged_json, damaged_bytes),
        "cohort-json": report("cohort.json", damaged_json, damaged_bytes),
        "toml": Specimen(toml, {"experiment.toml": (damaged_toml,)}, settings),
        "safetensors": Specimen(
            {"model.safetensors": sound["model.safetensors"]},
            {"model.safetensors": (damaged_bytes, _damaged_safetensors)},
            model,
        ),
        "start": Specimen(
            {"start.safetensors": (started,)},
            {"start.safetensors": (damaged_bytes, _damaged_safetensors)},
            lambda folder: begin_with(
                experiment.model.make(1, 1), read_start(str(folder / "start.safetensors"))
            ),
        ),
    }  # fmt: skip


def _damaged_tags(rng: random.Random, content: bytes) -> bytes:
    """Numbers of a few tags in a file with little-endian tags, or the size of a compressed frame."""
    data = bytearray(content)
    group = b"\x28\x00"
    for _ in range(rng.choice((1, 2))):
        element = rng.choice(
            (2, 4, 6, 8, 0x10, 0x11, 0x100, 0x101, 0x102, 0x103, 0x120, 0x1050, 0x1053, 0x1101)
        )
        place = data.find(group + struct.pack("<H", element))
        if place >= 0 and place + 12 <= len(data):
            values = (0, 1, 2, 3, 7, 16, 255, 32_768, 60_000, 65_535)
            struct.pack_into("<H", data, place + rng.choice((6, 8, 8, 8)), rng.choice(values))
    for mark, offset, form in (
        (b"\xff\x4f\xff\x51", rng.choice((8, 12, 16, 24, 40)), ">I"),
        (b"\xff\xc3", 5, ">H"),
    ):
        place = data.find(mark)
        if place >= 0 and rng.random() < 0.3:
            struct.pack_into(form, data, place + offset, rng.choice((0, 1, 60_000, 65_535)))
    return bytes(data)


def _damaged_checkpoint(rng: random.Random, content: bytes) -> bytes:
    document = torch.load(io.BytesIO(content), weights_only=True)
    way = rng.randrange(12)
    if way == 0:
        document = rng.choice(([], [1, 2], None, 7, "x", {}, torch.zeros(3)))
    elif way == 1:
        document["state"]["parameters"] = rng.choice(
            (torch.zeros(1).expand(10**12), torch.zeros(0), torch.zeros(3, dtype=torch.int8), 3.0)
        )
    else:
        document = damaged_tree(rng, document)
    out = io.BytesIO()
    torch.save(document, out)
    return out.getvalue()


def _damaged_states(rng: random.Random, content: bytes) -> bytes:
    """As much as a tensor may claim to be, and anything but a list of states."""
    document = torch.load(io.BytesIO(content), weights_only=True)
    if rng.random() < 0.3:
        document[0]["exp_avg"] = rng.choice((torch.zeros(1).expand(10**12), torch.zeros(0), 3.0, None))
    else:
        document = damaged_tree(rng, document)
    out = io.BytesIO()
    torch.save(document, out)
    return out.getvalue()


def _damaged_safetensors(rng: random.Random, content: bytes) -> bytes:
    (length,) = struct.unpack_from("<Q", content)
    header = damaged_tree(rng, json.loads(content[8 : 8 + length]))
    text = json.dumps(header).encode()
    return (
        struct.pack("<Q", rng.choice((len(text), len(text), len(text), 2**40))) + text + content[8 + length :]
    )


def _forged_ledger(rng: random.Random, content: bytes) -> bytes:
    """Lines with odd values whose hashes fit, as whoever has the program can write them."""
    damaged, chain = damaged_lines(rng, content), ""
    lines = []
    for line in damaged.splitlines():
        try:
            fields = json.loads(line)
            fields.pop("chain", None)
            chain = _link(chain, _forged(fields))  # type: ignore[arg-type]
            lines.append(json.dumps(fields | {"chain": chain}))
        except (ValueError, TypeError, AttributeError, RecursionError):
            lines.append(line.decode(errors="replace"))
    return ("\n".join(lines) + "\n").encode(errors="replace")


def _forged(fields: dict[str, Any]) -> Any:
    """A dataclass instance with these fields, in an event's order, for hashing."""
    first = Event(1, "model update", True, 1.0, 1, None, "all", 1.0)
    merged = asdict(first) | fields
    return make_dataclass("Forged", list(merged))(**merged)


def _read_report(folder: Path) -> Any:
    write_page(compose(read_runs([folder]), images=False), folder / "report.html")


FORM = CohortSettings.of(kind="folder", image_size=16, channels=1)


def _read_pictures(folder: Path) -> Any:
    (path,) = folder.iterdir()
    with suppress(Exception):  # the store, below, says the same of whatever a decoder raises
        read_mask_picture(path)
    return _read_scan(folder, Scan("a", (path,), 0), lambda scan: one_picture(scan, read_picture(path)))


def _read_volume(folder: Path) -> Any:
    return _read_scan(folder, Scan("a", tuple(sorted(folder.iterdir()))), read_nifti)


def _read_dicom(folder: Path) -> Any:
    return _read_scan(folder, Scan("a", (folder / "a.dcm",), 0), lambda scan: read_dicom(scan, 1))


def _read_scan(folder: Path, scan: Scan, read: Callable[[Scan], Pictures]) -> Any:
    """As a cohort of one file: what a decoder raises becomes a problem in the store."""
    out = folder.with_name(f"{folder.name}-out")
    out.mkdir(exist_ok=True)
    target: Literal["class", "mask"] = "class" if len(scan.files) == 1 else "mask"
    build_store(Catalogue("folder", folder, "one file", target, ("a",), (scan,), read), FORM, out)
    return _without_problems(open_store(out))


def _without_problems(store: Store) -> Store:
    for problem in store.problems:
        raise Unreadable(str(problem))
    return store


def _read_cohort(folder: Path, kind: str) -> Any:
    path = folder / "a.npz" if kind in ("npz", "medmnist") else folder
    settings = CohortSettings.of(kind=kind, path=str(path), image_size=SIDE)  # type: ignore[arg-type]
    out = folder.with_name(f"{folder.name}-out")
    out.mkdir(exist_ok=True)
    build_store(look(settings), settings, out)
    store = _without_problems(open_store(out))
    named = any(row.hospital for row in store.rows)
    simulated = {} if named else {"hospitals": 1}
    return load_files(CohortSettings.of(kind="prepared", path=str(out), torn_patients="keep", **simulated))


def _read_prepared(folder: Path) -> Any:
    return load_files(CohortSettings.of(kind="prepared", path=str(folder), hospitals=1))


def sound(specimen: Specimen, folder: Path) -> None:
    """Writes the undamaged files."""
    for name, contents in specimen.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(contents[0])

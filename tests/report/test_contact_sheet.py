"""The contact sheet: who is on it, what it says, and what must never be on it."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from silodp.cohorts.catalogue import PARTS, Problem, Row
from silodp.cohorts.partition import Placement
from silodp.cohorts.store import Store
from silodp.errors import InputError
from silodp.report.contact_sheet import Sheet, compose, write_contact_sheet
from silodp.report.pictures import Picture

HOSTILE = "<script>document.title='owned'</script>\"><img src=http://example.org onerror=alert(1)>&amp;$x^2$"


def store_of(images: Any, targets: Any, /, **more: Any) -> Store:
    images, targets = np.asarray(images), np.asarray(targets)
    rows = tuple(Row(f"scans/file-{number}.png") for number in range(len(images)))
    known = {
        "folder": Path("nowhere"),
        "kind": "folder",
        "layout": "a folder of pictures",
        "target": "class" if targets.ndim == 1 else "mask",
        "classes": ("healthy", "ill"),
        "rows": rows,
        "digests": ("",) * len(rows),
        "files": {},
        "problems": (),
        "notes": (),
        "images": images,
        "targets": targets,
    }
    return Store(**(known | more))


def classes_of(labels: list[int], **more: Any) -> Store:
    """Images that can be told apart: the number of each is its red and green."""
    numbers = np.arange(len(labels))[:, None, None]
    images = np.full((len(labels), 3, 28, 28), 77, np.uint8)
    images[:, 0], images[:, 1] = numbers // 200, numbers % 200
    return store_of(images, np.array(labels, np.int64), **more)


def masks_of(*masks: int, **more: Any) -> Store:
    """One image with masks of so many marked rows."""
    marked = np.arange(28)[:, None] < np.array(masks)[:, None, None]
    return store_of(
        np.full((1, 1, 28, 28), 100, np.uint8), np.broadcast_to(marked, (1, len(masks), 28, 28)), **more
    )


def placed(hospital: list[int], part: list[int] | None = None, **more: Any) -> Placement:
    names = tuple(f"Site {number}" for number in range(max(hospital) + 1))
    parts = np.zeros(len(hospital), np.int64) if part is None else np.array(part)
    known = {"hospitals": names, "simulated": False, "rule": "hospitals as the files name them", "notes": ()}
    return Placement(**(known | {"hospital": np.array(hospital), "part": parts} | more))


def sheet_of(store: Store, placement: Placement | None = None, *, each: int = 8, seed: int = 0) -> Sheet:
    return compose(store, placement, each, seed)


def pictures(sheet: Sheet) -> list[Picture]:
    return [picture for block in sheet.gallery.blocks for picture in block.pictures]


def number(picture: Picture) -> int:
    """Which image of `classes_of` it is."""
    return int(picture.pixels[0, 0, 0]) * 200 + int(picture.pixels[0, 0, 1])


# Who is on it


def test_classes_and_parts_are_under_each_image_in_their_order() -> None:
    where = placed([0, 0, 1, 1, 1], [0, 1, 2, 1, 0])
    sheet = sheet_of(classes_of([1, 0, 1, 0, 1]), where)
    assert [block.name for block in sheet.gallery.blocks] == ["Site 0", "Site 1"]
    assert [(number(one), *one.caption) for one in pictures(sheet)] == [
        (1, "healthy", PARTS[1]), (0, "ill", PARTS[0]),
        (3, "healthy", PARTS[1]), (4, "ill", PARTS[0]), (2, "ill", PARTS[2]),
    ]  # fmt: skip
    assert pictures(sheet)[1].alt == "Site 0, ill, train"
    assert [name for name, _ in sheet.gallery.legend] == ["healthy", "ill"]


def test_masks_are_outlined_and_an_empty_one_is_said() -> None:
    (marked,) = pictures(sheet_of(masks_of(9), placed([0], [2])))
    assert (marked.caption, marked.alt) == (("test",), "Site 0, masks outlined, test")
    assert len(np.unique(marked.pixels.reshape(-1, 3), axis=0)) == 2
    (empty,) = pictures(sheet_of(masks_of(0)))
    assert empty.caption == ("nothing marked",)
    assert (empty.pixels == 100).all()


@pytest.mark.parametrize(
    ("store", "legend"),
    [
        (masks_of(1, 2, 3, classes=("1", "gland")), ["mask 1", "gland", "mask 3"]),
        (classes_of([0, 1, 1], classes=("0", "1")), ["class 0", "class 1"]),  # no number is taken for a count
        (classes_of([0], classes=("a\u202eb\0c\nd",)), ["a b c d"]),  # nothing that cannot be seen
    ],
)
def test_the_legend_names_every_mask_and_class(store: Store, legend: list[str]) -> None:
    assert [name for name, _ in sheet_of(store).gallery.legend] == legend


def test_classes_that_are_not_named() -> None:
    shown = pictures(sheet_of(classes_of([-1, 0, 5])))
    assert [one.caption[0] for one in shown] == ["no class", "healthy", "class 5"]


@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    each=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_images_are_drawn_evenly_over_classes(labels: list[int], each: int, seed: int) -> None:
    drawn = pictures(sheet_of(classes_of(labels, classes=tuple("abcd")), each=each, seed=seed))
    assert len(drawn) == min(each, len(labels))
    assert len(set(map(number, drawn))) == len(drawn), "none twice"
    shown = Counter(one.caption[0] for one in drawn)
    there = Counter("abcd"[label] for label in labels)
    not_exhausted = [name for name in there if shown[name] < there[name]]
    assert all(shown[name] >= max(shown.values()) - 1 for name in not_exhausted)


def test_a_rare_class_is_drawn_as_often_as_a_frequent_one() -> None:
    rare = classes_of([0] * 190 + [1] * 10)
    ill = sum(pictures(sheet_of(rare, each=1, seed=seed))[0].caption[0] == "ill" for seed in range(100))
    assert 25 <= ill <= 75  # within five standard deviations of a half


@pytest.mark.parametrize("seed", range(3))
def test_different_patients_come_first(seed: int) -> None:
    """An image that names no patient counts as one."""
    rows = tuple(Row(f"{one}.png", patient=f"P{one // 20}") for one in range(100))
    whose = Counter(
        number(one) // 20 for one in pictures(sheet_of(classes_of([0] * 100, rows=rows), each=7, seed=seed))
    )
    assert sorted(whose.values()) == [1, 1, 1, 2, 2]
    rows = tuple(Row(f"{one}.png", patient="P1" if one < 10 else None) for one in range(20))
    shown = pictures(sheet_of(classes_of([0] * 20, rows=rows), each=11, seed=seed))
    assert sum(number(one) < 10 for one in shown) == 1


@pytest.mark.parametrize("form", ["html", "png"])
def test_the_file_follows_the_seed_alone(form: str, tmp_path: Path) -> None:
    store, where = classes_of([0, 1] * 100), placed([0, 1, 2, 3] * 50)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_contact_sheet(store, where, tmp_path / f"{name}.{form}", seed=seed)
    a, b, c = ((tmp_path / f"{name}.{form}").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_up_to_each_of_every_hospital() -> None:
    where = placed([0] * 2 + [1] * 13, hospitals=("A\u2066B", "Full", "Empty"))
    blocks = sheet_of(classes_of([0] * 15), where).gallery.blocks
    assert [(block.name, len(block.pictures)) for block in blocks] == [("A B", 2), ("Full", 8), ("Empty", 0)]
    assert blocks[2].about == "0 images"


@pytest.mark.parametrize("hospitals", [40, 45])
def test_no_more_than_forty_hospitals(hospitals: int) -> None:
    sheet = sheet_of(classes_of([0] * hospitals), placed(list(range(hospitals))))
    assert [block.name for block in sheet.gallery.blocks] == [f"Site {one}" for one in range(40)]
    assert ("The first 40 hospitals are shown, 5 are left out." in sheet.facts) == (hospitals == 45)
    assert sheet.facts[1].startswith(f"{hospitals} images in {hospitals} hospitals")


def test_without_a_placement_all_are_together() -> None:
    rows = tuple(Row(f"{one}.png", part=part) for one, part in enumerate(("test", None)))
    sheet = sheet_of(classes_of([0, 1], rows=rows))
    assert [block.name for block in sheet.gallery.blocks] == ["no hospital named"]
    assert [one.caption for one in pictures(sheet)] == [("healthy", "test"), ("ill",)]
    assert "The images have not been divided among hospitals." in sheet.facts
    rows = tuple(Row(row.name, hospital="Bern") for row in rows)
    assert sheet_of(classes_of([0, 1], rows=rows)).gallery.blocks[0].name == "all hospitals together"


def test_only_the_shown_images_are_read() -> None:
    touched: list[int] = []

    class Watched(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            taken = super().__getitem__(index)
            touched.append(np.asarray(taken).size)
            return np.asarray(taken)

    many = 100_000
    images = np.broadcast_to(np.arange(784, dtype=np.uint8).reshape(28, 28), (many, 1, 28, 28)).view(Watched)
    rows = tuple(Row(f"{one}.png", patient=f"P{one // 9}") for one in range(many))
    store = store_of(images[:0], images[:0], images=images, targets=images, rows=rows)
    assert len(pictures(sheet_of(store, placed([0, 1] * 50_000)))) == 16
    assert sum(touched) == 2 * 16 * 784


# What it says


def test_the_heading_tells_what_it_is() -> None:
    rows = tuple(Row(f"{one}.png", patient=f"P{one % 3}") for one in range(1200))
    store = classes_of([0] * 800 + [1] * 400)
    store = store_of(store.images[:, :1], store.targets, rows=rows, notes=("mind the gap",))
    where = placed(
        [0, 1] * 600, [0, 0, 1, 1, 2, 2] * 200, simulated=True, rule="simulated: dealt", notes=("odd",)
    )
    sheet = sheet_of(store, where)
    assert sheet.facts == (
        "A folder of pictures.",
        "1,200 images of 3 patients in 2 hospitals, 28 × 28 pixels, grey.",
        "The hospitals are simulated: dealt.",
        "Up to 8 images a hospital, drawn at random and evenly over classes, not as often as each occurs.",
        "The bar below an image tells its class, in the colours below.",
    )
    counts = "600 images of 3 patients; train: 200, validation: 200, test: 200; healthy: 400, ill: 200"
    assert [block.about for block in sheet.gallery.blocks] == [counts] * 2
    assert sheet.notes == ("Mind the gap.", "Odd.")


def test_one_image_of_a_named_hospital() -> None:
    facts = sheet_of(classes_of([0]), placed([0]), each=1).facts
    assert "The hospitals are not simulated: hospitals as the files name them." in facts
    assert "1 image in 1 hospital, 28 × 28 pixels, three channels shown as red, green and blue." in facts
    assert "Up to 1 image a hospital, drawn at random" in " ".join(facts)


def test_patients_are_counted_only_where_all_are_known() -> None:
    rows = (Row("a.png", patient="x"), Row("b.png"))
    assert "patient" not in sheet_of(classes_of([0, 0], rows=rows)).facts[1]
    assert "2 images of 1 patient," in sheet_of(classes_of([0, 0], rows=(rows[0], rows[0]))).facts[1]


@pytest.mark.parametrize(("many", "counted"), [(12, True), (13, False)])
def test_classes_are_counted_unless_there_are_too_many(many: int, counted: bool) -> None:
    sheet = sheet_of(classes_of([0, 1], classes=tuple(f"k{one}" for one in range(many))))
    assert ("k0: 1, k1: 1" in sheet.gallery.blocks[0].about) == counted


# What must never be on it


def test_neither_patients_nor_files_are_named(tmp_path: Path) -> None:
    rows = (
        Row("ward 3/scan (1).png", "Bern", "Meier-1960"),
        Row("ward 3/scan (2).png", "Bern", "12345678"),
        Row("all.npz#7", "Bern", "7"),
        Row("Huber/b.png", "Bern", "7a"),
        Row("b.png", "Bern", "7a"),
    )
    notes = (
        "2 images are identical in more than one part (ward 3/scan (1).png = ward 3/scan (2).png, …)",
        "Meier-1960 has 7 images",
        "12345678 was torn, Keller.dcm too",
        "the file all.npz (version 2) and lists/all.csv are old",
        "Huber/b.png is old, 17ab is not.",
        "7 of 17 images (a third) name no patient",
    )
    problems = (Problem("Keller.dcm", "broken"),)
    more = {"notes": notes[:3], "layout": "as ward 3/scan (1).png", "files": {"lists/all.csv": ""}}
    store = classes_of([0] * 5, rows=rows, problems=problems, **more)
    where = placed([0] * 5, notes=notes[3:], rule="like 12345678")
    write_contact_sheet(store, where, tmp_path / "page.html")
    source = (tmp_path / "page.html").read_text()
    for secret in ("scan (", "Meier", "12345678", "all.npz", "all.csv", "ward", "Huber", "Keller"):
        assert secret not in source
    assert sheet_of(store, where).notes == (
        "2 images are identical in more than one part.",
        "… has 7 images.",
        "… was torn, … too.",
        "The file … (version 2) and … are old.",
        "… is old, 17ab is not.",
        "7 of 17 images (a third) name no patient.",
        "Left out as unusable: 1; `silodp data check` names what and why.",
    )


def test_hostile_names_are_shown_and_do_nothing(browser: Browser, tmp_path: Path) -> None:
    store = classes_of([0, 1], classes=(HOSTILE, "b"), layout=HOSTILE, notes=(HOSTILE,))
    where = placed([0, 0], hospitals=(HOSTILE,), rule=HOSTILE, notes=(HOSTILE,))
    write_contact_sheet(store, where, tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.console() == []
    assert browser.run("return document.title") == "Contact sheet"
    assert browser.run("return document.querySelectorAll('script').length") == 0
    assert browser.run("return [...document.images].map(one => one.alt)")[0] == f"{HOSTILE}, {HOSTILE}, train"
    assert (
        browser.text("main").count(HOSTILE) == 8
    )  # layout, rule, legend, heading, counts, caption, two notes
    assert "This page shows patients' images" in browser.text("header")
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
    write_contact_sheet(store, where, tmp_path / "sheet.png")


# The file


@pytest.mark.parametrize("form", ["html", "png"])
def test_there_is_a_file_whatever_the_store_holds(form: str, tmp_path: Path) -> None:
    """No images, letters of many languages, long texts, more hospitals and images than stand side by side."""
    long = classes_of([0, 1], classes=("W" * 300, "東京 Ж ε"), notes=("word " * 400,), layout="L" * 900)
    stores = {
        "none": (store_of(np.zeros((0, 3, 28, 28), np.uint8), np.zeros(0, np.int64)), None),
        "no-masks": (store_of(*[np.zeros((0, 1, 1, 1), np.uint8)] * 2), None),
        "empty": (classes_of([0]), placed([0], hospitals=("Full", "Empty"))),
        "long": (long, placed([0, 0], hospitals=("name " * 90,))),
        "many": (classes_of([0, 1] * 200), placed(list(range(25)) * 16)),
    }
    sizes = {}
    for name, (store, where) in stores.items():
        out = tmp_path / f"{name}.{form}"
        write_contact_sheet(store, where, out, each=16)
        if form == "png":
            with Image.open(out) as picture:
                assert 900 <= picture.width <= 1600
                sizes[name] = picture.height
        else:
            source = out.read_text()
            assert ("There are no images, so nothing is shown." in source) == name.startswith("no")
            sizes[name] = len(re.findall("<img", source))
    assert sizes["many"] > 5 * sizes["empty"]


def test_the_picture_shows_every_image(tmp_path: Path) -> None:
    write_contact_sheet(classes_of([0] * 25), placed(list(range(25))), tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    greens = pixels[(pixels[..., 0] == 0) & (pixels[..., 2] == 77)][:, 1]
    assert sorted(set(greens.tolist())) == list(range(25))


@pytest.mark.parametrize(
    ("name", "each", "says"),
    [
        ("page.pdf", 8, r"--out .*page\.pdf: .*choose \.html or \.png"),
        ("html", 8, r"--out .*html: .*choose \.html or \.png"),
        ("page.html", 0, "--each 0: .*give 1 to 64"),
        ("page.html", 65, "--each 65: .*give 1 to 64"),
        ("folder.html", 8, r"--out .*folder\.html: a folder has this name"),
        ("file/page.png", 8, r"--out .*page\.png: cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused(name: str, each: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"^{says}"):
        write_contact_sheet(classes_of([0]), None, tmp_path / name, each=each)
    assert len(list(tmp_path.rglob("*"))) == 2


@pytest.mark.parametrize("name", ["new/folder/page.HTML", "new/folder/page.PNG"])
def test_the_folder_is_made_and_nothing_else_left(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    for _ in range(2):  # an old page is replaced
        write_contact_sheet(classes_of([0]), None, out)
    assert list(out.parent.iterdir()) == [out]
    assert out.read_bytes().startswith(b"<!DOCTYPE" if out.suffix == ".HTML" else b"\x89PNG")

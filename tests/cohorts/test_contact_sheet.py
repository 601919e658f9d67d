"""The contact sheet: what is on it to the pixel, who is on it, and what must never be."""

import tempfile
from base64 import b64decode
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from silodp.cohorts.catalogue import PARTS, Problem, Row
from silodp.cohorts.contact_sheet import WARNING, write_contact_sheet
from silodp.cohorts.partition import Placement
from silodp.cohorts.store import Store
from silodp.errors import InputError

# Okabe and Ito (2008), "Color Universal Design": orange, sky blue, bluish green, …, reddish purple.
ORANGE, SKY, GREEN = (230, 159, 0), (86, 180, 233), (0, 158, 115)
PURPLE, WHITE, BLACK = (204, 121, 167), (255, 255, 255), (0, 0, 0)
VOID = {"meta", "img", "link", "br", "hr", "input"}


def store_of(images: Any, targets: Any, /, classes: tuple[str, ...] = (), **more: Any) -> Store:
    images, targets = np.asarray(images), np.asarray(targets)
    target = "class" if targets.ndim == 1 else "mask"
    rows = tuple(Row(f"scans/file-{number}.png") for number in range(len(images)))
    known = {
        "folder": Path("nowhere"),
        "kind": "folder",
        "layout": "a folder of pictures",
        "target": target,
        "classes": classes or ("healthy", "ill"),
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
    count = len(labels)
    images = np.zeros((count, 3, 28, 28), np.uint8)
    images[:, 0], images[:, 1] = (
        np.arange(count)[:, None, None] // 200,
        np.arange(count)[:, None, None] % 200,
    )
    images[:, 2] = 77
    return store_of(images, np.array(labels, np.int64), **more)


def placed(hospital: list[int], part: list[int] | None = None, **more: Any) -> Placement:
    names = tuple(f"Site {number}" for number in range(max(hospital) + 1))
    parts = np.zeros(len(hospital), np.int64) if part is None else np.array(part)
    known = {"hospitals": names, "simulated": False, "rule": "hospitals as the files name them", "notes": ()}
    return Placement(**(known | {"hospital": np.array(hospital), "part": parts} | more))


@dataclass
class Figure:
    hospital: str
    pixels: np.ndarray
    alt: str
    bar: str = ""
    caption: list[str] = field(default_factory=list)


class Page(HTMLParser):
    """Reads a page strictly: every tag must be closed in its order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.figures: list[Figure] = []
        self.sections: list[str] = []
        self.texts: list[str] = []
        self.swatches: list[str] = []
        self.legend: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in known.items()]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections.append("")
        if tag == "img":
            content = b64decode(known["src"].removeprefix("data:image/png;base64,"), validate=True)
            pixels = np.asarray(Image.open(BytesIO(content)))
            assert (known["height"], known["width"]) == tuple(map(str, pixels.shape[:2]))
            self.figures.append(Figure(self.sections[-1], pixels, known["alt"]))
        if known.get("class") == "bar":
            self.figures[-1].bar = known["style"]
        if tag == "span":
            self.swatches.append(known["style"])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not data.strip() or "style" in self.open:
            return
        self.texts.append(data)
        if self.open[-1] == "h2":
            self.sections[-1] = data
        if "figcaption" in self.open:
            self.figures[-1].caption.append(data)
        if self.open[-1] == "li":
            self.legend.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def of(self, hospital: str) -> list[Figure]:
        return [figure for figure in self.figures if figure.hospital == hospital]


def page_of(store: Store, placement: Placement | None = None, **more: Any) -> Page:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "page.html")
        write_contact_sheet(store, placement, out, **more)
        return Page(out.read_text(encoding="utf-8"))


def picture_of(store: Store, placement: Placement | None = None, **more: Any) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "page.png")
        write_contact_sheet(store, placement, out, **more)
        return np.asarray(Image.open(out).convert("RGB"))


def found_in(picture: np.ndarray, part: np.ndarray) -> list[tuple[int, int]]:
    """Where a part of a picture is, exactly: (top, left)."""
    height, width = part.shape[:2]
    corners = np.argwhere((picture == part[0, 0]).all(-1))
    return [
        (int(top), int(left))
        for top, left in corners
        if np.array_equal(picture[top : top + height, left : left + width], part)
    ]


def square(size: int = 28, first: int = 7, last: int = 21) -> np.ndarray:
    mask = np.zeros((size, size), np.uint8)
    mask[first:last, first:last] = 1
    return mask


def grey_with(masks: list[np.ndarray], **more: Any) -> Store:
    size = masks[0].shape[-1]
    return store_of(np.full((1, 1, size, size), 100, np.uint8), np.stack(masks)[None], **more)


# Masks


def outlined() -> np.ndarray:
    """The square 7…20 of 28 pixels, each shown as 4 × 4: an edge of two shown pixels, from inside."""
    expected = np.full((112, 112, 3), 100, np.uint8)
    expected[28:84, 28:84] = ORANGE
    expected[30:82, 30:82] = 100
    return expected


def test_a_mask_is_outlined_and_not_filled() -> None:
    page = page_of(grey_with([square()], classes=("gland",)), placed([0], [2]))
    (figure,) = page.figures
    np.testing.assert_array_equal(figure.pixels, outlined())
    assert figure.caption == ["test"]
    assert figure.alt == "Site 0, masks outlined, test"
    assert figure.bar == ""
    assert page.legend == ["Outlines:", "gland"]
    assert page.swatches == ["background:#E69F00"]


def test_the_picture_shows_the_same_thumbnail() -> None:
    picture = picture_of(grey_with([square()]), placed([0]))
    assert len(found_in(picture, outlined())) == 1


def test_the_outline_runs_along_the_edge_of_the_image() -> None:
    (figure,) = page_of(grey_with([np.ones((28, 28), np.uint8)])).figures
    assert (figure.pixels[[0, 1, -1, -2]] == ORANGE).all()
    assert (figure.pixels[:, [0, 1, -1, -2]] == ORANGE).all()
    assert (figure.pixels[2:-2, 2:-2] == 100).all()


def test_every_mask_has_its_colour_and_is_named() -> None:
    masks = [square(first=2, last=10), square(first=12, last=16), square(first=18, last=26)]
    page = page_of(grey_with(masks, classes=("lung", "heart", "spine")))
    (figure,) = page.figures
    for mask, colour in zip(masks, (ORANGE, SKY, GREEN), strict=True):
        corner = 4 * int(np.argwhere(mask)[0][0])
        assert tuple(figure.pixels[corner, corner]) == colour
        assert tuple(figure.pixels[corner - 1, corner - 1]) == (100, 100, 100)
    assert page.legend == ["Outlines:", "lung", "heart", "spine"]
    assert page.swatches == [f"background:{colour}" for colour in ("#E69F00", "#56B4E9", "#009E73")]


def test_masks_without_names_are_numbered() -> None:
    page = page_of(grey_with([square(), square(), square()], classes=("1", "gland")))
    assert page.legend == ["Outlines:", "mask 1", "gland", "mask 3"]


def test_outlines_that_coincide_are_all_seen() -> None:
    (figure,) = page_of(grey_with([square(), square(), square(first=1, last=4)])).figures
    seen = Counter(map(tuple, figure.pixels[28:30, 28:84].reshape(-1, 3).tolist()))
    assert set(seen) == {ORANGE, SKY}
    assert min(seen.values()) >= 0.4 * seen.total()


def test_more_masks_than_colours_are_striped() -> None:
    empty = np.zeros((28, 28), np.uint8)
    for number, colours in ((6, {PURPLE}), (7, {ORANGE, WHITE}), (14, {ORANGE, BLACK}), (21, {ORANGE})):
        store = grey_with([*[empty] * number, square()], classes=tuple(map(str, range(number + 1))))
        page = page_of(store)
        assert set(map(tuple, page.figures[0].pixels[28, 28:84].tolist())) == colours
        assert (page.swatches[-1].count("#") == 1) == (len(colours) == 1)
        assert len(page.legend) == number + 2
        picture = picture_of(store)
        assert all((picture == colour).all(-1).any() for colour in colours)


def test_an_empty_mask_is_said() -> None:
    page = page_of(grey_with([square() * 0]), placed([0], [1]))
    assert page.figures[0].caption == ["nothing marked", "validation"]
    assert (page.figures[0].pixels == 100).all()


# Pixels


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ((28, 28), (112, 112)),
        ((64, 64), (128, 128)),
        ((95, 95), (190, 190)),
        ((96, 96), (96, 96)),
        ((224, 224), (224, 224)),
        ((256, 256), (256, 256)),
        ((512, 512), (256, 256)),
        ((300, 600), (128, 256)),
        ((1024, 1), (256, 1)),
        ((20, 40), (60, 120)),
    ],
)
def test_sizes(shape: tuple[int, int], shown: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1, 1, *shape), dtype=np.uint8)
    page = page_of(store_of(noise, np.zeros((1, 1, *shape), np.uint8)))
    assert f"1 image, {shape[0]} × {shape[1]} pixels, grey." in page.texts
    (figure,) = page.figures
    assert figure.pixels.shape == (*shown, 3)
    if shown[0] >= shape[0]:  # nearest neighbour: the very numbers, repeated
        times = shown[0] // shape[0]
        np.testing.assert_array_equal(
            figure.pixels, np.kron(noise[0, 0], np.ones((times, times)))[..., None] + [0] * 3
        )
    else:
        assert figure.pixels.mean() == pytest.approx(noise.mean(), abs=1)


def test_a_large_image_is_averaged_and_its_smallest_lesion_stays() -> None:
    image = np.zeros((1, 1, 1024, 1024), np.uint8)
    image[..., ::2] = 200
    mask = np.zeros((1, 2, 1024, 1024), np.uint8)
    mask[0, 1, 401, 803] = 1
    (figure,) = page_of(store_of(image, mask)).figures
    assert tuple(figure.pixels[100, 200]) == SKY
    others = np.delete(figure.pixels.reshape(-1, 3), 100 * 256 + 200, axis=0)
    assert (others == 100).all()


def test_three_channels_are_red_green_and_blue() -> None:
    image = np.broadcast_to(np.array([10, 120, 250], np.uint8)[None, :, None, None], (1, 3, 28, 28))
    page = page_of(store_of(image, np.array([0])))
    assert (page.figures[0].pixels == (10, 120, 250)).all()
    assert "red, green and blue" in page.text
    assert "grey" not in page.text


def test_half_precision_is_shown_as_bytes_would_be() -> None:
    levels = np.arange(256, dtype=np.float32)
    halves = (levels / 127.5 - 1).astype(np.float16).reshape(1, 1, 16, 16)
    (figure,) = page_of(store_of(halves, np.array([1]))).figures
    np.testing.assert_allclose(figure.pixels[::6, ::6, 0].ravel(), levels, atol=0.5)


# Who is on it


def test_classes_and_parts_are_under_each_image() -> None:
    page = page_of(classes_of([1, 0, 1, 0]), placed([0, 0, 1, 1], [0, 1, 2, 0]))
    assert page.sections == ["Site 0", "Site 1"]
    assert [figure.caption for figure in page.of("Site 0")] == [["healthy", "validation"], ["ill", "train"]]
    assert [figure.caption for figure in page.of("Site 1")] == [["healthy", "train"], ["ill", "test"]]
    assert [figure.pixels[0, 0, 1] for figure in page.figures] == [1, 0, 3, 2]
    assert [figure.bar for figure in page.of("Site 0")] == ["background:#E69F00", "background:#56B4E9"]
    assert page.of("Site 0")[1].alt == "Site 0, ill, train"
    assert page.legend == ["Classes:", "healthy", "ill"]


def test_within_a_class_parts_come_in_their_order() -> None:
    page = page_of(classes_of([0] * 6), placed([0] * 6, [2, 1, 0, 2, 1, 0]))
    assert [figure.caption[1] for figure in page.figures] == [part for part in PARTS for _ in range(2)]


def test_the_picture_has_bars_and_captions() -> None:
    store, where = classes_of([0, 1]), placed([0, 0], [0, 2])
    picture = picture_of(store, where)
    for number, colour in enumerate((ORANGE, SKY)):
        tile = np.empty((112, 112, 3), np.uint8)
        tile[:] = (0, number, 77)
        ((top, left),) = found_in(picture, tile)
        bar = picture[top + 112 : top + 119, left : left + 112]
        assert (bar == colour).all()
        below = picture[top + 119 : top + 155, left : left + 112]
        assert (below < 128).any(), "a caption"
    for other in (classes_of([0, 1], classes=("healthy", "sick")), store):
        changed = placed([0, 0], [0, 1]) if other is store else where
        assert not np.array_equal(picture_of(other, changed), picture)


def test_bars_are_striped_where_colours_are_used_again() -> None:
    image = np.full((1, 3, 95, 95), 9, np.uint8)
    image[:, 1] = 8
    picture = picture_of(store_of(image, np.array([14]), classes=tuple(map(str, range(15)))))
    top, left = np.argwhere((picture == (9, 8, 9)).all(-1))[0]
    bar = picture[top + 190 : top + 197, left : left + 202]
    assert {tuple(pixel) for pixel in bar[:, :190].reshape(-1, 3).tolist()} == {ORANGE, BLACK}
    assert (bar[:, 190:] == 255).all()


@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    each=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_images_are_drawn_evenly_over_classes(labels: list[int], each: int, seed: int) -> None:
    page = page_of(classes_of(labels, classes=tuple("abcd")), None, each=each, seed=seed)
    assert len(page.figures) == min(each, len(labels))
    assert len({tuple(figure.pixels[0, 0]) for figure in page.figures}) == len(page.figures), "none twice"
    shown = Counter(figure.caption[0] for figure in page.figures)
    there = Counter("abcd"[label] for label in labels)
    assert all(shown[name] <= there[name] for name in shown)
    not_exhausted = [name for name in there if shown[name] < there[name]]
    assert all(shown[name] >= max(shown.values()) - 1 for name in not_exhausted)


def test_many_classes_take_turns() -> None:
    labels = [label for label in range(20) for _ in range(20)]
    hospital = list(range(20)) * 20
    page = page_of(classes_of(labels, classes=tuple(map(str, range(20)))), placed(hospital), each=4)
    assert len(page.figures) == 80
    assert len({figure.caption[0] for figure in page.figures}) >= 15
    rare = [0] * 190 + [1] * 10  # the choice of a class does not follow its size
    store = classes_of(rare)
    ill = sum(page_of(store, each=1, seed=seed).figures[0].caption[0] == "ill" for seed in range(100))
    assert 25 <= ill <= 75  # within five standard deviations of a half


def test_different_patients_come_first() -> None:
    rows = tuple(Row(f"{number}.png", patient=f"P{number // 20}") for number in range(100))
    for seed in range(5):
        page = page_of(classes_of([0] * 100, rows=rows), each=7, seed=seed)
        whose = Counter(int(figure.pixels[0, 0, 1]) // 20 for figure in page.figures)
        assert sorted(whose.values()) == [1, 1, 1, 2, 2]


def test_an_image_that_names_no_patient_counts_as_one() -> None:
    rows = tuple(Row(f"{number}.png", patient="P1" if number < 10 else None) for number in range(20))
    for seed in range(5):
        page = page_of(classes_of([0] * 20, rows=rows), each=11, seed=seed)
        assert sum(figure.pixels[0, 0, 1] < 10 for figure in page.figures) == 1


def test_the_choice_follows_the_seed_alone(tmp_path: Path) -> None:
    store, where = classes_of([0, 1] * 100), placed([0, 1, 2, 3] * 50)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_contact_sheet(store, where, tmp_path / f"{name}.html", seed=seed)
    a, b, c = ((tmp_path / f"{name}.html").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_up_to_each_of_every_hospital() -> None:
    page = page_of(classes_of([0] * 15), placed([0] * 2 + [1] * 13))
    assert [len(page.of(name)) for name in page.sections] == [2, 8]


@pytest.mark.parametrize("hospitals", [40, 45])
def test_no_more_than_forty_hospitals(hospitals: int) -> None:
    page = page_of(classes_of([0] * hospitals), placed(list(range(hospitals))))
    assert page.sections == [f"Site {number}" for number in range(40)]
    assert ("The first 40 hospitals are shown, 5 are left out." in page.texts) == (hospitals == 45)
    assert ("left out" in page.text) == (hospitals == 45)
    assert f"{hospitals} images in {hospitals} hospitals" in page.text


def test_a_hospital_without_images() -> None:
    where = placed([0, 0], hospitals=("Full", "Empty"))
    page = page_of(classes_of([0, 1]), where)
    assert page.sections == ["Full", "Empty"]
    assert page.of("Empty") == []
    assert "0 images" in page.texts
    picture_of(classes_of([0, 1]), where)


def test_without_a_placement_all_are_together() -> None:
    rows = tuple(Row(f"{number}.png", part=part) for number, part in enumerate(("test", None)))
    page = page_of(classes_of([0, 1], rows=rows))
    assert page.sections == ["no hospital named"]
    assert [figure.caption for figure in page.figures] == [["healthy", "test"], ["ill"]]
    assert "hospitals" in page.texts[4]
    assert "simulated" not in page.text
    rows = tuple(Row(row.name, hospital="Bern") for row in rows)
    assert page_of(classes_of([0, 1], rows=rows)).sections == ["all hospitals together"]


def test_classes_that_are_not_named() -> None:
    page = page_of(classes_of([-1, 0, 5]))
    assert [figure.caption[0] for figure in page.figures] == ["no class", "healthy", "class 5"]
    assert page.figures[0].bar == "background:#999999"


def test_a_class_that_is_a_number_is_not_taken_for_a_count() -> None:
    page = page_of(classes_of([0, 1, 1], classes=("0", "1")))
    assert page.legend == ["Classes:", "class 0", "class 1"]
    assert "3 images; class 0: 1, class 1: 2" in page.texts


# What it says


def test_the_heading_tells_what_it_is() -> None:
    rows = tuple(Row(f"{number}.png", patient=f"P{number % 3}") for number in range(1200))
    store = classes_of([0] * 800 + [1] * 400, rows=rows, notes=("mind the gap",))
    store = store_of(store.images[:, :1], store.targets, rows=rows, notes=("mind the gap",))
    where = placed(
        [0, 1] * 600, [0, 0, 1, 1, 2, 2] * 200, simulated=True, rule="simulated: dealt", notes=("odd",)
    )
    page = page_of(store, where)
    assert page.texts[2:6] == [
        "A folder of pictures.",
        "1,200 images of 3 patients in 2 hospitals, 28 × 28 pixels, grey.",
        "The hospitals are simulated: dealt.",
        "Up to 8 images a hospital, drawn at random and evenly over classes, not as often as each occurs.",
    ]
    counts = "600 images of 3 patients; train: 200, validation: 200, test: 200; healthy: 400, ill: 200"
    assert page.texts.count(counts) == 2
    assert page.texts[-3:-1] == ["Mind the gap.", "Odd."]
    assert "patients' images" in page.texts[-1]


def test_named_hospitals_are_not_called_simulated() -> None:
    page = page_of(classes_of([0]), placed([0]), each=1)
    assert "The hospitals are not simulated: hospitals as the files name them." in page.texts
    assert "1 image in 1 hospital, 28 × 28 pixels, three channels shown as red, green and blue." in page.texts
    assert "Up to 1 image a hospital, drawn at random and evenly" in page.text


def test_patients_are_counted_only_where_all_are_known() -> None:
    rows = (Row("a.png", patient="x"), Row("b.png"))
    assert "patient" not in page_of(classes_of([0, 0], rows=rows)).text.replace("patients' images", "")
    assert "2 images of 1 patient," in page_of(classes_of([0, 0], rows=(rows[0], rows[0]))).text


def test_classes_are_counted_unless_there_are_too_many() -> None:
    for many, counted in ((12, True), (13, False)):
        page = page_of(classes_of([0, 1], classes=tuple(f"k{number}" for number in range(many))))
        assert ("k0: 1, k1: 1" in page.text) == counted


def test_what_cannot_be_used_is_counted_and_not_named() -> None:
    page = page_of(classes_of([0], problems=(Problem("secret.png", "broken"), Problem("b.png", "broken"))))
    assert "Left out as unusable: 2; `silodp data check` names what and why." in page.texts
    assert "secret" not in page.text


@pytest.mark.parametrize("form", ["html", "png"])
def test_no_images_are_said(form: str, tmp_path: Path) -> None:
    empty = classes_of([0])
    empty = store_of(empty.images[:0], empty.targets[:0])
    write_contact_sheet(empty, None, tmp_path / f"page.{form}")
    masks = store_of(np.zeros((0, 1, 1, 1), np.uint8), np.zeros((0, 1, 1, 1), np.uint8))
    write_contact_sheet(masks, None, tmp_path / f"masks.{form}")
    if form == "html":
        page = Page((tmp_path / "page.html").read_text())
        assert "There are no images, so nothing is shown." in page.texts
        assert page.sections == []


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
    store = classes_of(
        [0] * 5, rows=rows, notes=notes[:3], layout="as ward 3/scan (1).png", files={"lists/all.csv": ""}
    )
    store = replace(store, problems=(Problem("Keller.dcm", "broken"),))
    where = placed([0] * 5, notes=notes[3:], rule="like 12345678")
    write_contact_sheet(store, where, tmp_path / "page.html")
    source = (tmp_path / "page.html").read_text()
    for secret in ("scan (", "Meier", "12345678", "all.npz", "all.csv", "ward", "Huber", "Keller"):
        assert secret not in source
    assert Page(source).texts[-8:-2] == [
        "2 images are identical in more than one part.",
        "… has 7 images.",
        "… was torn, … too.",
        "The file … (version 2) and … are old.",
        "… is old, 17ab is not.",
        "7 of 17 images (a third) name no patient.",
    ]


HOSTILE = "<script>alert('x')</script>\"><img src=http://example.org onerror=alert(1)>&amp;{style}"


def test_hostile_names_are_shown_and_do_nothing(tmp_path: Path) -> None:
    store = classes_of([0, 1], classes=(HOSTILE, "b"), layout=HOSTILE, notes=(HOSTILE,))
    where = placed([0, 0], hospitals=(HOSTILE,), rule=HOSTILE, notes=(HOSTILE,))
    page = page_of(store, where)
    assert page.tags["script"] == 0
    assert page.tags["img"] == len(page.figures) == 2
    assert page.figures[0].alt == f"{HOSTILE}, {HOSTILE}, train"
    assert page.sections == [HOSTILE]
    assert page.text.count(HOSTILE) == 8  # layout, rule, legend, heading, counts, caption, two notes
    picture_of(store, where)
    masks = grey_with([square()], classes=(HOSTILE,))
    assert page_of(masks).tags["script"] == 0


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    write_contact_sheet(classes_of([0, 1]), placed([0, 1]), tmp_path / "page.html")
    source = (tmp_path / "page.html").read_text()
    page = Page(source)
    assert source.startswith("<!DOCTYPE html>")
    assert not {"script", "link", "iframe", "object", "a", "form"} & set(page.tags)
    assert "//" not in "".join(value for _, name, value in page.attributes if name != "src")
    assert all(
        value.startswith("data:image/png;base64,") for _, name, value in page.attributes if name == "src"
    )
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert ("meta", "name", "viewport") in page.attributes
    assert ("meta", "charset", "utf-8") in page.attributes
    assert any("default-src 'none'" in value for _, name, value in page.attributes if name == "content")
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


def test_letters_that_cannot_be_seen_are_left_out() -> None:
    store = classes_of([0], classes=("a\u202eb\0c\nd",), notes=("x\u202ey",))
    page = page_of(store, placed([0], hospitals=("A\u2066B",)))
    assert page.sections == ["A B"]
    assert page.legend == ["Classes:", "a b c d"]
    assert page.figures[0].caption[0] == "a b c d"
    assert "X y." in page.texts


def test_only_the_shown_images_are_read() -> None:
    touched: list[int] = []

    class Watched(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            taken = super().__getitem__(index)
            touched.append(np.asarray(taken).size)
            return np.asarray(taken)

    many = 100_000
    line = np.arange(784, dtype=np.uint8).reshape(1, 1, 28, 28)
    images = np.broadcast_to(line, (many, 1, 28, 28)).view(Watched)
    targets = np.broadcast_to(square()[None, None], (many, 1, 28, 28)).view(Watched)
    rows = tuple(Row(f"{number}.png", patient=f"P{number // 9}") for number in range(many))
    page = page_of(
        store_of(images[:0], targets[:0], images=images, targets=targets, rows=rows), placed([0, 1] * 50_000)
    )
    assert len(page.figures) == 16
    assert sum(touched) == 2 * 16 * 784


# As a picture


def is_written(picture: np.ndarray, text: str, size: int) -> bool:
    """Whether a line of the picture begins with this text, in black or in grey."""
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), size)
    for colour in ("#1a1a1a", "#595959"):
        line = Image.new("RGB", (round(font.getlength(text)), size + 4), "white")
        ImageDraw.Draw(line).text((0, 0), text, fill=colour, font=font)
        ink = np.asarray(line)[..., 0]
        rows = picture[:, 24 : 24 + ink.shape[1], 0]
        if any(np.array_equal(rows[top : top + len(ink)], ink) for top in range(len(rows))):
            return True
    return False


def test_all_that_is_said_is_in_the_picture() -> None:
    rows = tuple(Row(f"{number}.png", patient=f"P{number // 2}") for number in range(4))
    store = classes_of([0, 0, 0, 1], rows=rows, notes=("a note of the files",))
    picture = picture_of(store, placed([0] * 4, notes=("a note on places",)))
    assert is_written(picture, "A folder of pictures.", 15)
    assert is_written(picture, "The hospitals are not simulated: hospitals as the files name them.", 15)
    assert is_written(picture, "4 images of 2 patients; train: 4; healthy: 3, ill: 1", 13)
    assert not is_written(picture, "4 images of 3 patients; train: 4; healthy: 3, ill: 1", 13)
    assert is_written(picture, "A note of the files.", 14)
    assert is_written(picture, "A note on places.", 14)
    assert is_written(picture, WARNING, 13)
    assert is_written(picture, "healthy", 13)  # below the first image
    assert is_written(picture, "train", 13)
    assert not is_written(picture, "test", 13)


def test_letters_of_many_languages_are_drawn() -> None:
    names = ["é", "ü", "ø", "×", "–", "ε", "Ж", "…"]
    pictures = {picture_of(classes_of([0]), placed([0], hospitals=(name,))).tobytes() for name in names}
    assert len(pictures) == len(names), "letters that a font lacks all look the same"


@pytest.mark.parametrize(
    ("size", "each", "columns"), [(28, 8, 8), (256, 8, 8), (256, 16, 11), (256, 3, 3), (64, 30, 11)]
)
def test_a_picture_is_not_too_wide(size: int, each: int, columns: int) -> None:
    images = np.full((60, 3, size, size), 7, np.uint8)
    images[:, 1] = 8
    store = store_of(images, np.zeros(60, np.int64))
    picture = picture_of(store, placed([0] * 30 + [1] * 30), each=each)
    assert 960 <= picture.shape[1] <= 1600
    painted = (picture == (7, 8, 7)).all(-1)
    fullest = painted[painted.sum(1).argmax()]
    assert int((np.diff(fullest.astype(int)) == 1).sum()) == columns
    shown = painted.sum() / (painted.sum(1).max() / columns) ** 2
    assert shown == 2 * each
    assert (picture[:, :22] == 255).all()
    assert (picture[:, -22:] == 255).all()


def test_long_texts_are_broken_and_long_captions_cut() -> None:
    store = classes_of(
        [0, 1, 2], classes=("W" * 300, "a" * 40, "c"), notes=("word " * 400,), layout="L" * 900
    )
    picture = picture_of(store, placed([0, 0, 0], hospitals=("name " * 90,)))
    assert (picture[:, :22] == 255).all()
    assert (picture[:, -22:] == 255).all()
    tile = np.empty((112, 112, 3), np.uint8)
    tile[:] = (0, 0, 77)
    ((top, left),) = found_in(picture, tile)
    assert (picture[top : top + 160, left + 112 : left + 124] == 255).all(), "the gap to the next one"


def test_all_of_many_hospitals_are_in_the_picture() -> None:
    store = classes_of([0] * 25)
    picture = picture_of(store, placed(list(range(25))))
    greens = np.bincount(picture[(picture[..., 0] == 0) & (picture[..., 2] == 77)][:, 1])
    assert greens.tolist() == [112 * 112] * 25


def test_a_legend_of_many_is_broken() -> None:
    names = tuple(f"a class with number {number}" for number in range(30))
    picture = picture_of(classes_of([0], classes=names))
    assert (picture[:, -22:] == 255).all()
    orange = (picture == ORANGE).all(-1).any(1)
    assert int((np.diff(orange.astype(int)) == 1).sum()) >= 4  # the bar, and swatches on several lines


# The file


@pytest.mark.parametrize("name", ["page.pdf", "page", "page.htm", "html"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--out .*: .*choose \.html or \.png"):
        write_contact_sheet(classes_of([0]), None, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("each", [0, 65])
def test_too_few_and_too_many_are_refused(each: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^--each {each}: .*give 1 to 64"):
        write_contact_sheet(classes_of([0]), None, tmp_path / "page.html", each=each)


@pytest.mark.parametrize("name", ["new/folder/page.HTML", "new/folder/page.PNG"])
def test_the_folder_is_made_and_nothing_else_left(name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    for _ in range(2):  # an old page is replaced
        write_contact_sheet(classes_of([0]), None, out)
    assert list(out.parent.iterdir()) == [out]
    assert out.read_bytes().startswith(b"<!DOCTYPE" if out.suffix == ".HTML" else b"\x89PNG")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^--out .*page\.html: a folder has this name"):
        write_contact_sheet(classes_of([0]), None, tmp_path / "page.html")
    with pytest.raises(InputError, match=r"^--out .*page\.png: cannot be written"):
        write_contact_sheet(classes_of([0]), None, tmp_path / "file" / "page.png")
    assert len(list(tmp_path.iterdir())) == 2

"""A contact sheet: a few images of every hospital on one page, with classes or masks marked.

The page may be shown to others, so it names hospitals and classes, but neither patients nor files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from silodp.cohorts.contact_sheet.page import as_html
from silodp.cohorts.contact_sheet.picture import as_png, fitting
from silodp.cohorts.contact_sheet.sheet import LARGEST, WARNING, compose
from silodp.errors import InputError
from silodp.files import write_atomically

if TYPE_CHECKING:
    from silodp.cohorts.partition import Placement
    from silodp.cohorts.store import Store

__all__ = ["WARNING", "write_contact_sheet"]

MOST_EACH = 64


def write_contact_sheet(
    store: Store, placement: Placement | None, out: Path, *, each: int = 8, seed: int = 0
) -> None:
    """Writes a page (.html) or a picture (.png) with up to `each` images of every hospital.

    Only the pixels of these images are read.

    Args:
        store: the decoded images.
        placement: who holds which; None puts all of them together.
        out: where to; its folder is made.
        each: images a hospital.
        seed: of the choice of images.
    """
    suffix = out.suffix.lower()
    if suffix not in (".html", ".png"):
        raise InputError(f"--out {out}: a contact sheet is a page or a picture; choose .html or .png")
    if not 1 <= each <= MOST_EACH:
        raise InputError(f"--each {each}: so many images a hospital cannot be shown; give 1 to {MOST_EACH}")
    if out.is_dir():
        raise InputError(f"--out {out}: a folder has this name; choose another one")
    if suffix == ".html":
        content = as_html(compose(store, placement, each, seed, LARGEST)).encode()
    else:
        content = as_png(compose(store, placement, each, seed, fitting(each)), each)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, content)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); choose another place") from None

"""What `silodp data check` found, in a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from silodp.cli.suggestion import check_command, run_command
from silodp.cli.tables import make_table, numbers
from silodp.cli.terminal import console as terminal
from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.inspection import Findings
from silodp.cohorts.kinds import FileCohort
from silodp.cohorts.mask_values import in_words
from silodp.errors import printable

GROUPS = 10  # of duplicates that are named
FEW_SIZES = 3


def show_findings(findings: Findings, warnings: Sequence[str] = ()) -> None:
    """Prints what was recognised, who holds what, each problem by name, and the command to run next.

    Args:
        findings: about one path.
        warnings: that a run on it would give.
    """
    console = terminal()
    for found in _lines(findings, warnings):
        if isinstance(found, Table):
            console.print(found)
        else:
            console.print(printable(found, one_line=True), soft_wrap=True)


def _lines(findings: Findings, warnings: Sequence[str]) -> Iterator[str | Table]:
    read = f"{findings.images:,} images that can be used, of {_sizes(findings.sizes)} pixels"
    yield f"recognised: {findings.layout} (cohort.kind = {findings.settings.kind})"
    yield f"{read}{_read_as(findings)}"
    yield from _mask_values(findings)
    if findings.description:
        yield _hospitals(findings)
        auc = findings.description["position_auc"]
        if auc is not None:
            yield f"slice position alone predicts the class with AUC {auc:.3f}: a model has to beat that"
    if findings.undealt:
        counts = ", ".join(f"{name} {count:,}" for name, count in findings.classes.items())
        yield f"images of each class, or with each mask: {counts}"
        yield f"cannot be trained on: {findings.undealt}"
    for note in (*findings.notes, *warnings):
        yield f"note: {note}"
    yield from _duplicates("with the same pixels in two hospitals", findings.duplicates_across)
    yield from _duplicates("with the same pixels in one hospital", findings.duplicates)
    for leak in findings.leaks:
        yield f"leak: {leak}"
    yield from _problems(findings)
    yield from _next_command(findings)


def _next_command(findings: Findings) -> Iterator[str]:
    if findings.doubt:
        yield f"cannot be trained on: {findings.doubt.sentence}"
        for way in findings.doubt.ways:
            yield f"say it with: {check_command(findings.settings, way)}"
        return
    if findings.undealt or not findings.description:
        return
    if findings.description["classes_counted"]:
        yield (
            f"once the hospitals have agreed on it, add --set cohort.classes={len(findings.classes)}: "
            "a number that is counted in their labels is covered by no ε"
        )
    if findings.problems and not findings.skips:
        yield f"to train without what cannot be used: {run_command(findings, skip_unreadable=True)}"
    else:
        yield f"to train on it: {run_command(findings)}"


def _problems(findings: Findings) -> Iterator[str]:
    by_kind = defaultdict(list)
    for problem in findings.problems:
        by_kind[problem.what].append(problem.name)
    count = f"{len(findings.problems)} thing{'s' if len(findings.problems) > 1 else ''}"
    if by_kind and findings.skips:
        yield f"{count} cannot be used and will be left out; the {findings.images:,} images above remain:"
    elif by_kind:
        yield f"{count} cannot be used:"
    for what, names in by_kind.items():
        yield f"  {what}: {len(names)}"
        yield from (f"    {name}" for name in names)


def _sizes(sizes: Mapping[tuple[int, int], int]) -> str:
    """A few sizes one by one; of many, the smallest, the largest and the most frequent."""
    words = [f"{height} × {width} ({count:,})" for (height, width), count in sizes.items()]
    if len(words) <= FEW_SIZES:
        return ", ".join(words) or "no"
    ordered = sorted(sizes, key=lambda size: size[0] * size[1])
    ends = " to ".join(f"{height} × {width}" for height, width in (ordered[0], ordered[-1]))
    return f"{len(sizes)} sizes from {ends}, most often {words[0]}"


def _read_as(findings: Findings) -> str:
    if not findings.images:
        return ""
    channels, height, width = findings.shape
    form = (
        f"{height} × {width} {'in colour' if channels == 3 else 'in grey'}, {findings.stored / 1e6:,.1f} MB"
    )
    settings, chosen = findings.settings, ""
    if isinstance(settings, FileCohort) and settings.image_size is None and settings.kind == "folder":
        chosen = "; the largest multiple of 16 up to 256 that enlarges none (change it: cohort.image_size)"
    return f", read as {form}{chosen}"


def _mask_values(findings: Findings) -> list[str]:
    """The values in masks, in one line where those of all hospitals are the same."""
    words = {name: in_words(values) for name, values in findings.mask_values.items()}
    if len(set(words.values())) == 1:
        return [f"masks hold {next(iter(words.values()))}"]
    return [f"masks of {name} hold {values}" for name, values in words.items()]


def _duplicates(what: str, groups: Sequence[Sequence[str]]) -> Iterator[str]:
    if groups:
        yield f"images {what}: {len(groups)} times"
    yield from (f"    {' = '.join(names)}" for names in groups[:GROUPS])
    if len(groups) > GROUPS:
        yield f"    and {len(groups) - GROUPS} more; --json names all"


def _hospitals(findings: Findings) -> Table:
    """Images for training, validation and test by hospital and class."""
    assert findings.description is not None
    classes, areas = list(findings.classes), findings.mask_areas
    one_mask = findings.description["target"] == "mask" and len(classes) == 1
    headings = ["images", *(["with mask"] if one_mask else classes)]
    if areas:
        headings += ["marked"] if one_mask else [f"marked {name}" for name in classes]
    marked = " Marked: the mean share of an image's area." if areas else ""
    table = make_table(
        findings.description["partition"],
        "hospital",
        *numbers(*map(Text, headings)),
        caption=f"Each: {' / '.join(PARTS)} images.{marked}",
    )
    for hospital, parts in findings.description["hospitals"].items():
        images = " / ".join(f"{parts[part]['images']:,}" for part in PARTS)
        each = [" / ".join(f"{parts[part]['classes'][name]:,}" for part in PARTS) for name in classes]
        shares = [f"{areas[hospital][name]:.2%}" for name in classes] if areas else []
        table.add_row(Text(hospital), images, *each, *shares)
    return table

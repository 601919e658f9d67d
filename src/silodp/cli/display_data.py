"""What `silodp data check` found, in a terminal."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from silodp.cli.display import titled_table
from silodp.cli.terminal import console as terminal
from silodp.cohorts.catalogue import PARTS
from silodp.cohorts.inspection import Findings
from silodp.cohorts.kinds import StoredCohort
from silodp.errors import printable

GROUPS = 10  # of duplicates that are named


def show_findings(findings: Findings) -> None:
    """What was recognised, who holds what, and everything that is wrong, by name."""
    console = terminal()

    def say(text: str) -> None:
        console.print(printable(text, one_line=True), soft_wrap=True)

    settings = findings.settings
    say(f"recognised: {findings.layout} (cohort.kind = {settings.kind})")
    sizes = ", ".join(f"{height} × {width} ({count:,})" for (height, width), count in findings.sizes.items())
    size = f", read as {settings.image_size} × {settings.image_size}" if settings.image_size else ""
    say(f"{findings.images:,} images that can be used, of {sizes or 'no'} pixels{size}")
    if findings.description:
        console.print(_hospitals(findings))
        auc = findings.description["position_auc"]
        if auc is not None:
            say(f"slice position alone predicts the class with AUC {auc:.3f}: a model has to beat that")
    if findings.undealt:
        counts = ", ".join(f"{name} {count:,}" for name, count in findings.classes.items())
        say(f"images of each class, or with each mask: {counts}")
        say(f"cannot be trained on: {findings.undealt}")
    for note in findings.notes:
        say(f"note: {note}")
    _show_duplicates(say, "with the same pixels in two hospitals", findings.duplicates_across)
    _show_duplicates(say, "with the same pixels in one hospital", findings.duplicates)
    for leak in findings.leaks:
        say(f"leak: {leak}")
    by_kind = defaultdict(list)
    for problem in findings.problems:
        by_kind[problem.what].append(problem.name)
    if by_kind:
        say(f"{len(findings.problems)} thing{'s' if len(findings.problems) > 1 else ''} cannot be used:")
    for what, names in by_kind.items():
        say(f"  {what}: {len(names)}")
        for name in names:
            say(f"    {name}")
    if findings.description and not (findings.problems or findings.undealt):
        say(f"to train on it: {as_options(settings)}")
        if findings.description["classes_counted"]:
            say(
                f"once the hospitals have agreed on it, add --set cohort.classes={len(findings.classes)}: "
                "a number that is counted in their labels is covered by no ε"
            )


def as_options(settings: StoredCohort) -> str:
    """What `silodp run` needs to use this cohort: all that was said of it."""
    said = settings.model_dump(include=settings.model_fields_set, exclude_none=True)
    pairs = {"kind": settings.kind, "path": settings.path, **said}
    return " ".join(
        "--set " + shlex.quote(f"cohort.{name}={value if isinstance(value, str) else json.dumps(value)}")
        for name, value in pairs.items()
    )


def _show_duplicates(say: Callable[[str], None], what: str, groups: Sequence[Sequence[str]]) -> None:
    if groups:
        say(f"images {what}: {len(groups)} times")
    for names in groups[:GROUPS]:
        say(f"    {' = '.join(names)}")
    if len(groups) > GROUPS:
        say(f"    and {len(groups) - GROUPS} more; --json names all")


def _hospitals(findings: Findings) -> Table:
    """Hospitals × classes: of each the images for training, validation and test."""
    assert findings.description is not None
    table = titled_table(findings.description["partition"], f"Each: {' / '.join(PARTS)} images.")
    table.add_column("hospital")
    table.add_column("images", justify="right")
    classes = list(findings.classes)
    one_mask = findings.description["target"] == "mask" and len(classes) == 1
    for name in classes:
        table.add_column(Text("with mask" if one_mask else name), justify="right")
    for hospital, parts in findings.description["hospitals"].items():
        images = " / ".join(f"{parts[part]['images']:,}" for part in PARTS)
        each = [" / ".join(f"{parts[part]['classes'][name]:,}" for part in PARTS) for name in classes]
        table.add_row(Text(hospital), images, *each)
    return table

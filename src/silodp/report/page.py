"""Makes one self-contained HTML file of one or several runs, without scripts or network access."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from silodp.errors import InputError
from silodp.files import write_atomically
from silodp.report import curves, tables, words
from silodp.report.frame import Page, Tile, render
from silodp.report.metric import metric, shown
from silodp.report.predictions import OnProgress, Predictions, predict
from silodp.report.reading import Run, find_runs, read_runs
from silodp.runs.promise import Promise, budget_in_words, promises
from silodp.runs.record import start_record
from silodp.runs.schema import ModelTest
from silodp.runs.wording import describe_start, show_epsilon, show_interval, undefined_at

GENERATOR = "silodp report"
"""Marks our own pages, which may be overwritten."""


def make_report(
    runs: Sequence[Path], out: Path, *, images: bool | None = None, on_progress: OnProgress | None = None
) -> Path:
    """Writes the page of one or several runs.

    Args:
        runs: folders of runs, or folders with runs in them.
        out: the file, in an existing folder; an earlier page is replaced, any other file is refused.
        images: whether to show test images, which are of patients unless the cohort is synthetic; None: only
            those of synthetic cohorts.
        on_progress: called with (stage, done, total).

    Returns:
        `out`.
    """
    read = read_runs(find_runs(runs))
    refuse_place(out)
    return write_page(compose(read, images=images, on_progress=on_progress), out)


def default_place(runs: Sequence[Path]) -> Path:
    """report.html in the one folder given; for several in the current folder."""
    return (runs[0] if len(runs) == 1 else Path()) / "report.html"


def refuse_place(out: Path, option: str = "--out") -> None:
    """Refuses, before any work, a place that cannot be written or holds anything but an earlier report."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{option} {out}: a report is a page; give a name that ends in .html")
    try:
        if out.is_dir():
            raise InputError(f"{option} {out}: a folder has this name; choose another one")
        if not out.parent.is_dir():
            raise InputError(
                f"{option} {out}: there is no folder {out.parent}; make it or choose another one"
            )
        if out.exists() and f'content="{GENERATOR}"'.encode() not in out.read_bytes()[:1000]:
            raise InputError(
                f"{option} {out}: a file that is no report of silodp has this name; move it or choose "
                "another one"
            )
        # Permissions do not suffice (a read-only disk, /proc): only writing a temporary file tells.
        with TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise _unwritable(out, option, error) from None


def write_page(page: Page, out: Path, option: str = "--out") -> Path:
    try:
        write_atomically(out, page.html.encode("utf-8", "replace"))  # a name may hold a lone surrogate
    except OSError as error:
        raise _unwritable(out, option, error) from None
    return out


def _unwritable(out: Path, option: str, error: OSError) -> InputError:
    return InputError(
        f"{option} {out}: cannot be written ({error.strerror}); choose another place with {option}"
    )


def compose(
    runs: Sequence[Run], *, images: bool | None = None, on_progress: OnProgress | None = None
) -> Page:
    """The page of these runs."""
    predictions = [predict(run, images=images, on_progress=on_progress) for run in runs]
    return render(
        "page.html",
        GENERATOR,
        f"{len(runs)} runs compared" if len(runs) > 1 else f"Run «{runs[0].name}»",
        any(found.of_patients for found in predictions),
        runs=[_view(run, found) for run, found in zip(runs, predictions, strict=True)],
        comparison=_comparison(runs) if len(runs) > 1 else None,
    )


def _view(run: Run, predictions: Predictions) -> dict[str, Any]:
    """Variables of the template for a run."""
    charts, missing = curves.training_charts(run)
    best, start = run.test("best"), start_record(run.experiment)
    return promised(run) | {
        "title": f"{run.label} {run.name}".strip(),
        "headline": words.headline(run),
        "tiles": _tiles(run),
        "hospitals": words.hospitals(run),
        "pictures": words.pictures(run),
        "start": describe_start(start).removeprefix("start: ") if start else "",
        "targets": words.targets(run),
        "network": words.NETWORKS.get(run.experiment.model.kind, run.experiment.model.kind),
        "baseline": words.baseline(run),
        "notes": words.notes(run.cohort) if run.cohort else [],
        "holdings": tables.holdings(run),
        "charts": charts,
        "missing": missing,
        "epsilon_chart": curves.epsilon_chart(run),
        "budget": _budget(run),
        "results": tables.results(run),
        "best_round": best["round"] if best else None,
        "metrics": [metric(name, run.classes) for name in (best["mean"] if best else ())],
        "predictions": predictions,
        "shown": words.shown_without_cover(run),
        "command": _command(run),
        "from_python": "custom" in (run.experiment.cohort.kind, run.experiment.model.kind),
        "toml": run.experiment.to_toml(),
    }


def promised(run: Run) -> dict[str, Any]:
    """Variables of the template on both ε."""
    return {
        "run": run,
        "promises": _promises(run),
        "not_covered": run.statement.not_covered if run.statement else (),
    }


def _promises(run: Run) -> list[Promise]:
    """The ε of each unit, hospital first; empty before the first release."""
    statement = run.statement
    if statement is None or (not statement.releases and not statement.unprotected):
        return []
    image_delta = run.experiment.privacy.image_delta
    return promises(statement.epsilon, statement.delta, image_delta, statement.intermediaries[1])


def main_tiles(run: Run, test: ModelTest | None) -> list[Tile]:
    """Both ε, and the headline metric of a test, or of the validation so far."""
    tiles = []
    for found in _promises(run):
        remark = f"as a formal promise: {found.strength}"
        if run.statement and run.statement.unprotected:
            remark += "; does not cover everything"
        tiles.append((f"ε for {found.unit}", show_epsilon(found.epsilon), remark))
    value = test["mean"].get(run.headline) if test else None
    if test is None and run.metrics:
        value = run.metrics[-1]["validation"]["mean"].get(run.headline)
    if not (test["tried"] if test else run.has_figures):
        return tiles
    part = "test" if test else "validation"
    edges = show_interval(test["intervals"]["mean"].get(run.headline)) if test else ""
    remark = f"95 % interval {edges}, mean over hospitals" if edges else "mean over hospitals"
    if test and (lacking := len(undefined_at(test, run.headline))):
        count = len(test["hospitals"])
        remark += f", {count - lacking} of {count}"
    return [*tiles, (f"{metric(run.headline).name} on {part} images", shown(value), remark)]


def _tiles(run: Run) -> list[Tile]:
    tiles = main_tiles(run, run.test("last"))
    stopped = "the budget ended the run" if run.summary and run.summary["stopped"] else ""
    planned = "" if run.rounds == run.experiment.rounds else f"of {run.experiment.rounds}"
    tiles.append(("Rounds", str(run.rounds), " ".join(filter(None, [planned, stopped]))))
    return tiles


def _budget(run: Run) -> str:
    limit, statement = run.experiment.budget, run.statement
    if limit is None or statement is None or statement.budget_spent is None:
        return ""
    return budget_in_words(limit, statement.budget_spent)


def _command(run: Run) -> str:
    command = "silodp deploy run DIR" if run.experiment.cohort.kind == "deployed" else "silodp run"
    return f"{command} {shlex.quote(str(run.folder / 'experiment.toml'))}"


def _comparison(runs: Sequence[Run]) -> dict[str, Any]:
    """Variables of the template to compare runs."""
    deltas = {run.statement.delta for run in runs if run.statement is not None}
    first = {words.headline(run)[0] for run in runs}
    return {
        "in_common": first.pop() if len(first) == 1 else "",
        "charts": curves.comparison_charts(runs),
        "table": tables.comparison(runs),
        "differences": tables.differences(runs),
        "uncovered": any(run.statement is not None and run.statement.unprotected for run in runs),
        "data_differ": len({str(run.cohort) for run in runs}) > 1,
        "deltas_differ": len(deltas) > 1,
    }

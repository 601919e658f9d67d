"""How studies write: figures in words, lines of runs, pictures; hospital before intermediary everywhere."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from silodp.files import write_atomically
from silodp.privacy.events import UNITS
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.runs.wording import SEEN, show_epsilon, tested_on
from silodp.studies.study import Found, Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHOUT, WITH = "#D55E00", "#0072B2"
"""Colours of runs without and with intermediaries, which colour-blind people tell apart."""

DPI = 150  # of the png

METRIC_NAMES = {"dice": "Dice", "iou": "IoU", "auc": "AUC", "accuracy": "accuracy"}


def write_figure(out: Path, name: str, figure: Figure) -> None:
    """As svg and as png, the same bytes for the same content."""
    import matplotlib

    for kind in ("svg", "png"):
        content = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "silodp"}):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(content, format=kind, dpi=DPI, metadata=metadata)
        write_atomically(out / f"{name}.{kind}", content.getvalue())


def write_markdown(
    out: Path, title: str, plan: Plan, found: Sequence[Found], parts: Iterable[str], training: str = ""
) -> None:
    """table.md: a title, what the numbers rest on, and the parts, a paragraph or table each.

    Args:
        training: see `setting`.
    """
    content = "\n\n".join([f"# {title}", setting(plan, found, training), *parts, caution(plan, found)])
    write_atomically(out / "table.md", (content + "\n").encode())


def run_rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    """results.csv: a line a run."""
    return [
        {
            **one.cell.columns,
            "rounds": one.summary["rounds"],
            "hospitals": one.summary["members"],
            "epsilon_hospital": one.epsilon("hospital"),
            "epsilon_intermediary": one.epsilon("intermediary"),
            "delta": one.summary["delta"],
            "covers_everything": one.summary["epsilon"]["covers_everything"],
            "v": one.summary["intermediaries"],
            **{f"test_{name}": one.test(name) for name in one.summary["test"]["last"]["mean"]},
            **_on_whom(one),
            "best_round": one.summary["best_round"],
            **{f"best_{name}": one.test(name, "best") for name in one.summary["test"]["best"]["mean"]},
            "parameters": one.summary["parameters"],
            "seconds": one.summary["wall_seconds"],
            "device": one.summary["device"],
            "torch": one.summary["torch"],
            "silodp": one.summary["silodp"],
            "run": one.folder.name,
        }
        for one in found
    ]


def _on_whom(one: Found) -> dict[str, Any]:
    """What the test figures of a run rest on."""
    test, headline = one.summary["test"]["last"], one.summary["headline"]
    images, patients = tested_on(test)
    low, high = test["intervals"]["mean"].get(headline, (None, None))
    other = test["other"]
    return {
        f"test_{headline}_low": low,
        f"test_{headline}_high": high,
        "test_images": images,
        "test_patients": patients,
        "test_batch": test["batch"],
        f"other_batch_{headline}": other and other["mean"].get(headline),
    }


def setting(plan: Plan, found: Sequence[Found], training: str = "") -> str:
    """What the numbers rest on, in a paragraph.

    Args:
        training: the network and how it trains, where not all runs have them from the plan's base.
    """
    first, experiment = found[0].summary, plan.base
    cohort = first["cohort"]
    dealt = f", {cohort['partition']}" if "partition" in cohort else f", {cohort['hospitals']} hospitals"
    versions = sorted({one.summary["silodp"] for one in found})
    seeds = ", ".join(map(str, plan.seeds))
    local, devices = experiment.local, sorted({one.summary["device"] for one in found})
    usual = (
        f"{experiment.model.kind} with {first['parameters']:,} parameters; rounds "
        f"{distinct(found, 'rounds')}; local {local.optimizer} at {local.learning_rate:g}, batches of "
        f"{local.batch_size}, {local.epochs:g} epoch a round"
    )
    lines = [
        f"{cohort['cohort']}, {cohort['images']:,} images{dealt}; {training or usual}; "
        f"seed{'s' * (len(plan.seeds) > 1)} {seeds}; {'; '.join(devices)}; PyTorch {first['torch']}; "
        f"silodp {', '.join(versions)}.",
    ]
    lines += said_of_part(plan)
    if plan.command:
        lines += ["", f"```sh\n{plan.command}\n```"]
    return "\n".join(lines)


def said_of_part(plan: Plan) -> list[str]:
    """Where --only left something out."""
    text = f"This is a part of the study: only the runs with «{plan.only}» in their names (--only)."
    return [text] if plan.only else []


def caution(plan: Plan, found: Sequence[Found]) -> str:
    """What a reader of these ε must know."""
    lines = [
        "ε is for add-or-remove neighbours at δ = "
        f"{distinct(found, 'delta')}; the hospital's is what counts for a hospital, the intermediary's "
        "(the only one the paper prints) protects one part of one.",
        f"Metrics are of {_whose_model(found)} on test images, mean over hospitals"
        + (f" and {len(plan.seeds)} seeds (± standard deviation)" if len(plan.seeds) > 1 else ", one seed")
        + f"; no ε covers them. {_tested(found)}",
        "The paper tests the round that was best in validation, a choice that no ε covers.",
        *_uncovered_rules(found),
        *_withdrawn(found),
    ]
    if found[0].summary["cohort"].get("simulated", True):
        lines.append("The hospitals are simulated.")
    return " ".join(lines)


def _whose_model(found: Sequence[Found]) -> str:
    averaged = {one.cell.experiment.averaged_rounds > 0 for one in found}
    if averaged == {True}:
        return "the mean of the last rounds' models (server.average)"
    return "the last round's model" + " (the recipe: of the mean of the last rounds')" * (True in averaged)


def _tested(found: Sequence[Found]) -> str:
    """On how many images, and how the network saw them."""
    tests = [one.summary["test"]["last"] for one in found]
    images, patients = tested_on(tests[0])
    whom = f"{images:,} test images" + (f" of {patients:,} patients" if patients is not None else "")
    ways = sorted({SEEN[test["batch"]] for test in tests})
    text = f"They rest on {whom}, {' or '.join(ways)}; results.csv has a 95 % interval for each run"
    if any(test["other"] for test in tests):
        text += ", and the same model's figure in batches of a hospital, as in the authors' program"
    return f"{text}."


def _uncovered_rules(found: Sequence[Found]) -> list[str]:
    """What steers a run besides releases, by the rules of these runs."""
    open_ = [one.cell.experiment for one in found if not one.summary["epsilon"]["covers_everything"]]
    bound = ["C is the exact median of the norms"] * any(one.clipping.reads_norms for one in open_)
    count = ["v follows from un-noised norms"] * any(one.intermediaries.uncovered for one in open_)
    if not (bound or count):
        return []
    which = "these two" if bound and count else "it"
    return [f"As in the authors' program {' and '.join(bound + count)}: no ε covers {which}."]


def _withdrawn(found: Sequence[Found]) -> list[str]:
    """Where v changed, what the paper would print is nobody's."""
    open_ = [one for one in found if one.summary["epsilon"]["withdrawn"]]
    if not open_:
        return []
    printed = {
        one.cell.experiment.privacy.noise_multiplier: gaussian_epsilon(
            math.sqrt(one.summary["rounds"]) / one.cell.experiment.privacy.noise_multiplier,
            one.summary["delta"],
        )
        for one in open_
    }
    counted = ", ".join(f"{show_epsilon(printed[z])} at z = {z:g}" for z in sorted(printed))
    return [
        "Where v changed on the way, another v deals a hospital's images out anew: no intermediary lasted, "
        "and the hospital's ε stands for it. "
        f"Counted as the paper does it would be {counted}, which is nobody's."
    ]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds, the mean alone where there is one; how many have no value."""
    known = [value for value in values if not math.isnan(value)]
    text = f"{statistics.mean(known):.{digits}f}" if known else "–"
    if len(known) > 1:
        text += f" ± {statistics.stdev(known):.{digits}f}"
    return text + (f" ({len(known)} of {len(values)} seeds defined)" if len(known) < len(values) else "")


def mean_test(runs: Iterable[Found], metric: str) -> float:
    """Mean of a test metric over the runs for which it is defined; NaN if there is none."""
    return defined_mean(one.test(metric) for one in runs)


def defined_mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.mean(known) if known else math.nan


def signed(value: float) -> str:
    """A difference."""
    return "–" if math.isnan(value) else f"{value:+.3f}"


def distinct(found: Iterable[Found], key: Literal["rounds", "delta", "intermediaries"]) -> str:
    """The different numbers that summaries have under a key, from the smallest: «9, 10»."""
    return ", ".join(f"{value:g}" for value in sorted({one.summary[key] for one in found})) or "–"


def show_printed(values: Sequence[float] | None, place: int = 0) -> str:
    """A figure of the paper: mean ± std where it has one."""
    if values is None:
        return "–"
    return f"{values[place]:.3f}" + (f" ± {values[place + 1]:.3f}" if len(values) == 4 else "")


def select(found: Iterable[Found], **columns: Any) -> list[Found]:
    """The runs with these values in their columns."""
    return [one for one in found if all(one.cell.columns[key] == value for key, value in columns.items())]


def pair(found: Iterable[Found], **columns: Any) -> tuple[list[Found], list[Found]]:
    """The runs with these values in their columns, without and with intermediaries."""
    here = select(found, **columns)
    return select(here, intermediaries="without"), select(here, intermediaries="with")


PAIRED = ("ε hospital: without", "with", "ε intermediary: with", "v, last round")


def paired_privacy(without: Sequence[Found], with_: Sequence[Found]) -> list[str]:
    """What stands under `PAIRED`."""
    return [epsilons(without)[0], *epsilons(with_), distinct(with_, "intermediaries")]


def epsilons(runs: Sequence[Found]) -> list[str]:
    """ε of a hospital, and of an intermediary."""
    return [between([one.epsilon(unit) for one in runs]) for unit in UNITS]


def between(values: Sequence[float]) -> str:
    """One ε, or the least and the most of several."""
    if not values:
        return "–"
    low, high = show_epsilon(min(values)), show_epsilon(max(values))
    return low if low == high else f"{low}–{high}"

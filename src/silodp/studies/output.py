"""The results of a study as data, and how they are written: csv, Markdown and figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silodp.files import write_atomically
from silodp.privacy.gaussian import gaussian_epsilon
from silodp.runs.wording import SEEN, show_epsilon, tested_on
from silodp.studies.claims import Claim, claims_table
from silodp.studies.columns import distinct
from silodp.studies.pictures import Picture, write_picture
from silodp.studies.study import CellRun, Plan, Study
from silodp.tables import write_csv


@dataclass(frozen=True)
class Results:
    """The results of a study.

    Attributes:
        title: of table.md.
        runs: the runs behind the figures; results.csv has a row for each.
        parts: paragraphs and Markdown tables of table.md.
        claims: below the parts.
        notes: paragraphs below the claims.
        pictures: by file name.
        tables: csv files by name; "results.csv" replaces the usual one.
        training: description of network and training, where they differ between runs.
    """

    title: str
    runs: Sequence[CellRun]
    parts: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    training: str = ""


def write_study(study: Study, out: Path, plan: Plan, found: Sequence[CellRun]) -> None:
    """Writes all files of a study: table.md, results.csv and other tables, figures as svg and png."""
    results = study.results(plan, found)
    for name, rows in ({"results.csv": run_rows(results.runs)} | dict(results.tables)).items():
        if rows:
            write_csv(out / name, rows)
    text = [f"# {results.title}"]
    if results.runs:
        text.append(setting(plan, results))
    if plan.only:
        text.append(f"This is a part of the study: only the runs with «{plan.only}» in their names (--only).")
    if plan.command:
        text.append(f"```sh\n{plan.command}\n```")
    text += results.parts
    if results.claims:
        text.append(claims_table(results.claims))
    text += results.notes
    if results.runs:
        text.append(caution(plan, results.runs))
    write_atomically(out / "table.md", ("\n\n".join(text) + "\n").encode())
    for name, picture in results.pictures.items():
        write_picture(out, name, picture)


def run_rows(found: Sequence[CellRun]) -> list[dict[str, Any]]:
    """results.csv: a row for each run."""
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
            **_test_columns(one),
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


def _test_columns(one: CellRun) -> dict[str, Any]:
    """Columns on the test of a run: interval, images, patients."""
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


def setting(plan: Plan, results: Results) -> str:
    """A paragraph on data, network, seeds, devices and versions."""
    found = results.runs
    first, experiment = found[0].summary, found[0].cell.experiment
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
    return (
        f"{cohort['cohort']}, {cohort['images']:,} images{dealt}; {results.training or usual}; "
        f"seed{'s' * (len(plan.seeds) > 1)} {seeds}; {'; '.join(devices)}; PyTorch {first['torch']}; "
        f"silodp {', '.join(versions)}."
    )


def caution(plan: Plan, found: Sequence[CellRun]) -> str:
    """A paragraph of caveats on ε and metrics."""
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


def _whose_model(found: Sequence[CellRun]) -> str:
    averaged = {one.cell.experiment.averaged_rounds > 0 for one in found}
    if averaged == {True}:
        return "the mean of the last rounds' models (server.average)"
    return "the last round's model" + " (the recipe: of the mean of the last rounds')" * (True in averaged)


def _tested(found: Sequence[CellRun]) -> str:
    """A sentence on the number of test images and on how they were batched."""
    tests = [one.summary["test"]["last"] for one in found]
    images, patients = tested_on(tests[0])
    whom = f"{images:,} test images" + (f" of {patients:,} patients" if patients is not None else "")
    ways = sorted({SEEN[test["batch"]] for test in tests})
    text = f"They rest on {whom}, {' or '.join(ways)}; results.csv has a 95 % interval for each run"
    if any(test["other"] for test in tests):
        text += ", and the same model's figure in batches of a hospital, as in the authors' program"
    return f"{text}."


def _uncovered_rules(found: Sequence[CellRun]) -> list[str]:
    """A caveat on rules that read un-noised statistics."""
    open_ = [one.cell.experiment for one in found if not one.summary["epsilon"]["covers_everything"]]
    bound = ["C is the exact median of the norms"] * any(one.clipping.reads_norms for one in open_)
    count = ["v follows from un-noised norms"] * any(one.intermediaries.uncovered for one in open_)
    if not (bound or count):
        return []
    which = "these two" if bound and count else "it"
    return [f"As in the authors' program {' and '.join(bound + count)}: no ε covers {which}."]


def _withdrawn(found: Sequence[CellRun]) -> list[str]:
    """A caveat where v changed: the ε that the paper would print then protects no unit."""
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
        "Where v changed during a run, patients were divided anew: no intermediary lasted, and the "
        f"hospital's ε is shown. Counted as in the paper it would be {counted}, which protects nobody."
    ]

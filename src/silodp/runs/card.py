"""A model card: one page of Markdown about a trained model, written with each run."""

from __future__ import annotations

from silodp.experiment import ResolvedExperiment
from silodp.files import to_json
from silodp.runs.promise import summary_in_words
from silodp.runs.schema import CohortFile, Summary, or_nan
from silodp.runs.wording import (
    NO_FIGURES,
    SEEN,
    describe_cohort,
    describe_start,
    describe_test,
    sentence,
    show_interval,
    with_unit,
)


def model_card(experiment: ResolvedExperiment, summary: Summary, cohort: CohortFile) -> str:
    """Writes the card: what the model is, its test results, its privacy, and its limits."""
    parts = [
        f"# {summary['experiment']}",
        experiment.description,
        _what(experiment, summary, cohort),
        _how_well(summary),
        _privacy(summary),
        _limits(summary),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def model_facts(
    experiment: ResolvedExperiment, cohort: CohortFile, version: str, ledger: str
) -> dict[str, str]:
    """Metadata of a model file: its task, the preparation of images, and the hash of its ledger."""
    facts = {
        "task": experiment.task,
        "network": experiment.model.kind,
        "preparation": {
            "channels": cohort["channels"], "size": cohort["size"], "storage": cohort["storage"],
            "classes": cohort["classes"],
        },
        "version": version,
        "ledger": ledger,
    }  # fmt: skip
    return {"silodp": to_json(facts)}  # one entry: safetensors writes several in any order


def _what(experiment: ResolvedExperiment, summary: Summary, cohort: CohortFile) -> str:
    height, width = cohort["size"]
    what = "masks of" if cohort["target"] == "mask" else "one of the classes"
    names = ", ".join(map(str, cohort["classes"]))
    scaling = "bytes scaled to −1…1" if cohort["storage"] == "uint8" else f"numbers as {cohort['storage']}"
    lines = [
        f"- Task: {summary['task']}; it predicts {what} {names}.",
        f"- Input: {height} × {width} pixels, {cohort['channels']} channel(s), {scaling}; "
        "`silodp predict` and `silodp.load` prepare images themselves.",
        f"- Network: {experiment.model.kind}, {summary['parameters']:,} trained parameters; rounds: "
        f"{summary['rounds']}; {summary['members']} hospitals trained it together.",
        f"- {sentence(describe_cohort(summary['cohort']))}",
        *([f"- {sentence(describe_start(start))}"] if (start := summary.get("start")) else []),
        f"- Made with silodp {summary['silodp']} and PyTorch {summary['torch']} on {summary['device']}.",
    ]
    return "\n".join(["## What it is", "", *lines])


def _how_well(summary: Summary) -> str:
    test = summary["test"]["last"]
    if not test["tried"]:
        return f"## How well it does\n\n{sentence(NO_FIGURES)}"
    rows = ["| metric | test, mean over hospitals | 95 % interval |", "|---|---|---|"]
    for name, value in test["mean"].items():
        edges = show_interval(test["intervals"]["mean"].get(name))
        rows.append(f"| {with_unit(name)} | {or_nan(value):.3f} | {edges} |")
    told = [f"- {sentence(line)}" for line in describe_test(test, summary["headline"])]
    return "\n".join(["## How well it does", "", *rows, "", *told])


def _privacy(summary: Summary) -> str:
    first, *more = summary_in_words(summary)
    covered = [f"  - {note}" for note in summary["not_covered_by_epsilon"]]
    lines = [f"- **{first}**", *(f"- {text}" for text in more)]
    if more:  # there is an ε
        lines += ["- ε does not cover:", *covered]
    return "\n".join(["## Privacy", "", *lines])


def _limits(summary: Summary) -> str:
    test = summary["test"]["last"]
    lines = ["- For research. It is no medical device, and nobody has tried it in a clinic."]
    if test["tried"]:
        lines.append(
            f"- Its figures are for images like those above, {SEEN[test['batch']]}; for other scanners, "
            "hospitals or people they say nothing: try it with `silodp evaluate` first."
        )
    else:
        lines.append("- Try it on labelled images of your own with `silodp evaluate` before anything else.")
    if summary["cohort"].get("simulated", False) or "simulated" not in summary["cohort"]:
        lines.append("- The hospitals were simulated: real ones are less alike.")
    return "\n".join(["## Limits", "", *lines])

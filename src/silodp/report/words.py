"""The sentences of a page: who trained what on which images, how well, and at which privacy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from silodp.report.metric import class_name, metric, shown
from silodp.runs.promise import promises_in_words
from silodp.runs.schema import CohortFile, ModelTest
from silodp.runs.wording import (
    NO_FIGURES,
    describe_baseline,
    describe_certainty,
    joined_by_and,
    sentence,
)

if TYPE_CHECKING:  # it brings PyTorch along
    from silodp.report.reading import Run

IMAGES = {
    "synthetic-mri": "synthetic MRI slices",
    "synthetic-ct": "synthetic CT slices",
    "rsna-ich": "head CT slices",
    "prostate": "prostate MRI slices",
    "deployed": "images that stay at their hospitals",
    "custom": "images that were given from Python",
}
SCALES = {"dice": "1 is perfect, 0 is no overlap; ", "auc": "1 is perfect, 0.5 is guessing; "}
NETWORKS = {
    "unet": "U-Net",
    "densenet": "DenseNet",
    "resnet": "ResNet",
    "custom": "network that was given from Python",
}


def several(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def hospitals(run: Run) -> str:
    """How many hospitals trained, and whether they are simulated."""
    count, members = run.experiment.hospitals, run.experiment.members
    kind = "simulated hospital" if run.experiment.cohort.simulated else "hospital"
    return several(count, kind) if members == count else f"{members} of {several(count, kind)}"


def pictures(run: Run) -> str:
    """How many images of which kind."""
    kind = IMAGES.get(run.experiment.cohort.kind, "images from files")
    return f"{run.cohort['images']:,} {kind}" if run.cohort else kind


def purpose(run: Run) -> str:
    classes = run.classes
    named = [name for name in classes if not name.isdigit()]
    if run.experiment.task == "segmentation":
        return f"to outline {joined_by_and(named)}" if named else "to draw outlines"
    if len(classes) == 2 and len(named) == 2:
        return f"to tell «{named[1]}» from «{named[0]}»"
    return f"to tell {len(classes) or 'the'} classes apart"


def headline(run: Run) -> list[str]:
    """A summary of the run in a few sentences."""
    return [trained(run), _how_well(run), *how_private(run)]


def trained(run: Run) -> str:
    """A sentence on who trained what."""
    network = NETWORKS.get(run.experiment.model.kind, "network")
    return sentence(f"{hospitals(run)} trained one {network} together {purpose(run)}, using {pictures(run)}")


def reached(headline: str, test: ModelTest) -> str:
    """Sentences on a test result and its uncertainty."""
    if not test["tried"]:
        return sentence(NO_FIGURES)
    value = test["mean"].get(headline)
    text = _reaches(headline, value, f"After {several(test['round'], 'round')}", "test")
    if shown(value) == "–":
        return text
    certainty = ". ".join(sentence(text).rstrip(".") for text in describe_certainty(test, headline))
    return f"{text} {sentence(certainty)}"


def _how_well(run: Run) -> str:
    if (test := run.test("last")) is not None:
        return reached(run.headline, test)
    if not run.metrics:
        return "No round is finished yet."
    if not run.has_figures:
        return sentence(NO_FIGURES)
    value = run.metrics[-1]["validation"]["mean"].get(run.headline)
    return _reaches(run.headline, value, f"After {several(run.rounds, 'round')} so far", "validation")


def _reaches(headline: str, value: float | None, after: str, part: str) -> str:
    name, scale = metric(headline).name, SCALES.get(headline, "")
    if shown(value) == "–":
        return f"{after} its {name} on {part} images is not defined."
    return f"{after} it reaches {name} {shown(value)} on {part} images ({scale}mean over hospitals)."


def how_private(run: Run) -> list[str]:
    """Sentences on both ε of a run and what they do not cover."""
    if run.statement is None:
        return ["Its privacy cost is unknown: see the problem above."] if run.problems else []
    if not run.statement.releases and not run.statement.unprotected:
        return ["Nothing has been released yet, so no privacy is spent."]
    statement, image_delta = run.statement, run.experiment.privacy.image_delta
    return promises_in_words(
        statement.epsilon, statement.delta, image_delta, statement.intermediaries[1], statement.unprotected
    )


def shown_without_cover(run: Run) -> list[str]:
    """What the page shows although no ε covers it: un-noised numbers from hospitals' images."""
    shown = ["how many images of which kind each holds"]
    if run.has_figures:
        shown.insert(0, "metrics on validation and test images, by hospital")
    if run.experiment.clipping.reads_norms:
        shown.append("the clip bound C of each round, from un-noised norms")
    if run.experiment.intermediaries.uncovered:
        shown.append("v of each round, estimated from un-noised norms")
    if run.experiment.diagnostics:
        shown.append("noise ratio, spread of cosines and training loss (diagnostics = true)")
    return shown


def targets(run: Run) -> str:
    """What the network predicts: masks or classes, by name if they have names."""
    names = run.classes
    kind = "mask" if run.cohort and run.cohort["target"] == "mask" else "class"
    if not all(name.isdigit() for name in names):
        return joined_by_and(class_name(name, kind) for name in names)
    kinds = kind if len(names) == 1 else {"mask": "masks", "class": "classes"}[kind]
    return f"{len(names)} {kinds}, not named"


def baseline(run: Run) -> str:
    """The AUC that a model must exceed, where it is known."""
    test = run.test("last")
    defined = test is not None and test["mean"].get("auc") is not None
    return describe_baseline(run.summary) if run.summary and defined else ""


def notes(cohort: CohortFile) -> list[str]:
    """The notes on the cohort as sentences without names of files, which may identify patients."""
    names = set(cohort.get("files", ()))
    for parts in cohort.get("members", {}).values():
        names.update(name for part in parts.values() for name in part)
    return [sentence(text) for text in without_names(cohort.get("notes", ()), names)]


def seen_before(files: int, seen: int | None) -> str:
    """Whether a model's run read the files that it is tried on."""
    if seen is None:
        return "whether the model was trained on any of it was not checked"
    if not seen:
        return "its run read none of these files"
    return f"its run read {seen:,} of these {several(files, 'file')} as well: the figures may be too good"


def without_names(lines: Sequence[str], names: Iterable[str]) -> list[str]:
    """Lines without the names of files and patients, nor the brackets that list some.

    Names that are short numbers or plain words stay, since they look like counts or prose.
    """
    words, text = set(names), "\n".join(lines)
    words |= {word.split("#")[0] for word in words}
    telling = [word for word in words if word in text and re.search(r"\d{5}|\D\d|\d\D|[./]", word)]
    hidden = []
    for line in lines:
        for word in sorted(telling, key=len, reverse=True):
            line = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "\0", line)
        hidden.append(re.sub(r" *\([^()]*\0[^()]*\)", "", line).replace("\0", "…"))
    return hidden

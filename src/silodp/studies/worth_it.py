"""Is federation worth it for a hospital? Four models on its own test images, for federations of N hospitals.

Alone: the start, fine-tuned by the hospital on its own images. Released: the recipe's, at ε = 8 for a
hospital. Personal: the released one, fine-tuned in the same way. Federated: all parameters, nobody protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from silodp.errors import InputError
from silodp.runs.schema import or_nan
from silodp.studies.claims import Claim, everywhere
from silodp.studies.columns import (
    METRIC_NAMES,
    Columns,
    defined_mean,
    distinct,
    epsilon,
    group_by,
    select,
    show,
    signed,
    table,
)
from silodp.studies.output import Results
from silodp.studies.pictures import BLUE, GREEN, GREY, ORANGE, Level, Line, Panel, Picture
from silodp.studies.study import Cell, CellRun, Plan, Study, read_product
from silodp.studies.whole_hospital import (
    ICH_BASES,
    PROSTATE_BASES,
    RECIPE,
    PersonalFile,
    cell_at,
    product_of,
    same_generator,
    train_and_personalise,
)

if TYPE_CHECKING:
    from silodp.runs.personal import Tuning

EPSILON = 8.0
NUMBERS = (3, 6, 10, 20)
FEDERATED = "federated"

LINES = {
    "alone": ("alone: own fine-tuning of the start", GREY, "o--"),
    "released": ("released, with privacy for a hospital", ORANGE, "s:"),
    "personal": ("personal: released, then own fine-tuning", BLUE, "^-"),
    "federated": ("federated without privacy, all parameters", GREEN, "D-."),
}
"""Description, colour and style of each model; distinguishable without colours, too."""

Home = dict[str, Any]
"""A row of hospitals.csv: a hospital of a run, its images, and the headline metric of each model on its own
test images; NaN where that is undefined."""


def tuning_of(plan: Plan) -> Tuning:
    from silodp.runs.personal import Tuning

    return Tuning(epochs=1, batch_size=4) if plan.scale == "smoke" else Tuning()


def cells(plan: Plan) -> list[Cell]:
    tuning = tuning_of(plan)
    work = partial(train_and_personalise, tuning=tuning)
    return [
        cell
        for seed in plan.seeds
        for members in numbers(plan)
        for cell in (
            _cell(plan, RECIPE, EPSILON, members, seed, {}, work=work, product=product_of(tuning)),
            _cell(plan, FEDERATED, math.inf, members, seed, {"model.trainable": "all"}),
        )
    ]


def numbers(plan: Plan) -> list[int]:
    """Sizes of federations: 3, 6, 10 and 20 as far as the cohort has them, and all of it up to 20."""
    available = _available(plan)
    if available < NUMBERS[0]:
        raise InputError(f"cohort: {available} hospitals; worth-it needs {NUMBERS[0]} or more, give it more")
    return sorted({number for number in NUMBERS if number <= available} | {min(available, NUMBERS[-1])})


def _available(plan: Plan) -> int:
    """Number of hospitals that could train; reads the cohort only where no setting tells it."""
    base = plan.base
    return base.participation.members or base.cohort.hospitals or len(plan.training_sizes)


def _cell(
    plan: Plan, method: str, epsilon: float, members: int, seed: int, changes: dict[str, Any], **other: Any
) -> Cell:
    """A cell in which the first `members` hospitals train; with all of them other studies share the run."""
    some = members < _available(plan)
    if some:
        changes = {**changes, "participation.members": members}
    return cell_at(plan, method, epsilon, seed, changes, f"{members}hospitals" * some, **other)


def results(plan: Plan, found: Sequence[CellRun]) -> Results:
    released = select(found, method=RECIPE)
    if not released:
        raise InputError(f"--only {plan.only}: includes none of the runs at ε = {EPSILON:g}; include more")
    homes = [home for one in released for home in _scores(plan, one, select(found, method=FEDERATED))]
    tuning, local = tuning_of(plan), plan.base.local
    explanation = (
        "The first N hospitals of the cohort train; each model is judged on a hospital's own test images, "
        f"mean over these N. The released model is the recipe's, {distinct(released, 'parameters')} numbers "
        "trained, the federated one without privacy is all of the network. Own fine-tuning, for «alone» from "
        "the start and for «personal» from the released model: all parameters, SGD at "
        f"{tuning.learning_rate:g}, batches of {tuning.batch_size}, {tuning.epochs} "
        f"epoch{'s' * (tuning.epochs > 1)}. The result stays in the hospital, so it costs no ε. Rows have "
        "different hospitals: compare models within a row."
    )
    if plan.base.privacy.delta is None:
        explanation += (
            " δ follows N by the paper's rule, 10^-k ≤ 1/N: compare the ε of rows with the same δ only."
        )
    task = "Prostate" if plan.task == "prostate" else "Haemorrhage"
    return Results(
        f"Is federation worth it for a hospital? {task}",
        found,
        [explanation, _table(plan, released, homes)],
        claims(plan, homes),
        [*note_on_few_hospitals(plan), *same_generator(plan)],
        {"worth-it": _picture(plan, homes)},
        {"hospitals.csv": homes},
        training=(
            f"{plan.base.model.kind}, all runs from the start {plan.base.model.start}; rounds "
            f"{distinct(found, 'rounds')}; local {local.optimizer} at {local.learning_rate:g}, batches of "
            f"{local.batch_size}"
        ),
    )


def _scores(plan: Plan, one: CellRun, federated: Sequence[CellRun]) -> list[Home]:
    """The hospitals of a run, with the scores of the same federation without privacy."""
    metric, members, seed = plan.metrics[0], one.summary["members"], one.cell.columns["seed"]
    alike = [other for other in select(federated, seed=seed) if other.summary["members"] == members]
    open_ = alike[0].summary["test"]["last"]["hospitals"] if alike else {}
    file = read_product(PersonalFile, one.folder / one.cell.product)
    return [
        {
            "members": members,
            "seed": seed,
            "hospital": name,
            "training_images": one.training_images[name],
            "test_images": one.summary["test"]["last"]["tried"][name]["images"],
            **{model: or_nan(scores[model][metric]) for model in ("alone", "released", "personal")},
            "federated": or_nan(open_[name][metric]) if name in open_ else math.nan,
        }
        for name, scores in file["hospitals"].items()
    ]


def _by_number(homes: Sequence[Home]) -> dict[int, list[Home]]:
    return dict(sorted(group_by(homes, lambda home: int(home["members"])).items()))


def _gains(homes: Iterable[Home], model: str = "personal") -> list[float]:
    """Gains of a model over «alone», hospital by hospital, where both are defined."""
    gains = [home[model] - home["alone"] for home in homes]
    return [gain for gain in gains if not math.isnan(gain)]


def _table(plan: Plan, released: Sequence[CellRun], homes: Sequence[Home]) -> str:
    by_number = _by_number(homes)
    runs = group_by(released, lambda one: one.summary["members"])

    def mean_of(model: str) -> Callable[[int], str]:
        return lambda n: show(defined_mean(home[model] for home in by_number[n]))

    def hospitals_that_gain(n: int) -> str:
        gains = _gains(by_number[n])
        return f"{sum(gain > 0 for gain in gains)} of {len(gains)}"

    columns: Columns[int] = (
        ("hospitals N", str),
        ("δ", lambda n: distinct(runs[n], "delta")),
        ("ε hospital", lambda n: epsilon(runs[n], "hospital")),
        ("training images each", lambda n: f"{mean(home['training_images'] for home in by_number[n]):.0f}"),
        ("test images each", lambda n: f"{mean(home['test_images'] for home in by_number[n]):.0f}"),
        *((f"{METRIC_NAMES[plan.metrics[0]]}: {model}", mean_of(model)) for model in LINES),
        ("released − alone", lambda n: signed(defined_mean(_gains(by_number[n], "released")))),
        ("personal − alone", lambda n: signed(defined_mean(_gains(by_number[n])))),
        ("hospitals that gain", hospitals_that_gain),
    )
    return table(by_number, columns)


def claims(plan: Plan, homes: Sequence[Home]) -> list[Claim]:
    """Claims that a hospital gains by taking part and fine-tuning, compared with fine-tuning the start."""
    metric, gains = METRIC_NAMES[plan.metrics[0]], _gains(homes)
    means = {f"N = {n}": defined_mean(_gains(own)) for n, own in _by_number(homes).items()}
    more, less = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    return [
        everywhere(f"Taking part and then fine-tuning has a higher mean {metric} than staying alone", means),
        Claim(
            "Every hospital gains by it",
            more == len(gains) if gains else None,
            f"of {len(gains)}, counted in each run, {more} gain, {less} lose and {len(gains) - more - less} "
            f"have the same, from {signed(min(gains))} to {signed(max(gains))}"
            if gains
            else "",
        ),
    ]


def note_on_few_hospitals(plan: Plan) -> list[str]:
    """A note where the cohort has too few hospitals for the largest federation."""
    most = numbers(plan)[-1]
    if most >= NUMBERS[-1] or plan.scale == "smoke":
        return []
    way_out = (
        "give --cohort a file and deal it out with --set cohort.partition=equal --set cohort.hospitals=20"
        if plan.base.cohort.files is None
        else "deal the images out to more with --set cohort.partition=equal --set cohort.hospitals=20"
    )
    return [f"This cohort has {most} hospitals, so no larger federation was trained; {way_out}."]


def _picture(plan: Plan, homes: Sequence[Home]) -> Picture:
    metric, by_number = METRIC_NAMES[plan.metrics[0]], _by_number(homes)
    models = []
    for model, (name, colour, style) in LINES.items():
        means = [(n, defined_mean(home[model] for home in own)) for n, own in by_number.items()]
        models.append(Line(means, style, colour, name))
    gains = [(n, gain) for n, own in by_number.items() for gain in _gains(own)]
    x, ticks = "hospitals that train, N", [*by_number]
    panels = [
        Panel(
            x,
            f"test {metric} on a hospital's own images,\nmean over hospitals (higher is better)",
            models,
            ticks=ticks,
        ),
        Panel(
            x,
            f"{metric}: personal − alone\n(a dot a hospital; above 0: better)",
            [Line(gains, "D", BLUE, "their mean", hollow=True)],
            [Level(0, "", "-")],
            ticks=ticks,
            y_range=None,
        ),
    ]
    return Picture(panels, (10.5, 4.8), legends=2)


_TITLE = f"Is federation at ε = {EPSILON:g} worth it for a hospital?"
PROSTATE = Study(
    "worth-it-prostate", f"{_TITLE} Prostate, Dice (not in the paper)", "prostate", cells, results,
    runs=4, bases=PROSTATE_BASES,
)  # fmt: skip
ICH = Study(
    "worth-it-ich", f"{_TITLE} Haemorrhage, AUC (not in the paper)", "ich", cells, results, runs=8,
    bases=ICH_BASES,
)  # fmt: skip

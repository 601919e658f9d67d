"""ε in a terminal: tables by unit and neighbours, ε over rounds, the verdicts of an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Column
from rich.text import Text

from silodp.cli.tables import make_table, numbers, print_table, uncut
from silodp.cli.terminal import console as terminal
from silodp.cli.terminal import say
from silodp.privacy.events import UNITS
from silodp.privacy.power import POWER
from silodp.runs.promise import adversaries_in_words, budget_in_words
from silodp.runs.wording import show_epsilon

if TYPE_CHECKING:
    from silodp.attacks.audit import Audit
    from silodp.privacy.accountants import EpsilonBound
    from silodp.privacy.events import Neighbours, Unit
    from silodp.runs.signing import SignedStatement
    from silodp.runs.statement import Statement

SHOWN_ROUNDS = 6  # at which both ε are printed


def show_figures(
    title: str, figures: Mapping[tuple[Unit, Neighbours], EpsilonBound], multipliers: Mapping[Unit, str]
) -> None:
    """Prints ε by unit and neighbouring relation, hospital first, with the accountant that computed it."""
    table = make_table(
        title,
        Column("one …", overflow="fold"), *numbers("noise\nmultiplier"),
        *uncut("ε add-or-\nremove", "ε replace-\none"), "accountant",
        caption="Smaller is more private. Add-or-remove: the unit takes part or not; replace-one: it is "
        "exchanged for another.",
    )  # fmt: skip
    for unit, multiplier in multipliers.items():
        remove, swap = figures[unit, "add-or-remove"], figures[unit, "replace-one"]
        names = dict.fromkeys((remove.accountant, swap.accountant))
        table.add_row(
            unit, multiplier, show_epsilon(remove.epsilon), show_epsilon(swap.epsilon), " / ".join(names)
        )
    console = terminal()
    print_table(console, table, optional=("accountant", "noise\nmultiplier"))
    for remark in dict.fromkeys(figure.remark for figure in figures.values() if figure.remark):
        console.print(remark, style="dim")


def show_statement(statement: Statement) -> None:
    """Prints the privacy statement of a run."""
    experiment, console = statement.experiment, terminal()
    fewest, most = statement.intermediaries
    lowest, highest = statement.hospital_multipliers
    parts = str(fewest) if fewest == most else f"{fewest}–{most}"
    hospitals, members = experiment.cohort.hospitals, experiment.members
    trained = f"{hospitals}" if members == hospitals else f"{members} of {hospitals}"
    show_figures(
        f"{experiment.name}: {statement.rounds} of {experiment.rounds} rounds, "
        f"{trained} {'simulated ' if experiment.cohort.simulated else ''}hospitals, "
        f"v {parts}, δ {statement.delta:g}",
        statement.figures,
        {
            "hospital": f"{lowest:.4g}" if highest <= lowest * 1.001 else f"{lowest:.3g}–{highest:.3g}",
            "intermediary": (
                "" if statement.epsilon["image"] is not None else f"{experiment.privacy.noise_multiplier:.4g}"
            ),
        },
    )
    if statement.epsilon["image"] is not None:
        console.print(
            f"one image: ε {show_epsilon(statement.epsilon['image'])} at δ "
            f"{experiment.privacy.image_delta:g} (add-or-remove), noise multiplier "
            f"{experiment.privacy.noise_multiplier:g} a step",
        )
    if statement.seen_from is not None:
        console.print(adversaries_in_words(**vars(statement.seen_from)))
    if statement.by_round:
        console.print(_over_rounds(statement.by_round))
    if experiment.budget is not None and statement.budget_spent is not None:
        console.print(budget_in_words(experiment.budget, statement.budget_spent))
    if statement.unprotected:
        console.print(Text.assemble(("used without noise", "bold"), ": ", ", ".join(statement.unprotected)))
    console.print("not covered by ε: " + "; ".join(statement.not_covered))
    if statement.redone:
        rounds = ", ".join(map(str, statement.redone))
        console.print(f"released again with other noise after a crash, and counted again: round {rounds}")
    if statement.torn:
        console.print("the ledger's last line is torn (a crash, or a run at work); it is left out")
    if statement.problems:
        console.print("the ledger is not in order:", style="bold")
        for problem in statement.problems:
            console.print(f"  {problem}")
    else:
        console.print(f"ledger: {statement.releases} releases, hash chain intact, in order, none missing")


def show_verified(folder: Path, signed: SignedStatement, key: str) -> None:
    """Prints a signed statement that has been verified."""
    epsilon, swap = signed["epsilon"], signed["replace_one"]
    shown = [
        f"{unit} ({name}) {show_epsilon(row[unit])}"
        for unit in UNITS
        for name, row in (("add-or-remove", epsilon), ("replace-one", swap))
    ]
    say(f"{folder}: as it was signed by key {key} with silodp {signed['silodp']}")
    say(f"ledger {signed['ledger_head']}, experiment and model unchanged; {signed['rounds']} rounds")
    say(f"ε at δ {signed['delta']:g}: {', '.join(shown)}")
    say("not covered by ε: " + "; ".join([*signed["unprotected"], *signed["not_covered_by_epsilon"]]))


def show_audit(found: Audit) -> None:
    """Prints three claims, the ε shown for each, and how much missing noise the audit would have detected."""
    settings, console = found.settings, terminal()
    experiment = settings.experiment
    table = make_table(
        f"audit: {settings.runs} federations of each kind, {settings.hospitals} hospitals, "
        f"z {experiment.privacy.noise_multiplier:g}, v {found.intermediaries}, {settings.rounds} rounds, "
        f"{found.parameters} parameters, δ {found.delta:g}",
        "claim", *uncut("claimed", "shown ≥"), *numbers("right", "notices"), Column("verdict", no_wrap=True),
        caption="«Shown»: the releases are easier to tell apart than a Gaussian mechanism of this ε allows, "
        f"by an observer's right guesses, with confidence {settings.confidence:.4g}. «Notices»: noise that "
        f"many times too small would be called «broken» by {POWER:.0%} of such audits; «–»: the claim is "
        "too weak for so few federations. The last line reads the intermediary's ε as the hospital's.",
    )  # fmt: skip
    for finding in found.findings:
        bound = finding.bound
        table.add_row(
            finding.claim,
            f"{finding.claimed:.2f}",
            f"{finding.shown:.2f}",
            f"{bound.right}/{bound.guesses}",
            f"×{finding.detectable:.2f}" if finding.detectable else "–",
            finding.verdict,
        )
    print_table(console, table, optional=("notices", "right"))
    console.print(
        f"audited of «{experiment.name}»: noise (z {experiment.privacy.noise_multiplier:g}, from the "
        f"{experiment.privacy.entropy}), clipping ({experiment.clipping.rule}), intermediaries "
        f"({experiment.intermediaries.rule}: v {found.intermediaries} here), server "
        f"({experiment.server.optimizer}); replaced by small ones: data, network, local training, rounds; "
        "left out: budget",
    )
    if found.intermediary.verdict == "untested":
        console.print("untested: try fewer --rounds, or more --runs")
    elif found.hospital.verdict == "untested":
        console.print(
            "the hospital's claim is too weak to be tested; it rests on the same noise as the intermediary's"
        )
    if not found.repeatable:
        console.print("noise of the system is never drawn again: another audit shows other figures")


def _over_rounds(points: Sequence[tuple[int, float, float]]) -> str:
    """Both ε at a few rounds; `silodp report` draws all of them."""
    chosen = sorted({round(place * (len(points) - 1) / (SHOWN_ROUNDS - 1)) for place in range(SHOWN_ROUNDS)})
    rows = [points[place] for place in chosen]
    each = (f"round {one}: {show_epsilon(hospital)} / {show_epsilon(part)}" for one, hospital, part in rows)
    return "ε for a hospital / for an intermediary after " + ", ".join(each)

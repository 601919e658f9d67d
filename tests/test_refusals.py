"""Why a setting is refused: in our own words, whatever is wrong with it."""

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from silodp.errors import InputError, did_you_mean
from silodp.experiment import RULES, Experiment
from silodp.settings import BudgetSettings, PrivacySettings

PYDANTIC = re.compile(
    r"input should|should (be|have|match)|valid (integer|number|string|list|tuple|dictionary|boolean)|"
    r"field required|unable to|greater than|less than|instance of|extra inputs",
    re.IGNORECASE,
)
ODD: list[Any] = [
    -1, 0, 1.5, 10**12, 10**400, math.inf, math.nan, True, "", "nonsense", "a b", [], [-1], ["x"],
    [1, 2, 3, 4], {}, {"x": 1}, None,
]  # fmt: skip


def all_settings() -> Iterator[tuple[str, dict[str, Any], str]]:
    """(section, what it needs said, setting) of everything that can be set."""
    for name in Experiment.model_fields:
        yield "", {}, name
    for section, kind in (("privacy", PrivacySettings), ("budget", BudgetSettings)):
        needed = {"epsilon": 1.0} if kind is BudgetSettings else {}
        yield from ((section, needed, name) for name in kind.model_fields)
    for section, base in RULES.items():
        for rule, kind in base.known.items():
            if kind.__module__.startswith("silodp."):
                yield from ((section, {base.key: rule}, name) for name in kind.model_fields)


@pytest.mark.parametrize(("section", "needed", "name"), list(all_settings()))
def test_no_setting_is_refused_in_pydantics_words(section: str, needed: dict[str, Any], name: str) -> None:
    for value in ODD:
        said = refusal({section: needed | {name: value}} if section else {name: value})
        assert not PYDANTIC.search(said), f"{name} = {value}: {said}"


def refusal(tree: dict[str, Any]) -> str:
    """Empty where the settings are allowed."""
    try:
        Experiment(**tree)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("rounds=0", "rounds = 0: choose a whole number of at least 1"),
        ("rounds=2.5", "rounds = 2.5: choose a whole number of at least 1"),
        ("rounds=many", "rounds = 'many': choose a whole number of at least 1"),
        ("cohort.image_size=8", "cohort.image_size = 8: choose a whole number from 16 to 1024"),
        ("privacy.delta=1", "privacy.delta = 1: choose a number above 0 and below 1"),
        ("local.epochs=nan", "local.epochs = nan: choose a number above 0 and at most 1000"),
        ("privacy.noise_multiplier=inf", "choose a number of at least 0 that is finite"),
        ("privacy.entropy=sytem", "choose one of seed, system; did you mean system?"),
        ("diagnostics=maybe", "diagnostics = 'maybe': choose true or false"),
        ("name=a/b", "name = 'a/b': choose a text of letters, digits and . _ - only"),
        ("model.trainable=", "model.trainable = '': choose a text that is not empty"),
        ("budget.unit=hospital", "budget.epsilon: is missing; set it to a number above 0"),
        ("privacy=3", "privacy = 3: it is a section; set what is in it, such as privacy.noise_multiplier"),
    ],
)
def test_a_refusal_lists_the_allowed_values(change: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment.build({}, [change])
    assert str(caught.value).endswith(sentence)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sizes": [1, -2]}, "cohort.sizes.1 = -2: choose a list, each a number above 0"),
        ({"shares": [1, 2]}, "cohort.shares = [1, 2]: choose a list of 3, each a number above 0"),
        ({"channels": 2}, "cohort.channels = 2: choose one of 1, 3"),
    ],
)
def test_lists_and_choices_of_numbers(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(cohort={"kind": "npz", "path": "a.npz"} | settings)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ("privacy.noise_multiplyer=1", "privacy.noise_multiplier"),
        ("noise_multiplier=1", "privacy.noise_multiplier"),
        ("privcy.delta=0.1", "privacy"),
        ("quantile=0.3", "clipping.quantile"),
        ("clipping.qantile=0.3", "clipping.quantile"),
        ("clipping.rule=quantil", "quantile"),
    ],
)
def test_a_misspelt_setting_gets_a_suggestion(change: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment.build({}, [change])
    assert str(caught.value).endswith(f"; did you mean {meant}?")


def test_no_suggestion_where_nothing_is_close() -> None:
    assert did_you_mean("colour", ["rounds", "privacy.delta"]) == ""
    assert did_you_mean("x" * 10**6, ["rounds"]) == ""

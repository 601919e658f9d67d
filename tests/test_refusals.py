"""Why a setting is refused: in our own words, whatever is wrong with it."""

import math
import re
from collections.abc import Iterator, Sequence
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

SAMPLE, SHARED = "privacy.level=sample", "privacy.noise=shared"
BUDGET = "budget.epsilon=8; budget.sets_noise=true"


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


def refusal(changes: Sequence[str] | dict[str, Any]) -> str:
    """What is said of an experiment with these changes to the defaults; empty where they are allowed."""
    try:
        Experiment.build({}, changes)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("section", "needed", "name"), list(all_settings()))
def test_no_setting_is_refused_in_pydantics_words(section: str, needed: dict[str, Any], name: str) -> None:
    for value in ODD:
        said = refusal({section: needed | {name: value}} if section else {name: value})
        assert not PYDANTIC.search(said), f"{name} = {value}: {said}"


@pytest.mark.parametrize(
    "said",
    [
        "rounds = 0", "rounds = 2.5", "seed = -1", "name = 'a b'", "task = 'detection'",
        "cohort.image_size = 8", "cohort.channels = 2", "local.batch_size = 1",
        "local.learning_rate = 0.0", "local.momentum = 1.0", "intermediaries.count = 0",
        "clipping.bound = -1.0", "clipping.bound = inf", "clipping.quantile = 1.0",
        "clipping.bit_share = 0.0", "privacy.noise_multiplier = -0.5", "privacy.noise_multiplier = nan",
        "privacy.noise_multiplier = inf", "privacy.delta = 0.0", "privacy.delta = 1.0",
        "privacy.delta = nan", "participation.rate = 0.0", "participation.rate = 1.5",
        "participation.members = 0", "server.beta2 = 1.0", "privacy = 3", "budget.epsilon = 0",
        "budget.epsilon = -3", "budget.epsilon = 'inf'", "budget = 3",
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_named(said: str) -> None:
    assert refusal([said]).startswith(f"{said}: ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # What may be chosen.
        ("rounds=0", "rounds = 0: choose a whole number of at least 1"),
        ("rounds=many", "rounds = 'many': choose a whole number of at least 1"),
        ("cohort.image_size=8", "cohort.image_size = 8: choose a whole number from 16 to 1024"),
        ("privacy.delta=1", "privacy.delta = 1: choose a number above 0 and below 1"),
        ("local.epochs=nan", "local.epochs = nan: choose a number above 0 and at most 1000"),
        ("privacy.noise_multiplier=inf", "choose a number of at least 0 that is finite"),
        ("diagnostics=maybe", "diagnostics = 'maybe': choose true or false"),
        ("name=a/b", "name = 'a/b': choose a text of letters, digits and . _ - only"),
        ("model.trainable=", "model.trainable = '': choose a text that is not empty"),
        ("privacy=3", "privacy = 3: it is a section; set what is in it, such as privacy.noise_multiplier"),
        ("cohort.kind=npz; cohort.sizes=[1,-2]", "cohort.sizes.1 = -2: choose a list, each a number above 0"),
        ("cohort.kind=npz; cohort.shares=[1,2]", "= [1, 2]: choose a list of 3, each a number above 0"),
        ("cohort.kind=npz; cohort.channels=2", "cohort.channels = 2: choose one of 1, 3"),
        ("clipping.rule=unheard-of", "clipping.rule = 'unheard-of': choose one of none, fixed, rehearsed"),
        ("clipping.rule=3", "clipping.rule = 3: choose one of"),
        # What there is.
        ("colour=red", "colour: no such setting; there are name, description"),
        ("privacy.noises=1", "privacy.noises: no such setting; there are noise_multiplier, delta, entropy"),
        ("privat.noise_multiplier=1", "privat: no such setting"),
        ("clipping.bount=3", "clipping.bount: no such setting; there are rule, bound, quantile"),
        ("budget.epsilon=1; budget.eps=2", "no such setting; there are epsilon, delta, unit, neighbours"),
        # What was meant.
        ("privacy.entropy=sytem", "choose one of seed, system; did you mean system?"),
        ("privacy.noise_multiplyer=1", "; did you mean privacy.noise_multiplier?"),
        ("noise_multiplier=1", "; did you mean privacy.noise_multiplier?"),
        ("privcy.delta=0.1", "; did you mean privacy?"),
        ("quantile=0.3", "; did you mean clipping.quantile?"),
        ("clipping.qantile=0.3", "; did you mean clipping.quantile?"),
        ("clipping.rule=quantil", "; did you mean quantile?"),
        # What is missing.
        ("budget.unit=hospital", "budget.epsilon: is missing; set it to a number above 0"),
        ("budget={}", "budget.epsilon: is missing"),
        ("budget.epsilon=1; budget.unit=patient", "budget.unit = 'patient': choose"),
        ("budget.epsilon=1; budget.delta=1", "budget.delta = 1: choose"),
        ("budget.epsilon=1; budget.neighbours=all", "budget.neighbours = 'all': choose"),
        ("rounds", "'rounds': write key=value"),
        ("=3", "'=3': write key=value"),
        ("rounds=4; rounds.more=3", "rounds is a value, not a section"),
        # What another rule has.
        ("participation.rate=0.5", "participation.rate = 0.5: not a setting of participation.rule = all"),
        ("server.beta1=0.5", "server.beta1 = 0.5: not a setting of server.optimizer = fedavg"),
        ("server.noise_correction=true", "server.noise_correction = True: not a setting of server.optimizer"),
        ("intermediaries.count=3", "not a setting of intermediaries.rule = closed-form, which has"),
        ("local.momentum=0.5", "local.momentum = 0.5: not a setting of local.optimizer = adam"),
        ("local.optimizer=sgd; local.amsgrad=true", "local.amsgrad = True: not a setting of"),
        ("model.growth=4", "model.growth = 4: not a setting of model.kind = unet"),
        ("cohort.path=x", "cohort.path = 'x': not a setting of cohort.kind = synthetic-mri"),
        ("cohort.kind=npz; cohort.slices=3", "cohort.slices = 3: not a setting of cohort.kind = npz"),
        # What would be ignored.
        ("cohort.kind=npz; cohort.alpha=3", "cohort.alpha = 3.0 with cohort.partition = its default"),
        ("cohort.kind=npz; cohort.sizes=[1]; cohort.partition=equal", "set cohort.partition=sizes"),
        ("cohort.kind=npz; cohort.classes=3", "cohort.classes = 3 with task = segmentation"),
        ("privacy.sample_clip_bound=2", "privacy.sample_clip_bound = 2.0 with privacy.level"),
        ("privacy.image_delta=0.1", "privacy.image_delta = 0.1 with privacy.level = client"),
        ("privacy.may_stay_away=1", "privacy.may_stay_away = 1 with privacy.noise = central"),
        # What does not go together.
        ("clipping.rule=none; privacy.noise_multiplier=0.4", "multiplier = 0.4: noise protects nobody"),
        ("task=classification; cohort.kind=synthetic-mri", "synthetic-mri: set task=segmentation"),
        ("cohort.kind=synthetic-ct", "task = segmentation with cohort.kind = synthetic-ct: set task=class"),
        ("model.kind=unet; task=classification", "with model.kind = unet: set task=segmentation"),
        ("model.kind=densenet", "task = segmentation with model.kind = densenet: set task=classification"),
        (f"{BUDGET}; intermediaries.rule=fixed; privacy.noise_multiplier=1", "leave one of them out"),
        (BUDGET, "v would follow from the noise; set intermediaries.rule=fixed"),
        (f"{BUDGET}; intermediaries.rule=adaptive", "intermediaries.rule = adaptive with budget.sets_noise"),
        (f"{BUDGET}; intermediaries.rule=fixed; {SAMPLE}", "their own steps there; set privacy.level=client"),
        ("clipping.rule=rehearsed; privacy.noise_multiplier=0", "no noise to bear; set clipping.rule=none"),
        # DP-SGD at the hospitals.
        (f"{SAMPLE}; model.norm=batch", "model.norm = batch with privacy.level = sample: it mixes images"),
        (f"{SAMPLE}; intermediaries.rule=adaptive", "are not split; set intermediaries.rule=fixed"),
        (f"{SAMPLE}; intermediaries.count=3", "intermediaries.count = 3 with privacy.level = sample"),
        (f"{SAMPLE}; clipping.rule=quantile", "gradients are clipped; set clipping.rule=none"),
        (f"{SAMPLE}; participation.rule=poisson", "is away adds no noise; set participation.rule=all"),
        # Noise that hospitals share.
        (f"{SHARED}; participation.rule=poisson", "participation.rule = poisson with privacy.noise = shared"),
        (f"{SHARED}; clipping.rule=median", "clipping.rule = median with privacy.noise = shared"),
        (f"{SHARED}; intermediaries.rule=adaptive", "intermediaries.rule = adaptive with privacy.noise"),
        (f"{SHARED}; diagnostics=true", "diagnostics = true with privacy.noise = shared"),
        (f"{SHARED}; privacy.noise_multiplier=0", "there is nothing to share"),
        (f"{SHARED}; {SAMPLE}", "privacy.level = sample with privacy.noise"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_the_way_out(changes: str, words: str) -> None:
    assert words in refusal(changes.split("; "))


def test_no_suggestion_where_nothing_is_close() -> None:
    assert did_you_mean("colour", ["rounds", "privacy.delta"]) == ""
    assert did_you_mean("x" * 10**6, ["rounds"]) == ""

"""The paper's theorems as functions, each beside what is right where the paper is not.

They explain and check; the accountants do not call them. Neighbours are «replace-one», as the paper defines
them, or «add-or-remove», for which its figures are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from silodp.errors import InputError
from silodp.privacy.events import NEIGHBOURS, Neighbours, bounds_moved
from silodp.privacy.gaussian import gaussian_delta, gaussian_epsilon

Regime = Literal["forgets", "converges", "grows linearly", "diverges"]


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ). With δ = 1 it promises nothing."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Levels:
    """One quantity, for a whole client and for one of the sub-clients that it is split into."""

    client: float
    sub_client: float


def preserved_at_sub_clients(
    epsilon: float, delta: float, neighbours: Neighbours = "replace-one"
) -> Guarantee:
    """Theorem 1 (section 2.2, appendix B): what a guarantee for clients says about their sub-clients.

    Replacing a sub-client is one way of replacing its client, so the same (ε, δ) holds. Not so for
    add-or-remove: a client with one sub-client less is not gone but replaced, which takes two steps, so the
    guarantee is that of a group of two. Nothing is said in the other direction: what the paper prints is
    computed for one intermediary, and the hospital's is in `split_noise_multipliers`.
    """
    return group_privacy(epsilon, delta, 1 if _clips_moved(neighbours) == 2 else 2)


def gaussian_levels(
    noise_std: float, client_sensitivity: float, sub_client_sensitivity: float, epsilon: float
) -> Levels:
    """Theorem 1 in figures: the exact δ at ε of a Gaussian release, for replace-one neighbours of each level.

    A sub-client moves the release at most as far as its client, so its δ is no larger. The two are equal
    where a client is clipped as a whole: a single sub-client may then turn the whole update around.
    """
    _need("positive", noise_std=noise_std, client_sensitivity=client_sensitivity)
    _need("not negative", sub_client_sensitivity=sub_client_sensitivity, epsilon=epsilon)
    if sub_client_sensitivity > client_sensitivity:
        raise InputError(
            f"sub_client_sensitivity is {sub_client_sensitivity}; give at most client_sensitivity "
            f"({client_sensitivity}), since who replaces a sub-client replaces its client"
        )
    return Levels(
        gaussian_delta(client_sensitivity / noise_std, epsilon),
        gaussian_delta(sub_client_sensitivity / noise_std, epsilon),
    )


def split_noise_multipliers(
    noise_multiplier: float, intermediaries: int, neighbours: Neighbours = "add-or-remove"
) -> Levels:
    """Noise over sensitivity when hospitals are split: z/v for a hospital, z for an intermediary.

    Each of v intermediaries is clipped to C by itself and the noise stays zC, so a hospital moves the sum by
    up to vC. The paper takes Theorem 1 as leave to print z for both. Replacing halves either.
    """
    _need("positive", noise_multiplier=noise_multiplier)
    _need("count", intermediaries=intermediaries)
    one = noise_multiplier / _clips_moved(neighbours)
    return Levels(one / intermediaries, one)


def group_privacy(epsilon: float, delta: float, group_size: int) -> Guarantee:
    """Group privacy: (ε, δ) for one is (nε, δ(e^(nε) − 1)/(e^ε − 1)) for n at once; nδ where ε is 0.

    Every step of the chain multiplies what was lost before by e^ε: a geometric sum of e^ε. It is attained.
    """
    return _group(epsilon, delta, group_size, epsilon)


def paper_group_privacy(epsilon: float, delta: float, group_size: int) -> Guarantee:
    """The form of appendix B, (nε, δ(1 − ε^n)/(1 − ε)): a geometric sum of ε. WRONG, for comparison only.

    It claims too much (see `group_privacy_ratio`). The chain in its proof is also one dataset short.
    """
    return _group(epsilon, delta, group_size, _log(epsilon))


def group_privacy_ratio(epsilon: float, group_size: int) -> float:
    """The right δ over the paper's, before either is cut at 1: how far the paper claims too much.

    Above 1 at EVERY ε for two or more, since e^ε > ε: n at ε = 0, and for n = 2 never below 1.76 (reached at
    ε = 0.567). Harmless only where the paper's δ is 1 too, as at all six ε that it reports from n = 3 on.
    """
    _need("not negative", epsilon=epsilon)
    _need("count", group_size=group_size)
    return _exp(_log_geometric_sum(epsilon, group_size) - _log_geometric_sum(_log(epsilon), group_size))


def gaussian_group_delta(noise_multiplier: float, group_size: int, epsilon: float) -> float:
    """Group privacy of a Gaussian release: δ at ε for n at once is exact by scaling, μ → nμ.

    Far below the general form, which has to hold for every mechanism.
    """
    _need("positive", noise_multiplier=noise_multiplier)
    _need("count", group_size=group_size)
    _need("not negative", epsilon=epsilon)
    return gaussian_delta(group_size / noise_multiplier, epsilon)


@dataclass(frozen=True)
class Composition:
    """The theorem's three ε in its order, and their δ. Each holds, so the least does."""

    terms: tuple[float, float, float]
    delta: float

    @property
    def epsilon(self) -> float:
        return min(self.terms)


def kairouz_composition(epsilon: float, delta: float, rounds: int, slack: float) -> Composition:
    """Theorem 3.4 of Kairouz, Oh and Viswanath (2015), in appendix B: k releases, each (ε, δ), together.

    ε is the least of kε, m + ε√(2k ln(e + ε√k/δ̃)) and m + ε√(2k ln(1/δ̃)), with m = kε(e^ε − 1)/(e^ε + 1);
    δ is 1 − (1 − δ)^k (1 − δ̃). `slack` is δ̃, chosen freely; 0 leaves kε.

    The paper does not say what k is: rounds, with the (ε, δ) of one. An intermediary's (ε, δ) may be used
    for its hospital only if a round touches at most one sub-client of each client. The paper's method
    touches all v every round, so there the theorem needs the hospital's own (ε, δ).
    """
    _need("not negative", epsilon=epsilon)
    _need("probability", delta=delta, slack=slack)
    _need("count", rounds=rounds)
    mean, root = rounds * epsilon * math.tanh(epsilon / 2), epsilon * math.sqrt(2 * rounds)
    second = math.log(math.e + epsilon * math.sqrt(rounds) / slack) if slack else math.inf
    third = -_log(slack)
    widths = [root * math.sqrt(log) if epsilon else 0.0 for log in (second, third)]
    certain = 1 in (delta, slack)
    log_kept = -math.inf if certain else rounds * math.log1p(-delta) + math.log1p(-slack)
    return Composition((rounds * epsilon, mean + widths[0], mean + widths[1]), abs(math.expm1(log_kept)))


def step_sensitivity(
    clip_bound: float, batch_size: int, samples_changed: int, neighbours: Neighbours = "replace-one"
) -> float:
    """How far the mean of a batch's clipped gradients moves, from the same model, when some samples change.

    2c when a whole batch (so a client) is replaced, c when it is removed, 2c/K when one sample is replaced.
    """
    _need("positive", clip_bound=clip_bound)
    _need("count", batch_size=batch_size, samples_changed=samples_changed)
    if samples_changed > batch_size:
        raise InputError(f"samples_changed is {samples_changed}; give at most batch_size ({batch_size})")
    return _clips_moved(neighbours) * clip_bound * samples_changed / batch_size


def cumulative_sensitivity(
    learning_rate: float, steps: int, clip_bound: float, neighbours: Neighbours = "replace-one"
) -> float:
    """Cumulative sensitivity (appendix C): DP-SGD's model moves by at most 2ηtc when a client is replaced.

    Right, and attained; ηtc when the client is removed. For whole clients only: one changed sample moves the
    model, and with it the gradients of all others, so t steps can move it further than t·2ηc/K.
    """
    _need("positive", learning_rate=learning_rate)
    _need("count", steps=steps)
    return learning_rate * steps * step_sensitivity(clip_bound, 1, 1, neighbours)


@dataclass(frozen=True)
class CumulativeVariance:
    """E‖noisy − clean model‖² lies from lower to upper; the limits are these bounds after endless steps.

    Attributes:
        base: the paper's 1 − 2ηβ + η²μ².
        regime: what the lower bound does as steps go on.
    """

    base: float
    regime: Regime
    lower: float
    upper: float
    lower_limit: float
    upper_limit: float


def cumulative_variance(
    *,
    learning_rate: float,
    smoothness: float,
    convexity: float,
    noise_std: float,
    batch_size: int,
    dimensions: int,
    steps: int,
) -> CumulativeVariance:
    """Cumulative variance (appendix C): how far noise drives SGD from its clean path.

    For β-smooth, μ-convex losses and noise of standard deviation σ in each of d coordinates of the batch's
    SUM. Lower: e ← (1 − 2ηβ + η²μ²)e + η²dσ²/K², the paper's but for d. Upper: e ← max(|1 − ηβ|, |1 − ημ|)² e
    + η²dσ²/K². Neither «diverges» as the paper says: the lower bound converges for 0 < η < 2β/μ², the upper
    one for η < 2/β and μ > 0. Where the base is negative the paper's closed form is no bound, and only the
    last step's own noise is left («forgets»). docs/theorems.md says what else the paper has wrong.
    """
    _need("positive", learning_rate=learning_rate, smoothness=smoothness)
    _need("not negative", convexity=convexity, noise_std=noise_std)
    _need("count", batch_size=batch_size, dimensions=dimensions, steps=steps)
    if convexity > smoothness:
        raise InputError(f"convexity is {convexity}; give at most smoothness ({smoothness})")
    added = dimensions * (learning_rate * noise_std / batch_size) ** 2
    lower = (learning_rate * convexity) ** 2 - 2 * learning_rate * smoothness
    upper = max(_quadratic_gain(learning_rate, curvature) for curvature in (convexity, smoothness))
    return CumulativeVariance(
        1 + lower,
        _regime(lower),
        _accumulated(lower, added, steps),
        _accumulated(upper, added, steps),
        _accumulated(lower, added, math.inf),
        _accumulated(upper, added, math.inf),
    )


def quadratic_variance(
    learning_rate: float, curvatures: Sequence[float], noise_std: float, batch_size: int, steps: int
) -> float:
    """The same of a quadratic loss, exactly: e ← (1 − ηλ)² e + η²σ²/K² for each curvature λ, summed."""
    _need("positive", learning_rate=learning_rate)
    _need("not negative", noise_std=noise_std, **{f"curvatures[{i}]": c for i, c in enumerate(curvatures)})
    _need("count", batch_size=batch_size, steps=steps)
    added = (learning_rate * noise_std / batch_size) ** 2
    return math.fsum(_accumulated(_quadratic_gain(learning_rate, c), added, steps) for c in curvatures)


def accumulated_noise(
    learning_rate: float, noise_multiplier: float, clip_bound: float, batch_size: int, steps: int
) -> float:
    """Section 2.3: the noises of T steps add up to standard deviation η(zc/K)√T in each coordinate.

    That is what has been added. What is left of it in the model is `cumulative_variance`: the two agree on a
    flat loss, and where the loss curves old noise is forgotten.
    """
    _need("positive", learning_rate=learning_rate, noise_multiplier=noise_multiplier, clip_bound=clip_bound)
    _need("count", batch_size=batch_size, steps=steps)
    return learning_rate * noise_multiplier * clip_bound / batch_size * math.sqrt(steps)


def client_noise_multiplier(
    noise_multiplier: float, batch_size: int, steps: int, neighbours: Neighbours = "replace-one"
) -> float:
    """Section 2.3: DP-SGD's multiplier for a whole client, z/(2K√T) if replaced: η(zc/K)√T over 2ηTc.

    Equal to composing T Gaussian releases of multiplier z/(2K): right for someone who sees every step. The
    paper's «same DP level up to a constant» leaves unsaid that the constant holds the batch size K.
    """
    noise = accumulated_noise(1.0, noise_multiplier, 1.0, batch_size, steps)
    return noise / cumulative_sensitivity(1.0, steps, 1.0, neighbours)


def paper_epsilon_after_steps(noise_multiplier: float, steps: int, delta: float) -> float:
    """«Moment accountant» (appendix C, section 2.3): T steps of (ε, δ) are (O(ε√T), δ). Here √T·ε itself.

    WRONG but for small ε: exactly, μ = √T/z, and ε grows like μ²/2, with T, once μ is large. In the paper's
    own setting z = 0.5, T = 100, δ = 0.1 a step costs 3.8, √T times it 38, and all together 224.7.
    """
    _need("positive", noise_multiplier=noise_multiplier)
    _need("count", steps=steps)
    _need("inner probability", delta=delta)
    return math.sqrt(steps) * gaussian_epsilon(1 / noise_multiplier, delta)


_KINDS: dict[str, tuple[Callable[[float], bool], str]] = {
    "probability": (lambda value: 0 <= value <= 1, "a probability, 0 to 1"),
    "inner probability": (lambda value: 0 < value < 1, "a probability above 0 and below 1"),
    "not negative": (lambda value: 0 <= value < math.inf, "a finite number, 0 or more"),
    "positive": (lambda value: 0 < value < math.inf, "a finite number above 0"),
    "count": (lambda value: value >= 1 and value % 1 == 0, "a whole number, 1 or more"),
}


def _need(kind: str, **values: float) -> None:
    holds, wanted = _KINDS[kind]
    for name, value in values.items():
        if not holds(value):
            raise InputError(f"{name} is {value}; give {wanted}")


def _clips_moved(neighbours: Neighbours) -> int:
    """`bounds_moved`, checked."""
    if neighbours not in NEIGHBOURS:
        raise InputError(f"neighbours is {neighbours}; give {' or '.join(NEIGHBOURS)}")
    return bounds_moved(neighbours)


def _group(epsilon: float, delta: float, group_size: int, log_ratio: float) -> Guarantee:
    _need("not negative", epsilon=epsilon)
    _need("probability", delta=delta)
    _need("count", group_size=group_size)
    factor = _exp(_log_geometric_sum(log_ratio, group_size))
    return Guarantee(group_size * epsilon, min(1.0, delta * factor) if delta else 0.0)


def _log_geometric_sum(log_ratio: float, terms: float) -> float:
    """log(1 + r + … + r^(terms − 1)) for r = e^log_ratio, however large; r = 0 is −∞; terms may be ∞."""
    if terms == 1 or log_ratio == 0:
        return math.log(terms)
    size = abs(log_ratio)
    largest = (terms - 1) * log_ratio if log_ratio > 0 else 0.0
    return largest + math.log(math.expm1(-terms * size) / math.expm1(-size))


def _accumulated(gain: float, added: float, steps: float) -> float:
    """e after some steps of e ← (1 + gain)·e + added from 0; a negative factor counts as 0."""
    log_base = math.log1p(gain) if gain > -1 else -math.inf
    return added * _exp(_log_geometric_sum(log_base, steps)) if added else 0.0


def _quadratic_gain(learning_rate: float, curvature: float) -> float:
    """(1 − ηλ)² − 1: by how much a step along an axis of curvature λ stretches a squared distance."""
    return learning_rate * curvature * (learning_rate * curvature - 2)


def _regime(gain: float) -> Regime:
    if gain >= 0:
        return "diverges" if gain > 0 else "grows linearly"
    return "converges" if gain > -1 else "forgets"


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _exp(x: float) -> float:
    return math.exp(x) if x < 709 else math.inf

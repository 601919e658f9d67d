"""What the server does with a released mean g. All of it is post-processing and costs no privacy.

Each optimizer is three plain functions over plain state (a dict of tensors and numbers):
`init`, `prepare` (what hospitals must know before they clip) and `step`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from silodp.errors import InputError
from silodp.settings import ServerSettings

State = dict[str, Any]

DP2_EPSILON = 1e-7


@dataclass(frozen=True)
class Preparation:
    """What hospitals do to their updates before clipping; public.

    Updates divided by a preconditioner have other norms, so each phase has a clip bound of its own.
    """

    divisor: Tensor | None = None
    normalise_steps: bool = False

    @property
    def phase(self) -> str:
        return "plain" if self.divisor is None else "preconditioned"


@dataclass(frozen=True)
class ServerOptimizer:
    """Three functions over plain state: a dict of tensors and numbers, which goes into checkpoints.

    Attributes:
        init: the state before round one, from the (d,) parameters.
        step: (state, parameters, mean, noise_std, mean_steps) → the new parameters and state; new tensors.
            `mean` (d,) is what was released, `noise_std` the standard deviation of its noise, `mean_steps`
            the mean of the local steps over all intermediaries.
        prepare: what hospitals do to their updates before they clip them; default: nothing.
    """

    init: Callable[[Tensor], State]
    step: Callable[[State, Tensor, Tensor, float, float], tuple[Tensor, State]]
    prepare: Callable[[State], Preparation] = lambda state: Preparation()


def server_optimizer(settings: ServerSettings) -> ServerOptimizer:
    """The optimizer that resolved `settings` name."""
    rate = settings.learning_rate
    if rate is None:
        raise ValueError("server.learning_rate is not resolved")
    if settings.optimizer == "custom":
        raise InputError(
            "server.optimizer = custom: this experiment was given its optimizer from Python; "
            "run it with silodp.train(experiment, server_optimizer=…)"
        )
    if settings.optimizer == "fedadam":
        return _fedadam(settings, rate)
    if settings.optimizer == "fednova":
        return _fednova(rate)
    if settings.optimizer == "dp2-rmsprop":
        return _dp2_rmsprop(settings, rate)
    return _fedavg(rate)


def _fedavg(rate: float) -> ServerOptimizer:
    """θ += g (McMahan et al. 2018)."""

    def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float, mean_steps: float) -> Any:
        return parameters + rate * mean, state

    return ServerOptimizer(lambda parameters: {}, step)


def _fedadam(settings: ServerSettings, rate: float) -> ServerOptimizer:
    """m, u ← moments of g; θ += lr·m/(√u + τ) (Reddi et al. 2021).

    `bias_correction` divides by 1 − β^t. `noise_correction` is DP-AdamBC (Tang et al. 2024): g² carries
    the noise's variance σ², which is known, so as much of σ² as has flowed into u is taken out again.
    """

    def init(parameters: Tensor) -> State:
        return {
            "first": torch.zeros_like(parameters),
            "second": torch.zeros_like(parameters),
            "noise": 0.0,
            "steps": 0,
        }

    def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float, mean_steps: float) -> Any:
        beta1, beta2 = settings.beta1, settings.beta2
        first = beta1 * state["first"] + (1 - beta1) * mean
        second = beta2 * state["second"] + (1 - beta2) * mean**2
        noise = beta2 * state["noise"] + (1 - beta2) * noise_std**2
        steps = state["steps"] + 1
        m, u, noise_in_u = first, second, noise
        if settings.bias_correction:
            m, u = first / (1 - beta1**steps), second / (1 - beta2**steps)
            noise_in_u = noise / (1 - beta2**steps)
        if settings.noise_correction:
            # Never below the noise floor's tenth: what is left of u there is chance, not signal.
            u = (u - noise_in_u).clamp_min(0.1 * noise_in_u)
        new = parameters + rate * m / (u.sqrt() + settings.tau)
        return new, {"first": first, "second": second, "noise": noise, "steps": steps}

    return ServerOptimizer(init, step)


def _fednova(rate: float) -> ServerOptimizer:
    """Updates are divided by their local steps before clipping; the mean is multiplied by τ_eff
    (Wang et al. 2020). Step counts come from the plan, never from private data."""

    def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float, mean_steps: float) -> Any:
        return parameters + rate * mean_steps * mean, state

    return ServerOptimizer(lambda parameters: {}, step, lambda state: Preparation(normalise_steps=True))


def _dp2_rmsprop(settings: ServerSettings, rate: float) -> ServerOptimizer:
    """Blocks of s plain rounds and s preconditioned rounds in turn (Li et al. 2023).

    Plain rounds step θ += g and gather g; their mean's square refreshes the preconditioner A. In
    preconditioned rounds hospitals divide by √A + 1e-7 before they clip, and θ += lr·g.
    """

    def preconditioned(state: State) -> bool:
        return bool((state["rounds"] // settings.interval) % 2)

    def init(parameters: Tensor) -> State:
        return {"rounds": 0, "gathered": torch.zeros_like(parameters), "second": None}

    def prepare(state: State) -> Preparation:
        return Preparation(divisor=state["second"].sqrt() + DP2_EPSILON if preconditioned(state) else None)

    def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float, mean_steps: float) -> Any:
        rounds, gathered, second = state["rounds"] + 1, state["gathered"], state["second"]
        if preconditioned(state):
            parameters = parameters + rate * mean
        else:
            parameters = parameters + mean
            gathered = gathered + mean
            if rounds % settings.interval == 0:
                square = (gathered / settings.interval) ** 2
                second = square if second is None else settings.decay * second + (1 - settings.decay) * square
                gathered = torch.zeros_like(gathered)
        return parameters, {"rounds": rounds, "gathered": gathered, "second": second}

    return ServerOptimizer(init, step, prepare)

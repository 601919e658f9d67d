"""Server optimizers: how a released mean g changes θ. All of it is post-processing and costs no privacy.

Eq. 1 is FedAvg, θ ← θ + g with g = 1/(N·v)·(Σ_ij Δ̂_ij + noise); the paper's tables also have the other three.

An optimizer is three functions over plain state (a dict of tensors and numbers): `init`, `prepare` (the map
that hospitals apply to updates) and `step`. A rule of the section `server` is one class with its settings and
`make`, which returns the three functions. Add one by subclassing `ServerRule` in any file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from silodp.errors import InputError
from silodp.settings import Count, Positive, Rule
from silodp.update_map import UpdateMap

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, Any]

DP2_EPSILON = 1e-7
"""Added to DP²-RMSProp's √A, by which updates are divided."""

Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class ServerOptimizer:
    """Three functions over plain state: a dict of tensors and numbers, which goes into checkpoints.

    Attributes:
        init: the state before round one, from the (d,) parameters.
        step: (state, parameters, mean, noise_std) → new parameters and new state; its arguments are not
            changed. `mean`, (d,) float32, is what was released, after the map's `decode`; `noise_std` is the
            standard deviation of its noise.
        prepare: the map of this round's updates, from the state; default: they travel unchanged.
    """

    init: Callable[[Tensor], State]
    step: Callable[[State, Tensor, Tensor, float], tuple[Tensor, State]]
    prepare: Callable[[State], UpdateMap] = lambda state: UpdateMap()


class ServerRule(Rule):
    """A server optimizer's settings.

    `usual_rate` is asked where `server.learning_rate` is left out; `make` once, for a whole run.

    Attributes:
        per_step: whether hospitals divide updates by their local normaliser (FedNova).
    """

    section: ClassVar[str] = "server"
    per_step: ClassVar[bool] = False
    key: ClassVar[str] = "optimizer"
    usual: ClassVar[str] = "fedavg"
    optimizer: str
    learning_rate: Positive | None = None
    """By default the optimizer's own."""
    average: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the rounds, the last ones, over which the model is averaged; 0: the last round's."""

    def usual_rate(self, *, private: bool) -> float:
        """The default learning rate."""
        return 1.0

    def preconditions(self, round_: int) -> bool:
        """Whether hospitals divide their updates by a public vector in this round, counted from 1."""
        return False

    def make(self) -> ServerOptimizer:
        """Builds the optimizer; the settings must be resolved."""
        raise NotImplementedError

    @property
    def rate(self) -> float:
        """The resolved learning rate."""
        if self.learning_rate is None:
            raise ValueError("server.learning_rate is not resolved")
        return self.learning_rate


class Custom(ServerRule):
    """An optimizer that was passed in from Python."""

    optimizer: Literal["custom"] = "custom"

    def make(self) -> ServerOptimizer:
        raise InputError(
            "server.optimizer = custom: this experiment was given its optimizer from Python; "
            "run it with silodp.train(experiment, server_optimizer=…)"
        )


def _adding(rule: ServerRule) -> ServerOptimizer:
    """θ += lr·g, without state; g is scaled by the update map alone."""

    def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float) -> Any:
        return parameters + rule.rate * mean, state

    return ServerOptimizer(lambda parameters: {}, step, lambda state: UpdateMap(rule.per_step))


class FedAvg(ServerRule):
    """θ += g (McMahan et al. 2018)."""

    optimizer: Literal["fedavg"] = "fedavg"

    def make(self) -> ServerOptimizer:
        return _adding(self)


class FedAdam(ServerRule):
    """m, u ← moments of g; θ += lr·m/(√u + τ) (Reddi et al. 2021).

    g is noised already, so u is about the signal's second moment plus σ². State: m and u, (d,) each; a mean
    of σ² as u is one of g²; and the number of steps.
    """

    optimizer: Literal["fedadam"] = "fedadam"
    beta1: Decay = 0.9
    """Of the first moment m."""
    beta2: Decay = 0.99
    """Of the second moment u."""
    tau: Positive = 1e-9
    """Added to √u."""
    bias_correction: bool = False
    """Divide by 1 − β^t."""
    noise_correction: bool = False
    """Subtract from u the known variance of the noise in g² (DP-AdamBC, Tang et al. 2024)."""

    def usual_rate(self, *, private: bool) -> float:
        return 0.03

    def make(self) -> ServerOptimizer:
        def init(parameters: Tensor) -> State:
            zeros = parameters.new_zeros(parameters.shape)
            return {"first": zeros, "second": zeros.clone(), "noise": 0.0, "steps": 0}

        def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float) -> Any:
            beta1, beta2 = self.beta1, self.beta2
            first = beta1 * state["first"] + (1 - beta1) * mean
            second = beta2 * state["second"] + (1 - beta2) * mean**2
            noise = beta2 * state["noise"] + (1 - beta2) * noise_std**2
            steps = state["steps"] + 1
            m, u, noise_in_u = first, second, noise
            if self.bias_correction:
                m, u = first / (1 - beta1**steps), second / (1 - beta2**steps)
                noise_in_u = noise / (1 - beta2**steps)
            if self.noise_correction:
                # At least a tenth of the noise's share: below that, what is left of u is noise, not signal.
                u = (u - noise_in_u).clamp_min(0.1 * noise_in_u)
            new = parameters + self.rate * m / (u.sqrt() + self.tau)
            return new, {"first": first, "second": second, "noise": noise, "steps": steps}

        return ServerOptimizer(init, step)


class FedNova(ServerRule):
    """θ += τ_eff·g, where updates are divided by their steps before they are clipped (Wang et al. 2020).

    The update map does both; step counts come from the plan, never from private data.
    """

    per_step: ClassVar[bool] = True
    optimizer: Literal["fednova"] = "fednova"

    def make(self) -> ServerOptimizer:
        return _adding(self)


class DP2RMSProp(ServerRule):
    """Blocks of s plain rounds and s preconditioned rounds in turn (Li et al. 2023).

    Plain rounds step θ += g and accumulate g; the square of its mean updates the preconditioner A. In
    preconditioned rounds hospitals divide by √A + 1e-7 before clipping, and θ += lr·g. State: the number of
    rounds, the sum of g in this block, and A, (d,) or None before the first block has ended.
    """

    optimizer: Literal["dp2-rmsprop"] = "dp2-rmsprop"
    interval: Count = 3
    """s: rounds in a block."""
    decay: Decay = 0.9
    """Of the preconditioner A."""

    def usual_rate(self, *, private: bool) -> float:
        return 1e-4 if private else 1e-3

    def preconditions(self, round_: int) -> bool:
        return bool(((round_ - 1) // self.interval) % 2)

    def make(self) -> ServerOptimizer:
        def preconditioned(state: State) -> bool:
            return self.preconditions(state["rounds"] + 1)

        def init(parameters: Tensor) -> State:
            return {"rounds": 0, "gathered": parameters.new_zeros(parameters.shape), "second": None}

        def prepare(state: State) -> UpdateMap:
            return UpdateMap(divisor=state["second"].sqrt() + DP2_EPSILON if preconditioned(state) else None)

        def step(state: State, parameters: Tensor, mean: Tensor, noise_std: float) -> Any:
            rounds, gathered, second = state["rounds"] + 1, state["gathered"], state["second"]
            if preconditioned(state):
                parameters = parameters + self.rate * mean
            else:
                parameters = parameters + mean
                gathered = gathered + mean
                if rounds % self.interval == 0:
                    square = (gathered / self.interval) ** 2
                    second = square if second is None else self.decay * second + (1 - self.decay) * square
                    gathered = gathered.new_zeros(gathered.shape)
            return parameters, {"rounds": rounds, "gathered": gathered, "second": second}

        return ServerOptimizer(init, step, prepare)

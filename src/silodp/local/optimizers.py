"""Local optimizers: each is one class with its settings and its code.

Add one by subclassing `LocalSettings` in any file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from silodp.settings import Positive, Rule

if TYPE_CHECKING:
    from torch import Tensor


class LocalSettings(Rule):
    """How an intermediary trains in one round.

    Attributes:
        counts_steps: whether the optimizer's state has an entry "step", the number of steps so far.
        elementwise: whether a step treats each number by itself, so that `step` also takes stacked values.
    """

    section: ClassVar[str] = "local"
    key: ClassVar[str] = "optimizer"
    usual: ClassVar[str] = "adam"
    counts_steps: ClassVar[bool] = False
    elementwise: ClassVar[bool] = False
    optimizer: str
    learning_rate: Positive = 1e-3
    """Of the local optimizer."""
    state: Literal["kept", "fresh"] = "kept"
    """kept: each intermediary's moments persist across rounds; fresh: they start at zero in every round."""
    epochs: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Local epochs a round; a fraction takes that share of the steps, at least one."""
    batch_size: Annotated[int, Field(ge=2)] = 8
    """Images in a local step."""
    augmentation: Literal["none", "affine-flip"] = "none"
    """affine-flip: the paper's random rotation, shift and horizontal flip."""

    def step(self, values: Tensor, gradients: Tensor, state: dict[str, Tensor]) -> None:
        """Takes one step.

        Uses PyTorch's functional optimizers: its optimizer classes import the compiler, which takes longer
        than the first round of a small run.

        Args:
            values: (d,) float32 parameters; changed in place.
            gradients: (d,) float32.
            state: moments and step count; changed in place.
        """
        raise NotImplementedError

    @property
    def moments(self) -> tuple[str, ...]:
        """Names of the (d,) tensors in the optimizer's state, which start at zero."""
        return ()

    @property
    def keeps_state(self) -> bool:
        """Whether hospitals keep anything from round to round."""
        return self.state == "kept" and bool(self.moments)

    def reach(self, steps: int) -> float:
        """FedNova's local normaliser a of `steps` local steps (Wang et al. 2020)."""
        return float(steps)


class Adam(LocalSettings):
    """Adam or AMSGrad. FedNova's normaliser is its number of steps, as in the authors' program."""

    counts_steps: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True
    optimizer: Literal["adam"] = "adam"
    amsgrad: bool = True
    """Use AMSGrad, as in the authors' program."""

    def step(self, values: Tensor, gradients: Tensor, state: dict[str, Tensor]) -> None:
        from torch.optim.adam import adam

        largest = [state["max_exp_avg_sq"]] if self.amsgrad else []
        adam(
            [values], [gradients], [state["exp_avg"]], [state["exp_avg_sq"]], largest, [state["step"]],
            fused=True, amsgrad=self.amsgrad, lr=self.learning_rate, beta1=0.9, beta2=0.999, eps=1e-8,
            weight_decay=0.0, maximize=False,
        )  # fmt: skip

    @property
    def moments(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if self.amsgrad else ("exp_avg", "exp_avg_sq")


class SGD(LocalSettings):
    """SGD, with or without momentum."""

    elementwise: ClassVar[bool] = True
    optimizer: Literal["sgd"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """0 is plain SGD."""

    def step(self, values: Tensor, gradients: Tensor, state: dict[str, Tensor]) -> None:
        from torch.optim.sgd import sgd

        sgd(
            [values], [gradients], [state[name] for name in self.moments],
            fused=True, lr=self.learning_rate, momentum=self.momentum, dampening=0.0, nesterov=False,
            weight_decay=0.0, maximize=False,
        )  # fmt: skip

    @property
    def moments(self) -> tuple[str, ...]:
        return ("momentum_buffer",) if self.momentum else ()

    def reach(self, steps: int) -> float:
        """With momentum ρ the normaliser is Σ_k (1 − ρ^k)/(1 − ρ)."""
        return sum((1 - self.momentum**k) / (1 - self.momentum) for k in range(1, steps + 1))

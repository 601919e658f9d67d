"""The settings and results of an attack."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any, Literal

from torch import Tensor
from typing_extensions import TypedDict

from silodp.attacks.inversion.search import Search
from silodp.experiment import Experiment


@dataclass(frozen=True)
class AttackSettings:
    """The target of an attack.

    Attributes:
        images: number of images of the victim, one hospital.
        batch: number of them in one step.
        labels: whether the attacker knows classes or masks, or must infer them.
        views: names of the views to attack; empty: all.
    """

    images: int = 2
    batch: int = 1
    labels: Literal["known", "inferred"] = "known"
    views: tuple[str, ...] = ()
    search: Search = field(default_factory=Search)
    seed: int = 0


@dataclass(frozen=True)
class Score:
    """How close the reconstructions of one view are to the images.

    Attributes:
        ssim, psnr: of each image (1 and ∞ for a perfect reconstruction).
        baseline_ssim: SSIM of a blind guess, the mean of other hospitals' images.
        mismatch: 1 − cosine that the search reached, of gradients or of recovered features.
        read: the layer input recovered from the update, in words; empty where gradients were matched.
        epsilon_hospital, epsilon_intermediary: of this one round.
    """

    words: str
    ssim: list[float]
    psnr: list[float]
    baseline_ssim: list[float]
    mismatch: list[float]
    read: str
    epsilon_hospital: float
    epsilon_intermediary: float

    @property
    def mean_ssim(self) -> float:
        return mean(self.ssim)


class ViewRecord(TypedDict):
    """Means over the images; null where undefined."""

    ssim: float | None
    psnr: float | None
    baseline_ssim: float | None
    images: dict[str, Any]  # `Score`


class AttackFile(TypedDict):
    """attack.json."""

    experiment: str  # its name
    cohort: str
    victim: str
    noise_multiplier: float
    intermediaries: int  # v
    settings: dict[str, Any]  # `AttackSettings`
    views: dict[str, ViewRecord]


@dataclass(frozen=True)
class AttackResult:
    """Scores and reconstructions by view."""

    experiment: Experiment
    settings: AttackSettings
    cohort: str
    victim: str
    intermediaries: int
    scores: dict[str, Score]
    originals: Tensor
    guesses: dict[str, Tensor]

    def to_dict(self) -> AttackFile:
        """The content of attack.json."""
        return {
            "experiment": self.experiment.name,
            "cohort": self.cohort,
            "victim": self.victim,
            "noise_multiplier": self.experiment.privacy.noise_multiplier,
            "intermediaries": self.intermediaries,
            "settings": asdict(self.settings),
            "views": {
                name: {
                    "ssim": mean(score.ssim),
                    "psnr": mean(score.psnr),
                    "baseline_ssim": mean(score.baseline_ssim),
                    "images": asdict(score),
                }
                for name, score in self.scores.items()
            },
        }

"""The point of the method, and its price: three runs on the same data, to be put side by side."""

from __future__ import annotations

from silodp.experiment import Experiment

VARIANTS: dict[str, dict[str, object]] = {
    "without privacy": {
        "privacy.noise_multiplier": 0.0,
        "clipping.rule": "none",
        "intermediaries.rule": "fixed",
    },
    "DP-FedAvg": {"intermediaries.rule": "fixed"},
    "with intermediaries": {},
}


def demo_experiments() -> dict[str, Experiment]:
    """The preset `demo` in its three variants, by the title each has in the table."""
    return {
        title: Experiment.load("demo", changes | {"name": title.lower().replace(" ", "-")})
        for title, changes in VARIANTS.items()
    }

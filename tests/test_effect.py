"""The findings of the paper that a small run can show, on synthetic MRI."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from silodp import Experiment, Result, train
from silodp.intermediary import closed_form


def run(folder: Path, **changes: object) -> Result:
    return train(
        Experiment.build(
            {"cohort": {"slices": 240, "image_size": 32}},
            {key.replace("__", "."): value for key, value in changes.items()},
        ),
        out=folder,
        device="cpu",
    )


@pytest.mark.parametrize(("z", "features"), [(0.7, 4), (0.5, 8), (1.0, 8)])
def test_the_adaptive_v_settles_at_the_closed_form(z: float, features: int, tmp_path: Path) -> None:
    """With C at the median norm the rule goes to sqrt(z·√d/N) at once and stays near (Fig. 2d).

    Exactly: to that over √κ, where κ is the mean norm over the median. The noise's length is known to within
    1/√(2d), so v is what this law says, but for rounding down; how norms are spread is the network's affair.
    """
    result = run(
        tmp_path / "run",
        rounds=4,
        privacy__noise_multiplier=z,
        model__features=features,
        intermediaries__rule="adaptive",
        clipping__rule="median",
    )
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").open()]
    assert lines[0]["intermediaries"] == 1
    size = result.summary["parameters"]
    for line, after in pairwise(lines):
        sum_of_norms = line["noise_std"] * math.sqrt(size) / line["lambda"]
        kappa = sum_of_norms / (6 * line["intermediaries"]) / line["clip_bound"]
        assert 1 / 2 < kappa < 2
        law = closed_form(z, size, 6) / math.sqrt(kappa)
        slack = law * 5 / math.sqrt(8 * size)  # λ stands under a root
        assert -slack < law - after["intermediaries"] < 1 + slack, (law, after["intermediaries"], kappa)


def test_intermediaries_help_at_the_same_z_and_cost_at_hospital_level(tmp_path: Path) -> None:
    """Table 1's direction for prostate, z = 0.5; and the price that the paper leaves out."""
    kept = {"rounds": 30, "model__features": 8, "local__learning_rate": 0.01, "local__batch_size": 4}
    without = run(tmp_path / "one", intermediaries__rule="fixed", clipping__bound=15.0, **kept)
    split = run(tmp_path / "split", clipping__bound=4.0, **kept)
    assert split.summary["intermediaries"] == 7
    assert split.test["dice"] > without.test["dice"] + 0.1
    assert split.epsilon.intermediary == pytest.approx(without.epsilon.intermediary)
    assert without.epsilon.hospital == pytest.approx(without.epsilon.intermediary)
    assert split.epsilon.hospital > 30 * split.epsilon.intermediary

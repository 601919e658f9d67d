"""Sketches: exact where they are long enough, within their stated error where they are not."""

import math

import pytest
import torch

from silodp.local.sketch import BUCKETS, cosines, signs, sketch

CPU = torch.device("cpu")
LARGE = 300_007


def pair(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two correlated vectors whose coordinates have a mean, which signs must hide."""
    chance = torch.Generator().manual_seed(seed)
    first = torch.randn(size, generator=chance) + 0.5
    return first, 0.6 * first + torch.randn(size, generator=chance) + 0.3


@pytest.mark.parametrize("size", [1, 10, BUCKETS - 1, BUCKETS])
def test_small_vectors_are_exact(size: int) -> None:
    first, second = pair(size, 1)
    small = [sketch(vector) for vector in (first, second)]
    assert float(small[0].double() @ small[1].double()) == pytest.approx(
        float(first.double() @ second.double()), rel=1e-6
    )
    expected = torch.nn.functional.cosine_similarity(first, second, dim=0)
    torch.testing.assert_close(cosines(small[0][None], small[1])[0], expected)


def test_large_vectors_are_estimated_within_their_standard_error() -> None:
    errors = []
    for seed in range(100):
        first, second = pair(LARGE, seed)
        a, b = sketch(first), sketch(second)
        assert len(a) == BUCKETS
        truth = float(first.double() @ second.double())
        lengths = float(first.double().norm() * second.double().norm())
        standard_error = math.hypot(lengths, truth) / math.sqrt(BUCKETS)
        errors.append((float(a.double() @ b.double()) - truth) / standard_error)
    scores = torch.tensor(errors)
    assert scores.abs().max() < 5.5
    assert abs(float(scores.mean())) < 5 / math.sqrt(len(scores))
    assert float(scores.square().mean()) == pytest.approx(1, abs=5 * math.sqrt(2 / len(scores)))


def test_cosines_of_many_rows() -> None:
    first, second = pair(LARGE, 3)
    rows = torch.stack([sketch(vector) for vector in (first, second, -second)])
    truth = float(torch.nn.functional.cosine_similarity(first, second, dim=0))
    seen = cosines(rows, rows[1])
    assert seen.tolist() == pytest.approx([truth, 1, -1], abs=5 / math.sqrt(BUCKETS))


def test_signs_are_fixed_and_balanced() -> None:
    fixed = signs(LARGE, CPU)
    signs.cache_clear()  # as in another process
    assert torch.equal(fixed, signs(LARGE, CPU))
    assert torch.equal(fixed.abs(), torch.ones(LARGE))
    assert abs(float(fixed.mean())) < 5 / math.sqrt(LARGE)

"""Distractors lie outside the brain or in slices without a target, never over a target."""

import numpy as np
from numpy.random import default_rng

from silodp.pretraining.clutter import DARK, clutter
from silodp.pretraining.kinds import GENERATED


def heads() -> tuple[np.ndarray, np.ndarray]:
    """Grey discs on black, half of them with something to look for."""
    line = np.linspace(-1, 1, 64)
    inside = np.hypot(*np.meshgrid(line, line)) < 0.6
    images = np.broadcast_to(np.where(inside, 90, 0).astype(np.uint8), (40, 1, 64, 64)).copy()
    masks = np.zeros_like(images)
    masks[::2, :, 30:36, 30:36] = 1
    return images, masks


def test_clutter_never_covers_the_target() -> None:
    images, masks = heads()
    before = images.copy()
    tables = bones = 0
    for seed in range(12):
        found = clutter(default_rng(seed), images, masks)
        assert np.array_equal(images, before)  # a new array
        changed = found != images
        assert not changed[masks.astype(bool)].any()
        brain = images > DARK
        assert not (changed & brain)[::2].any()  # images that show it: only the air around the head
        tables += bool((changed & ~brain).any())
        bones += int((changed & brain)[1::2].any((1, 2, 3)).sum())
    assert 3 <= tables <= 12
    assert 0.1 < bones / (12 * 20) < 0.6


def test_heads_come_with_it() -> None:
    """Some heads have bright arcs in the air around them."""
    arcs = 0
    for number in range(12):
        images, _ = GENERATED["head"].draw(number, 64, 1)
        arcs += bool((images[:, 0, :3] > DARK).any() or (images[:, 0, -3:] > DARK).any())
    assert arcs >= 2

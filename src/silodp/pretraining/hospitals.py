"""Generated hospitals, whose scanners and annotators differ from those that starts are trained on.

A rehearsal on them estimates how a federation of hospitals of given sizes would go, and costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from silodp.cohorts.cohort import Cohort, Examples, HospitalData
from silodp.cohorts.synthetic import random_stream
from silodp.pretraining.kinds import Generated, draw_images, generated
from silodp.pretraining.randomise import randomise

STREAM = 5  # random stream, different from those of the generators
BEYOND = 1.25  # factor by which the zoom may leave the range that starts are trained on
CONTRAST = 1.0  # grey values may go through any curve, whatever the contrast that starts are trained on
REDRAWN = 0.04  # of the width: how far annotators may draw outlines inside or outside of the true ones
OVERLOOKED = 0.5  # largest share of targets, the smallest first, that annotators may leave out
SCAN = 24  # slices of a patient: hospitals have few patients with many slices each
FOR_TEST = 96  # test images of each hospital


def generated_hospitals(name: str, sizes: Sequence[int], image_size: int, channels: int, seed: int) -> Cohort:
    """A cohort of generated images with training sets of these sizes.

    All hospitals share one contrast, zoom and habit of annotation, drawn from `seed` and partly beyond what
    starts are trained on, so that there is something to learn that is the same for all.
    """
    kind = generated(name)
    patients = [[math.ceil(count / SCAN) for count in (size, FOR_TEST, FOR_TEST)] for size in sizes]
    images, masks = draw_images(
        kind, SCAN * sum(map(sum, patients)), image_size, 10_000 + seed, lambda done, of: None, SCAN
    )
    images, masks = _shift_domain(images, masks, kind, image_size, seed)
    targets = masks if kind.task == "segmentation" else masks.amax((1, 2, 3)).long()
    images = images.expand(-1, channels, -1, -1)
    members, first = [], 0
    for number, (size, counts) in enumerate(zip(sizes, patients, strict=True), start=1):
        parts = []
        for most, count in zip((size, FOR_TEST, FOR_TEST), counts, strict=True):
            mine = slice(first, first + min(most, SCAN * count))
            parts.append(_examples(images[mine], targets[mine]))
            first += SCAN * count
        members.append(HospitalData(f"generated-{number:02d}", *parts))
    return Cohort(f"generated {name}", tuple(members))


def _examples(images: Tensor, targets: Tensor) -> Examples:
    return Examples(images.clone(), targets.clone(), torch.arange(len(images)) // SCAN)


def _shift_domain(
    images: Tensor, masks: Tensor, kind: Generated, size: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Applies one scanner and one habit of annotation to (n, 1, s, s) uint8 images and masks."""
    rng, usual = random_stream(seed, STREAM), kind.style
    low, high = usual.zoom
    zoom = math.exp(rng.uniform(math.log(low / BEYOND), math.log(high * BEYOND)))
    style = replace(
        usual,
        zoom=(zoom / 1.15, zoom * 1.15),
        contrast=CONTRAST,
        one_contrast=True,
        texture=usual.texture / 2,
        noise=usual.noise / 2,
    )
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    redrawn = rng.uniform(-REDRAWN, REDRAWN)
    # One contrast curve for all: every chunk of images draws it from the same seed.
    curve = int(rng.integers(2**62))
    overlooked = rng.uniform(0, OVERLOOKED)
    seen, truth = [], []
    for part in torch.split(torch.arange(len(images)), 256):
        of_contrast = torch.Generator().manual_seed(curve)
        pixels = images[part].float() / 255
        pictures, moved = randomise(pixels, masks[part], style, size, generator, of_contrast)
        seen.append(((pictures + 1) * 127.5).round().byte())
        truth.append(_redraw(moved, redrawn * size).byte() if kind.task == "segmentation" else moved.byte())
    found = torch.cat(truth)
    return torch.cat(seen), found if kind.task == "segmentation" else _overlook(found, overlooked)


def _overlook(masks: Tensor, share: float) -> Tensor:
    """Masks without the smallest `share` of the targets, which these annotators overlook."""
    sizes = masks.flatten(1).sum(1).float()
    if not (sizes > 0).any():
        return masks
    called = sizes >= sizes[sizes > 0].quantile(share)
    return masks * called[:, None, None, None]


def _redraw(masks: Tensor, pixels: float) -> Tensor:
    """Masks dilated by so many pixels, or eroded where negative."""
    wide = 2 * round(abs(pixels)) + 1
    if pixels >= 0:
        return max_pool2d(masks, wide, 1, wide // 2)
    return 1 - max_pool2d(1 - masks, wide, 1, wide // 2)

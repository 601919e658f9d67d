"""Generated images: every kind draws what its task needs, the same for the same seed."""

import numpy as np
import pytest
import torch

from silodp.errors import InputError
from silodp.pretraining.kinds import GENERATED, SLICES, draw_images, generated


@pytest.mark.parametrize("kind", GENERATED)
def test_a_kind_draws_images_with_masks(kind: str) -> None:
    told: list[tuple[int, int]] = []
    images, masks = draw_images(GENERATED[kind], 30, 48, 1, lambda *far: told.append(far))
    assert images.shape == masks.shape
    assert len(images) == 4 * SLICES  # whole patients
    assert images.dtype == masks.dtype == torch.uint8
    assert set(masks.unique().tolist()) == {0, 1}
    shown = masks.amax((1, 2, 3)).float().mean()
    assert shown == 1 if GENERATED[kind].task == "segmentation" else 0.1 < shown < 0.9
    assert told[-1] == (4, 4)
    again, _ = draw_images(GENERATED[kind], 8, 48, 1, lambda *far: None)
    other, _ = draw_images(GENERATED[kind], 8, 48, 2, lambda *far: None)
    assert torch.equal(images[:SLICES], again)
    assert not torch.equal(again, other)


@pytest.mark.parametrize("kind", ["head", "lesions"])
def test_what_is_looked_for_can_be_seen(kind: str) -> None:
    """Where the mask is, the image differs from the ring around it; else nothing could be learnt."""
    images, masks = draw_images(GENERATED[kind], 200, 96, 3, lambda *far: None)
    gaps = []
    for image, mask in zip(images[:, 0].float().numpy(), masks[:, 0].numpy() > 0, strict=True):
        if mask.sum() > 20:
            wide = torch.nn.functional.max_pool2d(torch.from_numpy(mask).float()[None, None], 7, 1, 3)[0, 0]
            ring = (wide.numpy() > 0) & ~mask
            gaps.append(abs(image[mask].mean() - image[ring].mean()))
    assert len(gaps) > 20
    assert np.median(gaps) > 10


def test_an_unknown_kind_is_told_what_there_is() -> None:
    with pytest.raises(InputError, match=r"choose one of pelvis, head, shapes, lesions; did you mean pelvis"):
        generated("pelvic")

"""A run on an npz file of made-up pictures, for everything that is done with a trained model."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from silodp import Experiment, train

SIDE = 32


def discs(
    count: int, rng: np.random.Generator, size: tuple[int, int] = (SIDE, SIDE)
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Grey pictures with a bright disc, and its mask."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    images, masks = [], []
    for _ in range(count):
        y, x = rng.uniform(0.3, 0.7, 2) * size
        mask = (rows - y) ** 2 + (columns - x) ** 2 < (0.2 * min(size)) ** 2
        images.append((rng.normal(80, 15, size) + 110 * mask).clip(0, 255))
        masks.append(mask)
    return np.array(images).astype(np.uint8), np.array(masks)


def write_discs(folder: Path, images: NDArray[Any], masks: NDArray[Any], hospitals: str = "") -> None:
    """Writes images/N.png and masks/N.png, with hospitals below a folder of each in turn."""
    for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
        hospital = hospitals[number % len(hospitals)] if hospitals else ""
        for part, pixels in (("images", image), ("masks", mask.astype(np.uint8) * 255)):
            place = folder / hospital / part
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number}.png")


def train_on_discs(place: Path) -> tuple[Path, Path]:
    """A run on an npz file of two hospitals, and the file."""
    images, masks = discs(60, np.random.default_rng(0))
    hospital = np.array(["a", "b"])[np.arange(60) % 2]
    np.savez(place / "data.npz", image=images, mask=masks, patient=np.arange(60), hospital=hospital)
    own = {
        "cohort.kind": "npz", "cohort.path": str(place / "data.npz"), "cohort.cache": str(place / "cache"),
        "model.features": 4, "model.levels": 2, "rounds": 6, "privacy.noise_multiplier": 0.0,
        "local.learning_rate": 0.02, "local.batch_size": 4, "intermediaries.rule": "fixed",
        "clipping.rule": "none",
    }  # fmt: skip
    result = train(Experiment.build({}, own), out=place / "run", device="cpu")
    assert result.test["dice"] > 0.5  # so that there is something to compare
    return place / "run", place / "data.npz"

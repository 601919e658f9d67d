"""The values in masks, and whether their meaning is clear: 0 and one other value.

Anything else needs a setting: several labels may be several masks or one, and the greys along an edge, from
JPEG, anti-aliasing or an average of several readers, may be inside or outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from silodp.cohorts.kinds import MaskSettings
from silodp.cohorts.sources.pixels import COLOURED

FEW = 8  # values that are listed, and that may be labels


@dataclass(frozen=True)
class Doubt:
    """Why the meaning of masks is ambiguous.

    Attributes:
        sentence: their values, and both ways out.
        ways: the settings that are ways out, the more likely one first.
    """

    sentence: str
    ways: tuple[dict[str, Any], ...]


def doubt_of(found: Mapping[str, Sequence[float]], settings: MaskSettings) -> Doubt | None:
    """Why masks with these values, by hospital, are ambiguous; None if they are not."""
    if settings.mask_labels is not None or settings.mask_threshold is not None:
        return None
    doubtful = {
        name: values
        for name, values in found.items()
        if sum(value > 0 for value in values) > settings.one_mask_of
    }
    if not doubtful:
        return None
    above = sorted({value for values in doubtful.values() for value in values if value > 0})
    labels = above if len(above) <= FEW and all(value == int(value) < COLOURED for value in above) else None
    threshold = min(1, above[0]) if labels else _middle(above[-1])
    ways: list[dict[str, Any]] = [{"mask_threshold": threshold}]
    if labels:
        ways.insert(0, {"mask_labels": [int(value) for value in labels]})
    name, values = next(iter(doubtful.items()))
    more = f", and so {len(doubtful) - 1} more" if len(doubtful) > 1 else ""
    each = f"cohort.mask_labels={ways[0]['mask_labels']}" if labels else "cohort.mask_labels=[…]"
    sentence = (
        f"the masks{f' of {name}' if name else ''} hold {in_words(values)}{more}, and not 0 with one more; "
        f"say what is meant: {each} makes a mask of each value, cohort.mask_threshold={threshold:g} one mask "
        f"of all from {threshold:g} up"
    )
    return Doubt(sentence, tuple(ways))


def in_words(values: Sequence[float]) -> str:
    """Such as "0, 255", or of very many how many, the ends and an example."""
    if len(values) <= FEW:
        return ", ".join(map(_name, values)) or "nothing"
    return f"{len(values)} values from {_name(values[0])} to {_name(values[-1])}, such as {_name(values[1])}"


def _name(value: float) -> str:
    return f"#{int(value) - COLOURED:06x}" if value >= COLOURED else f"{value:g}"


def _middle(highest: float) -> float:
    """Half of the brightest that there can be: of a fraction, a byte, 16 bits."""
    if highest >= COLOURED:
        return 128
    return next((half for most, half in ((1, 0.5), (255, 128)) if highest <= most), highest / 2)

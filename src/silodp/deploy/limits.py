"""What a hospital allows a coordinator: set by the hospital, in its site.toml."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from silodp.settings import Count, Positive, Settings

LARGEST_DELTA = 0.1  # where the limits name no δ


class Limits(Settings):
    """A hospital's limits on what a coordinator may ask for."""

    section: ClassVar[str] = "limits"
    epsilon: Positive = 8.0
    """For the whole hospital, add-or-remove, over all runs that this site ever takes part in."""
    delta: Annotated[float, Field(gt=0, le=LARGEST_DELTA)] | None = None
    """Of that ε; by default the smallest that this hospital ever agreed on, 0.1 at most."""
    noise_multiplier_at_least: Positive | None = None
    """For the whole hospital, in a round: z/v."""
    clip_bound_at_most: Positive | None = None
    """C, also where rounds move it."""
    intermediaries_at_most: Count = 1
    """v: splitting protects parts of a hospital, not the hospital."""
    rounds_at_most: Count | None = None
    hospitals_at_most: Count | None = None
    """In a federation. Where noise is shared, each of more hospitals adds less of it, and a coordinator could
    make some up."""
    coordinator_epsilon: Positive | None = None
    """Where noise is shared: ε of this run against the coordinator, who sees single contributions."""
    parameters_at_most: Count = 100_000_000
    """Trainable ones."""
    validation_metrics: bool = False
    """Whether validation and test metrics may leave the hospital; ε does not cover them."""
    seeded_noise: bool = False
    """Whether noise may come from a seed that everybody knows: for rehearsals of a deployment only."""

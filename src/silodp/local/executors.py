"""Choosing the executor of local training: the fastest that device and network allow."""

from __future__ import annotations

from silodp.cohorts.cohort import Examples
from silodp.errors import InputError
from silodp.local.jobs import Executor, Sequential
from silodp.local.trainer import LocalTrainer

SMALL_BATCH = 10_000
"""Pixels of a batch up to which stacking intermediaries is faster on a CPU (docs/performance.md)."""


def executor_named(name: str, trainer: LocalTrainer, examples: Examples) -> Executor:
    """Builds the executor that the experiment names.

    Args:
        name: sequential, stacked, captured, or auto: captured on a GPU; on a CPU stacked where batches are
            small and the network allows it, else sequential.
        trainer: that it will use.
        examples: some training images on the trainer's device; only shapes and dtypes matter.

    Raises:
        InputError: the named executor cannot train this network on this device; auto never fails.
    """
    on_gpu, private_steps = trainer.device.type == "cuda", trainer.sample_level is not None
    if name == "captured" or (name == "auto" and on_gpu and not private_steps):
        if not on_gpu or private_steps:
            why = "DP-SGD (privacy.level = sample) cannot be recorded" if on_gpu else "it is for GPUs"
            raise InputError(f"executor = captured: {why}; set executor=auto")
        from silodp.local.captured import Captured

        return Captured(trainer)
    pixels = trainer.settings.batch_size * examples.images.shape[-2:].numel()
    if name == "stacked" or (name == "auto" and not on_gpu and pixels <= SMALL_BATCH):
        from silodp.local.stacked import Stacked, can_stack

        if can_stack(trainer, examples):
            return Stacked(trainer)
        if name == "stacked":
            raise InputError(
                "executor = stacked: this network, optimizer or device cannot train several intermediaries "
                "in one step; set executor=auto"
            )
    return Sequential(trainer)

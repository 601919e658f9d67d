"""A workload in pfl-research: federated averaging with central DP, every intermediary a user.

As fast as we know to make it: batches are sliced once, Adam is fused, nothing is evaluated or printed. Two
processes divide the users by pfl's own torch.distributed. Runs in pfl's environment, which has no silodp, but
for the modules that need PyTorch alone. Started by peers.py, which asks for rounds.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.metrics import Metrics  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from pfl.privacy.gaussian_mechanism import GaussianMechanism  # type: ignore[import-not-found]
from pfl.privacy.privacy_mechanism import (  # type: ignore[import-not-found]
    CentrallyAppliedPrivacyMechanism,
)
from torch import Tensor, nn

from silodp.bench.worker import finished_round
from silodp.bench.workloads import CLIP_BOUND, LEARNING_RATE, MANY, NOISE_MULTIPLIER, Workload


class WithLoss(nn.Module):
    """A network as pfl wants it; counts its steps."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.network, self._loss, self.steps = workload.make_network(), workload.loss, 0

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        self.steps += 1
        return self._loss(self.network(images), targets)

    def metrics(self, images: Tensor, targets: Tensor) -> dict[str, Any]:
        raise NotImplementedError("nothing is evaluated")


class UntilEnough(TrainingProcessCallback):  # type: ignore[misc]
    """Waits after every round to be asked for another."""

    def __init__(self, module: WithLoss) -> None:
        self._module = module

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        steps, self._module.steps = self._module.steps, 0
        return not finished_round(steps), Metrics()


def main(words: list[str]) -> None:
    settings = json.loads(words[0])
    workload = Workload(**settings["workload"])
    torch.set_num_threads(settings["threads"])
    np.random.seed(0)  # the same in both processes: pfl's sampler divides the users by it
    module = WithLoss(workload)
    memory_format = torch.channels_last if settings["channels_last"] else torch.contiguous_format
    module.to(memory_format=memory_format)  # type: ignore[call-overload]
    model = PyTorchModel(
        module,
        partial(torch.optim.Adam, amsgrad=True, fused=True),
        torch.optim.SGD(module.parameters(), 1.0),
    )
    users = []
    for number in range(workload.hospitals):
        for one in workload.divided(number):
            images, targets = (torch.cat(tensors) for tensors in zip(*one, strict=True))
            users.append(PyTorchTensorDataset((images.contiguous(memory_format=memory_format), targets)))
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(len(users)))))
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP_BOUND, NOISE_MULTIPLIER))
    algorithm = FederatedAveraging()
    algorithm._current_central_iteration = 1  # in iteration 0 it would evaluate every user
    algorithm.run(
        NNAlgorithmParams(MANY, MANY, train_cohort_size=len(users), val_cohort_size=None),
        SimulatedBackend(data, data, [mechanism]),
        model,
        NNTrainHyperParams(
            local_batch_size=workload.batch, local_num_epochs=1, local_learning_rate=LEARNING_RATE
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[UntilEnough(module)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main(sys.argv[1:])

"""A workload in Flower's simulation: its DP strategy around FedAvg, an intermediary a node, an actor a core.

As fast as we know to make it: actors keep the network and the images, nodes train with a fused Adam on one
thread, nothing is evaluated, logged or sent home. Started by peers.py, which asks for rounds.
"""

from __future__ import annotations

import json
import logging
import sys
from functools import cache, partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from silodp.bench.worker import finished_round
from silodp.bench.workloads import CLIP_BOUND, LEARNING_RATE, MANY, NOISE_MULTIPLIER, Batch, Workload


class _Enough(Exception):
    """Nobody asks for another round."""


@cache
def resident(given: str) -> tuple[torch.nn.Module, Any, list[list[Batch]]]:
    """What an actor keeps: the network, the loss and the batches of all intermediaries."""
    torch.set_num_threads(1)
    settings = json.loads(given)
    workload = Workload(**settings["workload"])
    memory_format = torch.channels_last if settings["channels_last"] else torch.contiguous_format
    network: torch.nn.Module = workload.make_network()
    network.to(memory_format=memory_format)  # type: ignore[call-overload]
    every = [one for number in range(workload.hospitals) for one in workload.divided(number)]
    batches = [
        [(images.contiguous(memory_format=memory_format), targets) for images, targets in one]
        for one in every
    ]
    return network, workload.loss, batches


def train(given: str, message: Message, context: Context) -> Message:
    """A node's round: from the global parameters, with a fresh Adam, once through its images."""
    network, loss, every = resident(given)
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, amsgrad=True, fused=True)
    batches = every[int(context.node_config["partition-id"])]
    for images, targets in batches:
        optimizer.zero_grad()
        loss(network(images), targets).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": sum(len(images) for images, _ in batches)})
    return Message(
        RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message
    )


def main() -> None:
    """`python -c … SETTINGS`: not as a script, or actors would get the functions here without their cache."""
    given = sys.argv[1]
    settings = json.loads(given)
    workload = Workload(**settings["workload"])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    server, client = ServerApp(), ClientApp()

    @server.main()  # type: ignore[untyped-decorator]
    def rounds(grid: Grid, context: Context) -> None:
        strategy = DifferentialPrivacyServerSideFixedClipping(
            FedAvg(fraction_evaluate=0.0, min_available_nodes=workload.parts),
            NOISE_MULTIPLIER, CLIP_BOUND, workload.parts,
        )  # fmt: skip
        start = ArrayRecord(workload.make_network().state_dict())
        strategy.start(grid, start, num_rounds=MANY, evaluate_fn=partial(after_round, workload.steps))

    client.train()(partial(train, given))
    ray = {
        "num_cpus": settings["actors"], "logging_level": "error", "log_to_driver": False,
        "_temp_dir": settings["folder"],
    }  # fmt: skip
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    run_simulation(server, client, workload.parts, backend_config=backend)


def after_round(steps: int, number: int, arrays: ArrayRecord) -> None:
    """Flower calls it before round one as well."""
    if number and not finished_round(steps):
        raise _Enough

"""What a finished run leaves: test figures of its models, the models, summary.json and the model card."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from silodp.federation import State
from silodp.privacy.accountants import Epsilon
from silodp.privacy.events import hospital_noise_multiplier
from silodp.privacy.ledger import Ledger
from silodp.runs.card import model_card, model_facts
from silodp.runs.folder import RunFolder
from silodp.runs.parts import ServerParts
from silodp.runs.record import Metrics, epsilon_of, epsilon_record, not_covered, start_record, test_record
from silodp.runs.schema import CohortInShort, ModelTest, Summary, or_nan
from silodp.settings import EvaluationBatch


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: of the run.
        epsilon: what was spent, for a hospital and for an intermediary.
        test: mean test metrics over the hospitals, of the last round's model.
        summary: the content of summary.json.
        model: the network with the last round's weights.
    """

    folder: Path
    epsilon: Epsilon
    test: Metrics
    summary: Summary
    model: nn.Module


def write_result(
    parts: ServerParts,
    state: State,
    best: tuple[int, Tensor],
    version: str,
    folder: RunFolder,
    ledger: Ledger,
    cohort: CohortInShort,
) -> Result:
    """Tests the last and the best model, and writes both, the model card and summary.json.

    Args:
        parts: of the run.
        state: after the last round.
        best: the best round on validation images, and its (d,) parameters.
        version: of silodp, when the run began or was resumed.
        folder: of the run; written to.
        ledger: the run's, complete.
        cohort: for the summary.
    """
    experiment, (best_round, best_parameters) = parts.experiment, best
    events = ledger.events
    rounds, epsilon = folder.metrics(), epsilon_of(experiment, events)
    intermediaries = rounds[-1]["intermediaries"] if rounds else state.intermediaries
    last = _test(parts, state.round, state.model)
    same = best_parameters is state.model
    best_test = last if same else _test(parts, best_round, best_parameters)
    training_seconds = sum(record["training_seconds"] for record in rounds)
    images = sum(record["images"] for record in rounds) * experiment.local.epochs
    described = folder.cohort()
    assert described is not None  # written before the first round
    about = model_facts(experiment, described, version, ledger.head)
    digest = folder.save_model("model.safetensors", parts.model.named_tensors(state.model), about)
    folder.save_model("model-best.safetensors", parts.model.named_tensors(best_parameters), about)
    cost = epsilon_record(epsilon)
    summary: Summary = {
        "experiment": experiment.name,
        "task": parts.task.name,
        "headline": parts.task.headline,
        "cohort": cohort,
        "members": len(parts.federation.hospitals),
        "rounds": state.round,
        "parameters": len(parts.model),
        "epsilon": cost,
        "delta": experiment.delta,
        "image_delta": experiment.privacy.image_delta,
        "noise_multiplier": {
            "hospital": hospital_noise_multiplier(events),
            "intermediary": experiment.privacy.noise_multiplier,
        },
        "intermediaries": intermediaries,
        "budget": experiment.budget.model_dump() if experiment.budget else None,
        "stopped": state.stopped,
        "test": {"last": last, "best": {**best_test, "round": best_round}},
        "best_round": best_round,
        "not_covered_by_epsilon": not_covered(experiment, cost, cohort),
        "wall_seconds": round(sum(record["seconds"] for record in rounds), 2),
        "training_seconds": round(training_seconds, 2),
        "images_per_second": round(images / max(training_seconds, 1e-9), 1),
        "device": _device_name(parts.model.values.device),
        "torch": torch.__version__,
        "silodp": version,
        "start": start_record(experiment),
        "ledger": ledger.head,
        "model": digest,
    }
    folder.save_card(model_card(experiment, summary, described))
    folder.save_summary(summary)
    mean = {name: or_nan(value) for name, value in last["mean"].items()}
    parts.model.load(state.model)
    return Result(folder.path, epsilon, mean, summary, parts.model.module.eval())


def _test(parts: ServerParts, round_: int, parameters: Tensor) -> ModelTest:
    """What a model scores on the test images; with norm layers that mix images, also in other batches."""
    batch = parts.experiment.evaluation.batch
    scores = parts.engine.evaluate(parameters, "test", thorough=True)
    if not parts.mixes_images():
        return test_record(round_, scores, "any", None)
    another: EvaluationBatch = "hospital" if batch != "hospital" else "image"
    try:
        other = another, parts.engine.evaluate(parameters, "test", thorough=True, batch=another)
    except ValueError:  # of BatchNorm, where one image leaves one number a channel
        return test_record(round_, scores, batch, None)
    return test_record(round_, scores, batch, other)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"

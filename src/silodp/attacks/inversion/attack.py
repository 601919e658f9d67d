"""Attacks an experiment or a run: reconstructs training images from every view of a round and scores them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from silodp.attacks.inversion.open_network import open_network
from silodp.attacks.inversion.reading import Reading, layer_input, read_layer, reconstruct
from silodp.attacks.inversion.result import AttackResult, AttackSettings, Score
from silodp.attacks.inversion.search import Guess, Observed, Search, invert_update
from silodp.attacks.inversion.views import View, views_of
from silodp.cohorts import Cohort, Examples, HospitalData, load_cohort
from silodp.errors import InputError
from silodp.experiment import Experiment, ResolvedExperiment
from silodp.local.parameters import FlatModel
from silodp.local.splitting import cap, room
from silodp.local.trainer import network_input
from silodp.noise.streams import generator
from silodp.runs.build import device_named
from silodp.runs.fitting import named_network, outputs, refuse_other_targets
from silodp.runs.folder import read_summary
from silodp.tasks import Task, task_named

OnProgress = Callable[[str, int, int], None]
CPU = torch.device("cpu")


def invert(
    experiment: Experiment,
    *,
    run: Path | None = None,
    device: str = "cpu",
    settings: AttackSettings | None = None,
    on_progress: OnProgress | None = None,
) -> AttackResult:
    """Attacks the first model of an experiment, or the last one of a run.

    Args:
        experiment: cohort, network, noise, rule for v.
        run: folder of a run, for its trained model and the v of its last round.
        device: "auto", "cpu" or "cuda".
        settings: the target and the effort.
        on_progress: called with (view, steps done, steps in all).
    """
    settings, place = settings or AttackSettings(), device_named(device)
    cohort = load_cohort(experiment.cohort)
    task = task_named(experiment.task)
    refuse_other_targets(cohort, task)
    victim = cohort.hospitals[0]
    if not 1 <= settings.batch <= settings.images <= len(victim.train):
        raise InputError(
            f"--images {settings.images}, --batch {settings.batch}: {victim.name} has {len(victim.train)} "
            "training images; attack at least one batch and at most all of them"
        )
    if not isinstance(experiment, ResolvedExperiment):  # a budget may set the noise
        experiment = experiment.resolve(len(cohort.hospitals), torch.get_num_threads())
    own = FlatModel(named_network(experiment, cohort, run), place)
    first = victim.train.images
    wanted = outputs(experiment, cohort)
    size = (int(first.shape[2]), int(first.shape[3]))
    masks = victim.train.targets.ndim == 4
    easy = FlatModel(open_network(first.shape[1], size, wanted, masks, settings.seed), place)
    members = experiment.participation.training(cohort.hospitals)
    v = read_summary(run)["intermediaries"] if run else _intermediaries(experiment, len(own), members)
    views = views_of(experiment, easy, own, task, victim, v, experiment.delta)
    chosen = [view for view in views if not settings.views or view.name in settings.views]
    if missing := set(settings.views) - {view.name for view in views}:
        raise InputError(f"view {missing.pop()}: choose among {', '.join(view.name for view in views)}")

    others = _others(cohort)
    attacked = _attacked(victim.train, settings)
    scores, guesses = {}, {}
    for view in chosen:
        found = _guesses(task, attacked, view, others, wanted, settings, on_progress)
        scores[view.name], guesses[view.name] = _score(view, found, attacked, others, settings)
    truth = network_input(attacked.images)
    return AttackResult(experiment, settings, cohort.name, victim.name, v, scores, truth, guesses)


def _intermediaries(experiment: Experiment, parameters: int, members: Sequence[HospitalData]) -> int:
    """v of an experiment that has not run: the value at which its rule settles."""
    rule, z = experiment.intermediaries, experiment.privacy.noise_multiplier
    expected = experiment.participation.expected_hospitals(len(members))
    return cap(rule.settled_count(z, parameters, expected), room(members, rule.min_samples))[0]


def _others(cohort: Cohort) -> Tensor:
    """Images of this kind that an attacker has: those of the other hospitals."""
    rest = cohort.hospitals[1:] or cohort.hospitals
    return torch.cat([network_input(hospital.train.images) for hospital in rest])


def _attacked(examples: Examples, settings: AttackSettings) -> Examples:
    """Images evenly spaced among the victim's, in whole batches."""
    count = settings.images // settings.batch * settings.batch
    return examples[torch.linspace(0, len(examples) - 1, count).long()]


def _guesses(
    task: Task,
    attacked: Examples,
    view: View,
    others: Tensor,
    outputs: int,
    settings: AttackSettings,
    on_progress: OnProgress | None,
) -> list[Guess]:
    """A reconstruction of every batch."""
    network, place = view.model.module, view.model.values.device
    found, done = list[Guess](), 0
    total = len(attacked) // settings.batch * settings.search.restarts * settings.search.iterations

    def step(count: int = 1) -> None:
        nonlocal done
        done += count
        if on_progress is not None and (done % 25 < count or done == total):
            on_progress(view.name, done, total)

    for number in range(0, len(attacked), settings.batch):
        batch = attacked[torch.arange(number, number + settings.batch)].to(place)
        update, shape = view.update(batch), tuple(batch.images.shape)
        network.train()
        rng = generator(CPU, settings.seed, "attack", view.name, number)
        trained = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
        named = view.model.named_tensors(-update)  # where nothing trains, values in place of gradients
        if reading := read_layer(network, {name: named[name].to(place) for name in trained}, shape, rng):
            found.append(_through(reading, network, others, settings.search, rng, step))
            continue
        known, masks = settings.labels == "known", batch.targets.ndim == 4
        observed = Observed(
            network,
            task.loss,
            update,
            float(others.mean()),
            shape,
            batch.targets if known else None if masks else classes_in(update, outputs, len(batch)),
            tuple(batch.targets.shape),
        )
        found.append(invert_update(observed, settings.search, rng, step))
    return found


def _through(
    reading: Reading,
    network: nn.Module,
    others: Tensor,
    search: Search,
    rng: torch.Generator,
    step: Callable[[int], None],
) -> Guess:
    """The reconstruction through the recovered input of a layer; takes the steps of one start only."""
    images = reconstruct(network, reading, others, search.iterations, rng, lambda: step(search.restarts))
    with torch.no_grad():
        cosine = float((layer_input(network, reading.layer, images) * reading.features).sum())
    words = (
        f"{reading.features.numel():,} features for {images.numel():,} pixels, read before "
        f"{reading.layer}; two readings agree to {reading.agreement:.3f}"
    )
    return Guess(images, 1 - cosine, words)


def classes_in(update: Tensor, classes: int, count: int) -> Tensor:
    """Classes in a batch, by the last layer's bias: its gradient is negative only for classes that occur.

    Zhao et al. 2020; exact for one image, for more a guess that takes the classes in turn.
    """
    rise = update[-classes:]  # Δ of the bias, against the gradient
    there = [int(number) for number in rise.argsort(descending=True) if rise[number] > 0]
    there = there or [int(rise.argmax())]
    return torch.tensor([there[number % len(there)] for number in range(count)], device=update.device)


def _score(
    view: View,
    found: list[Guess],
    attacked: Examples,
    others: Tensor,
    settings: AttackSettings,
) -> tuple[Score, Tensor]:
    from monai.metrics import PSNRMetric, SSIMMetric
    from scipy.optimize import linear_sum_assignment

    size = min(attacked.images.shape[2:])
    similarity = SSIMMetric(2, data_range=2.0, win_size=min(11, size - 1 + size % 2), reduction="none")
    noise = PSNRMetric(max_val=2.0, reduction="none")
    originals, blind = network_input(attacked.images), others.mean(0, keepdim=True)
    ordered = []
    for number, guess in enumerate(found):
        images = guess.images.cpu()
        truth = originals[number * settings.batch : (number + 1) * settings.batch]
        alike = torch.tensor([[float(similarity(a[None], b[None])) for b in images] for a in truth])
        ordered.append(images[linear_sum_assignment(-alike.numpy())[1]])
    guesses = torch.cat(ordered)
    pairs = list(zip(originals, guesses, strict=True))
    score = Score(
        view.words,
        [float(similarity(a[None], b[None])) for a, b in pairs],
        [float(noise(a[None], b[None])) for a, b in pairs],
        [float(similarity(a[None], blind)) for a in originals],
        [guess.mismatch for guess in found],
        found[0].read,
        *view.epsilon,
    )
    return score, guesses

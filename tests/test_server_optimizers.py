"""Each optimizer against its textbook rule, written here a second time in another way."""

import copy
import math

import numpy as np
import pytest
import torch
from conftest import blob_cohort
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from silodp import Experiment, train
from silodp.server_optimizers import DP2_EPSILON, DP2RMSProp, ServerRule
from silodp.tasks import task_named

SIZE = 5
means = st.lists(
    st.lists(st.floats(-1, 1, width=32), min_size=SIZE, max_size=SIZE), min_size=1, max_size=14
).map(np.array)
law = settings(max_examples=40, deadline=None)


def run(
    history: np.ndarray, noise_std: float = 0.0, mean_reach: float = 1.0, **settings: object
) -> np.ndarray:
    optimizer = ServerRule.of(**settings).make()
    parameters = torch.ones(SIZE, dtype=torch.float64)
    state = optimizer.init(parameters)
    for mean in history:
        given, std = optimizer.prepare(state).decode(torch.tensor(mean), noise_std, lambda: mean_reach)
        parameters, state = optimizer.step(state, parameters, given, std)
    return parameters.numpy()


@law
@given(means, st.floats(0.5, 20))
def test_fedavg_adds_the_means_and_fednova_times_the_mean_steps(history: np.ndarray, steps: float) -> None:
    for optimizer, factor in (("fedavg", 1.0), ("fednova", steps)):
        found = run(history, mean_reach=steps, optimizer=optimizer, learning_rate=1.0)
        np.testing.assert_allclose(found, 1 + factor * history.sum(0), rtol=1e-9, atol=1e-9)


@law
@given(means)
def test_fedadam_with_bias_correction_is_pytorchs_adam(history: np.ndarray) -> None:
    parameter = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
    adam = torch.optim.Adam([parameter], lr=0.03, betas=(0.9, 0.99), eps=1e-9, maximize=True)
    for g in history:
        parameter.grad = torch.tensor(g)
        adam.step()
    got = run(history, optimizer="fedadam", learning_rate=0.03, bias_correction=True)
    np.testing.assert_allclose(got, parameter.detach().numpy(), rtol=1e-7)


def test_noise_correction_recovers_the_signals_second_moment() -> None:
    """DP-AdamBC: with g = signal + noise, plain Adam divides by √(s² + σ²), the corrected one by |s|."""
    generator = np.random.default_rng(0)
    signal, sigma, rounds = 0.5, 1.0, 3000
    history = signal + sigma * generator.standard_normal((rounds, SIZE))
    kept = {
        "optimizer": "fedadam",
        "learning_rate": 1.0,
        "beta1": 0.99,
        "beta2": 0.999,
        "bias_correction": True,
    }

    def pace(**more: object) -> float:
        early, late = run(history[:-1], sigma, **kept, **more), run(history, sigma, **kept, **more)
        return float(np.mean(late - early))

    assert pace() == pytest.approx(signal / math.sqrt(signal**2 + sigma**2), rel=0.25)
    assert pace(noise_correction=True) == pytest.approx(1.0, rel=0.35)
    assert pace(noise_correction=True) > 1.5 * pace()


@law
@given(means)
def test_dp2_rmsprop_alternates_blocks_and_refreshes_its_preconditioner(history: np.ndarray) -> None:
    optimizer = DP2RMSProp(learning_rate=0.1, interval=3).make()
    parameters = torch.ones(SIZE, dtype=torch.float64)
    state = optimizer.init(parameters)
    theta, preconditioner, block = np.ones(SIZE), None, []
    for number, g in enumerate(history):
        divisor = optimizer.prepare(state).divisor
        if (number // 3) % 2:
            assert divisor is not None
            assert preconditioner is not None
            np.testing.assert_allclose(divisor.numpy(), np.sqrt(preconditioner) + DP2_EPSILON, rtol=1e-9)
            theta = theta + 0.1 * g
        else:
            assert divisor is None
            theta = theta + g
            block.append(g)
            if len(block) == 3:
                square = np.mean(block, axis=0) ** 2
                preconditioner = square if preconditioner is None else 0.9 * preconditioner + 0.1 * square
                block = []
        parameters, state = optimizer.step(state, parameters, torch.tensor(g), 0.0)
        np.testing.assert_allclose(parameters.numpy(), theta, rtol=1e-9)


PLAIN = {
    "rounds": 4,
    "local": {"optimizer": "sgd", "momentum": 0.0, "learning_rate": 0.5, "batch_size": 64},
    "intermediaries": {"rule": "fixed", "count": 1},
    "clipping": {"rule": "none"},
    "privacy": {"noise_multiplier": 0.0},
}


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fednova", "dp2-rmsprop"])
def test_a_whole_run_without_noise_splitting_or_bound_is_the_textbook_algorithm(name: str, tmp_path) -> None:
    """One full-batch SGD step a hospital and round makes Δ_i = −lr·∇f_i, found here with plain PyTorch."""
    cohort = blob_cohort(hospitals=3, images=10)
    torch.manual_seed(1)
    model = torch.nn.Conv2d(1, 1, 3, padding=1)
    changes = {"server.optimizer": name, "server.learning_rate": 0.1}
    changes |= {"server.interval": 1} if name == "dp2-rmsprop" else {}
    result = train(
        Experiment.build(PLAIN, changes),
        out=tmp_path,
        cohort=cohort,
        model=copy.deepcopy(model),
        device="cpu",
    )

    loss, theta = task_named("segmentation").loss, parameters_to_vector(model.parameters()).detach()
    m, u, a = torch.zeros_like(theta), torch.zeros_like(theta), None
    for number in range(4):
        vector_to_parameters(theta.clone(), model.parameters())
        deltas = []
        for hospital in cohort.hospitals:
            value = loss(model(hospital.train.images), hospital.train.targets)
            gradients = torch.autograd.grad(value, list(model.parameters()))
            deltas.append(-0.5 * parameters_to_vector(gradients))
        g = torch.stack(deltas).mean(0)
        if name == "fedadam":
            m, u = 0.9 * m + 0.1 * g, 0.99 * u + 0.01 * g**2
            theta = theta + 0.1 * m / (u.sqrt() + 1e-9)
        elif name == "dp2-rmsprop" and number % 2:
            theta = theta + 0.1 * g / (a.sqrt() + DP2_EPSILON)
        elif name == "dp2-rmsprop":
            theta, a = theta + g, g**2 if a is None else 0.9 * a + 0.1 * g**2
        else:
            theta = theta + 0.1 * g
    torch.testing.assert_close(parameters_to_vector(result.model.parameters()), theta, rtol=1e-4, atol=1e-5)

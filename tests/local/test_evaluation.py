"""What a network sees at a time when it is validated and tested: what a doctor would get, by default."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from silodp import Cohort, Examples, Experiment, InputError, train
from silodp.local.optimizers import LocalSettings
from silodp.local.parameters import FlatModel
from silodp.local.trainer import LocalTrainer, network_input
from silodp.models.unet import UNet
from silodp.settings import EvaluationSettings
from silodp.tasks import task_named

CPU = torch.device("cpu")


def trainer(network: nn.Module, **evaluation: Any) -> LocalTrainer:
    model = FlatModel(network, CPU)
    settings = EvaluationSettings(**evaluation)
    return LocalTrainer(model, task_named("segmentation"), LocalSettings.of(batch_size=8), None, settings)


def examples(count: int = 70, patients: list[int] | None = None) -> Examples:
    images = torch.randn(count, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    images *= torch.linspace(0.5, 3, count)[:, None, None, None]  # so that a batch matters
    return Examples(images, (images > 1).float(), None if patients is None else torch.tensor(patients))


def seen_together(network: nn.Module, batch: str, data: Examples) -> tuple[Tensor, list[int]]:
    """The predictions, and how many images the network took at a time."""
    sizes: list[int] = []
    local = trainer(network, batch=batch)
    hook = network.register_forward_hook(lambda *seen: sizes.append(len(seen[2])))
    logits = local.logits(local.model.values.clone(), data)
    hook.remove()
    return logits, sizes


class Centred(nn.Module):
    """Mixes the images of a batch by means of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.layer(images)
        return found - found.mean(0)


@pytest.mark.parametrize("norm", ["group", "instance"])
def test_independent_images_are_judged_in_batches_with_the_same_result(norm: str) -> None:
    data, network = examples(), UNet(1, 1, 4, norm, levels=2)
    together, sizes = seen_together(network, "image", data)
    with torch.no_grad():
        alone = torch.cat([network(network_input(image[None])) for image in data.images])
    assert (together - alone).abs().max() < 1e-4
    assert max(sizes) > 20


@pytest.mark.parametrize("network", [UNet(1, 1, 4, "batch", levels=2), Centred()])
def test_where_images_depend_on_each_other_each_is_judged_by_itself(network: nn.Module) -> None:
    data = examples()
    alone, sizes = seen_together(network, "image", data)
    assert set(sizes[-70:]) == {1}
    with torch.no_grad():
        expected = torch.cat([network(network_input(image[None])) for image in data.images])
    assert (alone - expected).abs().max() < 1e-4
    together, sizes = seen_together(network, "hospital", data)
    assert min(sizes) > 20
    assert (together - alone).abs().max() > 0.05


def test_batch_scan_judges_an_image_with_the_others_of_its_patient() -> None:
    whose = [number % 7 for number in range(70)]
    data, network = examples(patients=whose), UNet(1, 1, 4, "batch", levels=2)
    found, sizes = seen_together(network, "scan", data)
    assert sizes == [10] * 7
    with torch.no_grad():
        for patient in range(7):
            mine = torch.tensor(whose) == patient
            expected = network(network_input(data.images[mine]))
            assert (found[mine] - expected).abs().max() < 1e-4
    _, sizes = seen_together(network, "scan", examples())
    assert set(sizes) == {1}


def test_a_run_records_its_evaluation_batch_and_both_figures_where_they_differ(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    def tested(name: str, **changes: Any) -> dict[str, Any]:
        wanted = experiment.change(rounds=1, **changes)
        return train(wanted, cohort=cohort, out=tmp_path / name, device="cpu").summary["test"]["last"]

    found = tested("a", model__norm="batch")
    again = tested("b", model__norm="batch", evaluation__batch="hospital")
    assert (found["batch"], again["batch"]) == ("image", "hospital")
    assert (found["other"]["batch"], again["other"]["batch"]) == ("hospital", "image")
    assert found["mean"] == again["other"]["mean"]
    assert found["other"]["mean"] == again["mean"]
    plain = tested("c")
    assert (plain["batch"], plain["other"]) == ("any", None)


def test_an_own_network_that_mixes_images_is_noticed_in_a_run(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    found = train(
        experiment.change(rounds=1), cohort=cohort, model=Centred(), out=tmp_path / "run", device="cpu"
    )
    assert found.summary["test"]["last"]["batch"] == "image"
    assert found.summary["test"]["last"]["other"] is not None


def test_a_network_that_cannot_take_one_image_is_refused_before_anything_is_spent(
    experiment: Experiment, cohort: Cohort, tmp_path: Path
) -> None:
    """BatchNorm has nothing to compute where one image leaves one number a channel."""
    wanted = experiment.change(model__norm="batch", model__levels=4)
    assert cohort.hospitals[0].train.images.shape[-1] == 16
    with pytest.raises(
        InputError, match=r"evaluation\.batch = image: .* one image at a time .*model\.norm=group"
    ):
        train(wanted, cohort=cohort, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    train(
        wanted.change(evaluation__batch="hospital", rounds=1),
        cohort=cohort,
        out=tmp_path / "run",
        device="cpu",
    )

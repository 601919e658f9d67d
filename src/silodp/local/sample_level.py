"""Sample-level DP: DP-SGD at the hospitals (the paper's section 2.3 and appendix C), through Opacus.

Guarantee: a local step sees its batch only through the sum of its images' gradients, each of norm at most c,
with Gaussian noise of z·c. So every step that an image is in protects it with noise multiplier z. Sum and
noise lie on a lattice, as in the mechanism (`noise/lattice.py`).

Importing this module imports Opacus, so it is imported where it is used.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from opacus import GradSampleModule
from opacus.grad_sample.conv import compute_conv_grad_sample
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from silodp.errors import InputError
from silodp.local.clip import clip_factor
from silodp.local.parameters import FlatModel
from silodp.noise.lattice import sensitivity, spacing, to_lattice
from silodp.noise.streams import NoiseSource, derive_seed, generator, seeded_noise, system_noise
from silodp.settings import PrivacySettings

Fill = Callable[[Tensor, Tensor], Tensor]
"""`fill(images, targets)` leaves the batch's gradient in `FlatModel.gradients` and returns the mean loss."""


@dataclass(frozen=True)
class SampleLevel:
    """DP-SGD at a hospital.

    Attributes:
        noise_multiplier: z.
        clip_bound: c, the bound on one image's gradient.
        reproducible: draw noise from the seed rather than from the operating system.
    """

    noise_multiplier: float
    clip_bound: float
    reproducible: bool = True

    @contextmanager
    def gradients(
        self, model: FlatModel, image_losses: Callable[[Tensor, Tensor], Tensor], seed: int
    ) -> Iterator[Fill]:
        """Yields a function that computes private gradients; Opacus leaves nothing behind on the model.

        Everything is computed in single precision, also on a GPU: norms in bfloat16 would be wrong by up to
        0.4 %, and a gradient that ends above c is not protected.

        Args:
            model: whose gradients are filled.
            image_losses: (logits, targets) → (n,) losses, each of one image alone.
            seed: of one intermediary in one round; the noise follows from it where it is reproducible.
        """
        seed = derive_seed(seed, "gradient noise")
        wrapped = _ImageGradients(model.module, loss_reduction="sum")
        optimizer = _NoisyGradient(
            torch.optim.SGD([p for p in model.module.parameters() if p.requires_grad]),
            noise_multiplier=self.noise_multiplier,
            max_grad_norm=self.clip_bound,
            expected_batch_size=1,
        )
        steps = itertools.count()

        def attempt(images: Tensor, targets: Tensor) -> Tensor:
            """The (n,) losses; leaves each image's gradient in `grad_sample` of the parameters."""
            losses = image_losses(wrapped(images).float(), targets)
            _backward(losses.sum())
            return losses.detach()

        def works(image: Tensor, target: Tensor) -> bool:
            """Whether the network takes this image alone, (c, h, w) with its target."""
            try:
                with torch.no_grad():
                    image_losses(model.module(image[None]).float(), target[None])
            except Exception:
                return False
            return True

        def fill(images: Tensor, targets: Tensor) -> Tensor:
            """One step's noisy mean gradient, over all n images even where some do not count."""
            optimizer.zero_grad()
            optimizer.expected_batch_size = len(images)  # public: sizes are, and each epoch takes every image
            optimizer.noise = seeded_noise(seed, next(steps)) if self.reproducible else system_noise
            try:
                losses = attempt(images, targets)
            except Exception:
                # An image on which the network raises counts as zero and affects no other.
                _forget(model.module)
                optimizer.zero_grad()
                kept = [place for place in range(len(images)) if works(images[place], targets[place])]
                if not kept:
                    optimizer.noise_alone()
                    return torch.full((), math.nan, device=images.device)
                losses = attempt(images[kept], targets[kept])
            optimizer.pre_step()
            return losses.mean()

        try:
            yield fill
        finally:
            _clean(wrapped)


def _convolution_gradients(
    layer: nn.Conv2d, inputs: list[Tensor], output_gradients: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Per-image gradients of a convolution; Opacus 1.6 computes wrong ones for channels-last inputs."""
    plain = [image.clone(memory_format=torch.contiguous_format) for image in inputs]
    return compute_conv_grad_sample(layer, plain, output_gradients)  # type: ignore[no-any-return]


class _ImageGradients(GradSampleModule):  # type: ignore[misc]
    """Opacus' wrapper, whose hooks leave gradients image by image, with convolutions as above."""

    GRAD_SAMPLERS = GradSampleModule.GRAD_SAMPLERS | {nn.Conv2d: _convolution_gradients}


class _NoisyGradient(DPOptimizer):  # type: ignore[misc]
    """Opacus' optimizer with norms in double precision and silodp's noise; it takes no step.

    Opacus adds the squares of a layer's gradient in single precision. For the 4.7 million weights of the
    paper's largest layer that gives a norm 0.01 % too small, and clipped gradients above the bound.
    """

    noise: NoiseSource

    def clip_and_accumulate(self) -> None:
        """Leaves Σ_i g_i·min(1, c/‖g_i‖) in `summed_grad`, with the norm over all parameters together."""
        norms = torch.stack(
            [torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64) for g in self.grad_samples]
        ).norm(dim=0)
        # An image whose gradient is NaN or infinite counts as nothing, and takes no other with it.
        factors = torch.where(torch.isfinite(norms), clip_factor(norms, self.max_grad_norm), 0.0)
        for parameter, gradients in zip(self.params, self.grad_samples, strict=True):
            kept = gradients.nan_to_num(0.0, 0.0, 0.0)
            parameter.summed_grad = torch.einsum("i,i...", factors.to(kept.dtype), kept)

    def noise_alone(self) -> None:
        """The step of a batch of which no image counts."""
        for parameter in self.params:
            parameter.summed_grad = torch.zeros_like(parameter)
        self.add_noise()
        for parameter in self.params:
            parameter.grad /= self.expected_batch_size

    def add_noise(self) -> None:
        """Writes the noisy sum into `grad`, which is a view of the flat gradients.

        The sensitivity counts single-precision rounding in a sum of as many images as the batch has.
        """
        total = torch.cat([parameter.summed_grad.flatten() for parameter in self.params])
        if self.noise_multiplier:
            unit = spacing(self.max_grad_norm, len(total))
            points = to_lattice(total, unit)
            std = self.noise_multiplier * sensitivity(self.max_grad_norm, self.expected_batch_size)
            added = self.noise(points, "gradient", len(points)).mul_(std / unit).round_()
            total = points.add_(added).mul_(unit).to(total.dtype)
        parts = torch.split(total, [parameter.numel() for parameter in self.params])
        for parameter, part in zip(self.params, parts, strict=True):
            parameter.grad.copy_(part.view(parameter.shape))


def sample_level(settings: PrivacySettings, model: FlatModel, image_shape: torch.Size) -> SampleLevel:
    """Sample-level DP for a run, after a look at the model: one that mixes images is refused.

    Args:
        settings: z, c and where the noise comes from.
        model: layers that work in place are told not to, for Opacus has to see their input.
        image_shape: (channels, height, width).
    """
    for name, layer in model.module.named_modules():
        _refuse_layer(name, layer)
        if getattr(layer, "inplace", False):
            layer.inplace = False
    model.module.train()
    device = model.values.device
    images = torch.randn((3, *image_shape), generator=generator(device, 0, "trial"), device=device)
    images[2].mul_(10).add_(5)  # so much unlike the second that the first would show it
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        first, again = (_trial_output(model.module, images[[0, other]]) for other in (1, 2))
        if first is not None and again is not None:
            _refuse_mixing(model.module, first, again)
            _refuse_unseen(model, images[:2])
    return SampleLevel(settings.noise_multiplier, settings.gradient_bound, settings.reproducible)


def _refuse_layer(name: str, layer: nn.Module) -> None:
    """By Opacus' list, also for layers without parameters, which `ModuleValidator.validate` passes over."""
    validate = ModuleValidator.VALIDATORS.get(type(layer))
    if validate is None or not validate(layer):
        return
    kind = type(layer).__name__
    if "BatchNorm" in kind:
        raise InputError(
            f"model: layer {name!r} is {kind}, which mixes the images of a batch, and privacy.level = sample "
            "protects single images; use silodp.with_norm(model, 'group')"
        )
    raise InputError(
        f"model: layer {name!r} is {kind}, for which Opacus has no gradients image by image; "
        "replace it (opacus.validators.ModuleValidator.fix(model)) or set privacy.level=client"
    )


def _trial_output(module: nn.Module, images: Tensor) -> Tensor | None:
    """The first image's output; None where the model does not fit: whoever checks that says it better."""
    torch.manual_seed(0)  # the same dropout each time
    try:
        with torch.no_grad():
            return module(images)[0]  # type: ignore[no-any-return]
    except (RuntimeError, ValueError):
        return None


def _refuse_mixing(module: nn.Module, first: Tensor, again: Tensor) -> None:
    """Whatever the layers are called: beside another image, an image must come out as it did."""
    if float((first - again).abs().max()) > 1e-4 * float(first.abs().max()):
        raise InputError(
            f"model: {type(module).__name__} mixes the images of a batch, and privacy.level = sample "
            "protects single images; use layers that treat each image by itself, such as "
            "silodp.with_norm(model, 'group'), or set privacy.level=client"
        )


def _refuse_unseen(model: FlatModel, images: Tensor) -> None:
    """Gradients image by image must add up to the batch's: Opacus sees a weight only in its own layer."""
    wrapped = _ImageGradients(model.module, loss_reduction="sum")
    try:
        model.gradients.zero_()
        output = wrapped(images)
        _backward((output * torch.randn_like(output)).sum())
        small = 1e-4 * float(model.gradients.norm())
        for name, parameter in model.module.named_parameters():
            if not parameter.requires_grad:
                continue
            whole, single = parameter.grad, getattr(parameter, "grad_sample", None)
            assert whole is not None, "a view of the flat gradients"
            if single is None or (single.sum(0) - whole).norm() > small + 0.01 * whole.norm():
                raise InputError(
                    f"model: Opacus cannot tell the gradient of {name!r} image by image (privacy.level = "
                    "sample); use it in its own layer's forward only, or freeze it (requires_grad = False)"
                )
    finally:
        _clean(wrapped)
        model.gradients.zero_()


def _clean(wrapped: _ImageGradients) -> None:
    """Leaves nothing of Opacus on the model, also after a step that failed."""
    _forget(wrapped.to_standard_module())


def _forget(module: nn.Module) -> None:
    """Removes what a step that ended early leaves on layers and parameters, where the next would find it."""
    for part in (*module.modules(), *module.parameters()):
        for left in ("activations", "max_batch_len", "summed_grad"):
            part.__dict__.pop(left, None)


def _backward(loss: Tensor) -> None:
    """`loss.backward()` without a warning that means nothing here."""
    with warnings.catch_warnings():
        # Images need no gradient, and PyTorch warns of Opacus' hooks on a first layer whose input has none.
        warnings.filterwarnings("ignore", "Full backward hook", UserWarning)
        loss.backward()  # type: ignore[no-untyped-call]

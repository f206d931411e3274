"""The contract of a backbone: images in; feature maps, and the vector they are pooled to, out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, final

import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.core.trust import class_path
from labelgap.models.info import IMAGENET_INPUT, RANDOM_WEIGHTS, UNSTATED_WEIGHTS, InputSpec, WeightsInfo


class Backbone(nn.Module, ABC):
    """A network without its classification layer.

    A subclass defines ``feature_maps`` and, unless the average suits it, ``pool``, which turns maps into vectors. Where
    vectors are not pooled maps (a transformer's class token), it overrides ``features`` and ``maps_and_features``.

    Args:
        num_features: the dimension of the vectors, ``D``.
        input_spec: the images it takes.
        weights: where its weights come from.
        name: the name of the architecture; the class name by default.

    Attributes:
        reproducible: whether ``create_backbone(name)`` gives the same weights again. If not, a run stores them.
    """

    def __init__(
        self,
        *,
        num_features: int,
        input_spec: InputSpec,
        weights: WeightsInfo = RANDOM_WEIGHTS,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.name = name or type(self).__name__
        self.num_features = num_features
        self.input_spec = input_spec
        self.source = weights.source
        self.license = weights.license
        self.reproducible = weights not in (RANDOM_WEIGHTS, UNSTATED_WEIGHTS)
        self._mean: Tensor
        self._std: Tensor
        self.register_buffer("_mean", _per_channel(input_spec.mean), persistent=False)
        self.register_buffer("_std", _per_channel(input_spec.std), persistent=False)

    @abstractmethod
    def feature_maps(self, images: Tensor) -> Tensor:
        """Return the features of every position: normalized ``(B, C, H, W)`` → ``(B, D, h, w)``."""

    def no_maps_error(self) -> InputError:
        """Return the error of ``feature_maps`` of a network that gives vectors alone."""
        return InputError(
            f"{self.name} gives no feature maps, so it has no class activation maps: use its features (--head linear), "
            "or take another network."
        )

    def pool(self, feature_maps: Tensor) -> Tensor:
        """Return the average over all positions: ``(B, D, h, w)`` → ``(B, D)``."""
        return feature_maps.mean(dim=(-2, -1))

    def features(self, images: Tensor) -> Tensor:
        """Return one vector per image: normalized ``(B, C, H, W)`` → ``(B, D)``."""
        return self.pool(self.feature_maps(images))

    def maps_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``feature_maps(images)`` and ``features(images)`` from one forward pass."""
        feature_maps = self.feature_maps(images)
        return feature_maps, self.pool(feature_maps)

    def forward(self, images: Tensor) -> Tensor:
        """Return ``features(images)``."""
        return self.features(images)

    def normalize(self, images: Tensor) -> Tensor:
        r"""Scale and normalize bytes ``(B, C, H, W)`` on their device, so that only bytes are copied to it.

        .. math:: x = (b / 255 - \mathrm{mean}) / \mathrm{std}
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.input_spec.channels:
            raise InputError(
                f"normalize takes bytes of shape (batch, {self.input_spec.channels}, height, width), "
                f"not {str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}."
            )
        return self._scale_(images.to(self._mean.dtype))

    def normalize_(self, values: Tensor) -> Tensor:
        """Return what ``normalize`` makes of bytes that are given as floats; they may be overwritten."""
        if type(self).normalize is not Backbone.normalize:  # a network of the user may have its own
            return self.normalize(values.to(torch.uint8))
        return self._scale_(values.to(self._mean.dtype))

    def _scale_(self, values: Tensor) -> Tensor:
        return values.div_(255).sub_(self._mean).div_(self._std)


def count_parameters(module: nn.Module) -> int:
    """Count the parameters of a module, frozen ones included."""
    return sum(parameter.numel() for parameter in module.parameters())


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1)


FORWARD_ERRORS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
"""What a network may raise for images of a size or shape that it does not take."""

Output = TypeVar("Output")


@final
class ModuleBackbone(Backbone):
    """A module that gives vectors or feature maps.

    ``D`` is found by a forward pass of one blank image, in eval mode.

    Args:
        network: the module.
        input_spec: the images it takes. By default the module's attribute ``input_spec`` (an ``InputSpec``), else the
            input that a timm model states in ``pretrained_cfg``, else ``IMAGENET_INPUT``.
        weights: where its weights come from, for the model card.
        name: by default the import path of the module's class.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU())
        >>> backbone = ModuleBackbone(network, input_spec=InputSpec(32, (0.5,) * 3, (0.5,) * 3))
        >>> backbone.num_features, backbone.feature_maps(torch.zeros(2, 3, 32, 32)).shape
        (8, torch.Size([2, 8, 15, 15]))
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        input_spec: InputSpec | None = None,
        weights: WeightsInfo = UNSTATED_WEIGHTS,
        name: str | None = None,
    ) -> None:
        spec, name = input_spec or _stated_input(network), name or class_path(type(network))
        remedy = " If it takes other images, give it an attribute `input_spec` (labelgap.models.InputSpec)."
        output: Any = dry_forward(network, network, spec, name, remedy)
        if not isinstance(output, Tensor) or output.ndim not in (2, 4):
            found = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
            raise InputError(
                f"{name} cannot be a backbone: for one image its output has {found}, and a backbone returns "
                "(batch, features) or (batch, features, height, width)."
            )
        super().__init__(num_features=output.shape[1], input_spec=spec, weights=weights, name=name)
        self.network = network
        self.gives_maps = output.ndim == 4

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return the module's output, ``(B, D, h, w)``."""
        if not self.gives_maps:
            raise self.no_maps_error()
        output: Tensor = self.network(images)
        return output

    def features(self, images: Tensor) -> Tensor:
        """Return the module's output ``(B, D)``, averaged over all positions where it gives feature maps."""
        output: Tensor = self.network(images)
        return self.pool(output) if self.gives_maps else output


def _stated_input(network: nn.Module) -> InputSpec:
    stated, config = getattr(network, "input_spec", None), getattr(network, "pretrained_cfg", None)
    if isinstance(stated, InputSpec):
        return stated
    if isinstance(config, dict) and {"input_size", "mean", "std"} <= config.keys():
        return timm_input(config)
    return IMAGENET_INPUT


def timm_input(config: Mapping[str, Any], size: int | None = None) -> InputSpec:
    """Return the input of a network by its configuration in timm; ``size`` instead of the configured one."""
    channels, height, _ = config["input_size"]
    interpolation = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
    return InputSpec(size or height, tuple(config["mean"]), tuple(config["std"]), channels, interpolation)  # type: ignore[arg-type]


def dry_forward(
    forward: Callable[[Tensor], Output], network: nn.Module, spec: InputSpec, name: str, remedy: str = ""
) -> Output:
    """Return what a network makes of one blank image, in eval mode; its mode and its buffers are not changed."""
    training, reference = network.training, next(network.parameters(), torch.zeros(0))
    shape = (1, spec.channels, spec.size, spec.size)
    blank = torch.zeros(shape, dtype=reference.dtype, device=reference.device)
    network.eval()
    try:
        with torch.no_grad():
            return forward(blank)
    except FORWARD_ERRORS as error:
        raise InputError(
            f"{name} cannot be a backbone for images of {' × '.join(map(str, shape[1:]))}: {error}.{remedy}"
        ) from error
    finally:
        network.train(training)

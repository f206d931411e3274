"""Any ``nn.Module`` as a backbone.

The module takes normalized images ``(B, C, H, W)`` and returns vectors ``(B, D)`` or feature maps ``(B, D, h, w)``:
a network without its classification layer, e.g. ``timm.create_model("resnet18", num_classes=0)``, or a torchvision
model whose ``fc`` is ``nn.Identity()``. Class activation maps and the head "boostlu" need feature maps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, final

import torch
from torch import Tensor, nn

from labelgap.core.class_path import class_path
from labelgap.core.errors import InputError
from labelgap.models.backbone import UNSTATED_WEIGHTS, Backbone, InputSpec, WeightsInfo

IMAGENET_INPUT: Final = InputSpec(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""The input of a module that does not state its own."""
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
            raise InputError(
                f"{self.name} returns one vector per image and no feature maps, so it has no class activation maps: "
                "use the head 'linear', or a module that returns (batch, features, height, width)."
            )
        output: Tensor = self.network(images)
        return output

    def features(self, images: Tensor) -> Tensor:
        """Return the module's output ``(B, D)``, averaged over all positions where it gives feature maps."""
        output: Tensor = self.network(images)
        return self.pool(output) if self.gives_maps else output


def _stated_input(network: nn.Module) -> InputSpec:
    stated = getattr(network, "input_spec", None)
    if isinstance(stated, InputSpec):
        return stated
    config = getattr(network, "pretrained_cfg", None)
    if isinstance(config, dict) and {"input_size", "mean", "std"} <= config.keys():
        channels, size, _ = config["input_size"]
        interpolation = "bilinear" if config.get("interpolation") == "bilinear" else "bicubic"
        return InputSpec(size, tuple(config["mean"]), tuple(config["std"]), channels, interpolation)  # type: ignore[arg-type]
    return IMAGENET_INPUT


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

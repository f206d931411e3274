"""Any ``nn.Module`` as a backbone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError
from labelgap.models import Classifier, InputSpec, ModuleBackbone, class_activation_maps
from labelgap.models.backbone import IMAGENET_INPUT

SPEC = InputSpec(size=8, mean=(0.5,) * 3, std=(0.5,) * 3)


class Returns(nn.Module):
    """A network that returns what it is told to."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor) -> Any:
        return self.output


def test_feature_maps_are_averaged_to_the_features() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)).eval()
    backbone = ModuleBackbone(network, input_spec=SPEC)
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(backbone.features(images), network(images).mean(dim=(2, 3)))
    model = Classifier(backbone, classes=4)
    maps = class_activation_maps(model, images)
    torch.testing.assert_close(maps.mean(dim=(2, 3)) + model.head.bias, model(images))


def test_the_dry_forward_changes_no_running_average_and_no_mode() -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Dropout())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    ModuleBackbone(network, input_spec=SPEC)
    assert network.training and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_the_input_is_what_the_module_states() -> None:
    network = nn.Conv2d(3, 5, 3)
    assert ModuleBackbone(network).input_spec == IMAGENET_INPUT
    config = {"input_size": (3, 32, 32), "mean": (0.1,) * 3, "std": (0.2,) * 3, "interpolation": "bicubic"}
    network.pretrained_cfg = config  # type: ignore[assignment]
    assert ModuleBackbone(network).input_spec == InputSpec(32, (0.1,) * 3, (0.2,) * 3, 3, "bicubic")
    network.input_spec = SPEC  # type: ignore[assignment]
    assert ModuleBackbone(network).input_spec == SPEC


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Returns(torch.zeros(1, 4, 7)), r"output has shape \(1, 4, 7\)"),
        (Returns([1]), "output has type list"),
        (nn.Linear(7, 2), "Linear cannot be a backbone for images of 3 × 8 × 8: mat1 and mat2"),
    ],
)
def test_a_module_that_gives_neither_vectors_nor_maps_is_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ModuleBackbone(network, input_spec=SPEC)

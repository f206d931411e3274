"""A backbone and a head: the network that every image protocol trains."""

from __future__ import annotations

from typing import Any, Literal, final, overload

import torch
from torch import Tensor, nn

from labelgap.models.backbone import Backbone
from labelgap.models.heads import create_head

__all__ = ["Classifier", "backbone_parameters", "class_activation_maps", "head_parameters", "parameter_groups"]


@final
class Classifier(nn.Module):
    """One logit per class for every picture.

    .. math:: x = W\\,\\mathrm{features}(\\mathrm{images}) + b

    with the linear head; see ``BoostLU`` for the other. A head starts as ``nn.Linear`` does, uniform on
    :math:`\\pm 1/\\sqrt D`, drawn from torch's generator: the same seed gives the same head.

    Args:
        backbone: where the features come from.
        classes: how many logits, ``K``.
        head: "linear" or "boostlu".

    Example:
        >>> import torch
        >>> from labelgap.models import create_backbone
        >>> model = Classifier(create_backbone("small-cnn"), classes=10)
        >>> pictures = torch.zeros(2, 1, 64, 64, dtype=torch.uint8)
        >>> model(model.normalize(pictures)).shape
        torch.Size([2, 10])
    """

    def __init__(self, backbone: Backbone, classes: int, head: str = "linear") -> None:
        super().__init__()
        self.backbone = backbone
        self.head = create_head(head, backbone.num_features, classes)

    @overload
    def forward(self, images: Tensor, *, return_features: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, images: Tensor, *, return_features: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, images: Tensor, *, return_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits ``(B, K)`` of normalised pictures ``(B, C, H, W)``.

        With ``return_features`` the pooled vectors ``(B, D)`` come along: both out of one pass through ``forward``,
        which is the only door that data parallelism watches.
        """
        if not self.head.needs_feature_maps:
            taken = features = self.backbone.features(images)
        elif return_features:
            taken, features = self.backbone.maps_and_features(images)
        else:
            taken = features = self.backbone.feature_maps(images)
        logits = self._exactly(taken)
        return (logits, features) if return_features else logits

    def _exactly(self, taken: Tensor) -> Tensor:
        """Let the head compute in its own precision, also where the backbone does not: rounded logits tie ranks."""
        device = taken.device.type
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            logits: Tensor = self.head(taken)
            return logits
        with torch.autocast(device, enabled=False):
            logits = self.head(taken.to(self.head.weight.dtype))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """Return pooled vectors ``(B, D)``."""
        return self.backbone.features(images)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return spatial features ``(B, D, h, w)``."""
        return self.backbone.feature_maps(images)

    def normalize(self, images: Tensor) -> Tensor:
        """Turn bytes ``(B, C, H, W)`` into what ``forward`` takes, on their device."""
        return self.backbone.normalize(images)


def class_activation_maps(model: Classifier, images: Tensor) -> Tensor:
    r"""Return where in the pictures each class is seen: class activation maps, without the bias.

    .. math:: m_{kij} = \sum_d W_{kd} f_{dij}

    and for BoostLU five times that where it is positive. Their average over all places and the bias make the logit,
    unless the backbone pools otherwise than by the average: a transformer's logit is made of another token, and its
    map shows what the head would say of each place alone.

    Args:
        model: the network, in whatever mode it is.
        images: normalised pictures, ``(B, C, H, W)``.

    Returns:
        ``(B, K, h, w)``, at the resolution of the backbone's maps.

    Example:
        >>> import torch
        >>> from labelgap.models import create_backbone
        >>> model = Classifier(create_backbone("small-cnn"), classes=10, head="boostlu")
        >>> class_activation_maps(model, torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 10, 8, 8])
    """
    return model.head.activations(model.backbone.feature_maps(images))


def backbone_parameters(model: Classifier) -> list[nn.Parameter]:
    """Return the backbone's parameters that learn."""
    return [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]


def head_parameters(model: Classifier) -> list[nn.Parameter]:
    """Return the head's parameters that learn."""
    return [parameter for parameter in model.head.parameters() if parameter.requires_grad]


def parameter_groups(model: Classifier, lr: float, *, head_factor: float = 1.0) -> list[dict[str, Any]]:
    """Return groups for an optimiser: the backbone at ``lr``, the head at ``lr`` × ``head_factor``.

    Frozen parameters are left out, and a group of which nothing is left is not there.

    Args:
        model: the network.
        lr: the learning rate of the backbone.
        head_factor: how much faster the head learns; 10 in Kim et al. (CVPR 2022), 1 in Cole et al. (CVPR 2021).

    Example:
        >>> from labelgap.models import create_backbone
        >>> groups = parameter_groups(Classifier(create_backbone("small-cnn"), classes=3), 1e-3, head_factor=10)
        >>> [(group["name"], group["lr"]) for group in groups]
        [('backbone', 0.001), ('head', 0.01)]
    """
    groups: list[dict[str, Any]] = [
        {"name": "backbone", "params": backbone_parameters(model), "lr": lr},
        {"name": "head", "params": head_parameters(model), "lr": lr * head_factor},
    ]
    return [group for group in groups if group["params"]]

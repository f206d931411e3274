"""Heads, from features to one logit per class; the classifier of a backbone and a head; class activation maps.

``linear`` is a linear layer on the pooled features. ``attention`` (Zhu & Wu, "Residual Attention", ICCV 2021) scores
every position and adds a share of the highest score of a class to the mean over all positions. ``boostlu`` (Kim et al.,
"Bridging the Gap between Model Explanations in Partially Annotated Multi-label Classification", CVPR 2023) amplifies
the positive scores of positions before averaging: a network trained with missing positives highlights the right
positions, only too weakly. ``zero-shot`` is a linear layer whose training starts from the
zero-shot scores of the class names (``training.loop.linear_trainer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Literal, final, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.models.backbone import Backbone

BOOST_FACTOR: Final = 5.0

HeadName = Literal["linear", "attention", "boostlu", "zero-shot"]


class Head(nn.Module, ABC):
    """A row of weights and a bias per class. Abstract.

    They are initialized like ``nn.Linear``, uniform on :math:`\\pm 1/\\sqrt D`, drawn from torch's generator.

    Args:
        width: features in, ``D``.
        classes: logits out, ``K``.

    Attributes:
        needs_feature_maps: whether ``forward`` takes feature maps ``(B, D, h, w)`` or pooled features.
        weight: ``(K, D)``
        bias: ``(K,)``
    """

    needs_feature_maps: ClassVar[bool]

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        if classes < 1:
            raise InputError(f"a classifier needs at least one class, not {classes}.")
        layer = nn.Linear(width, classes)
        self.weight, self.bias = layer.weight, layer.bias

    @abstractmethod
    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)``."""

    def activations(self, feature_maps: Tensor) -> Tensor:
        """Return the class activation maps ``(B, K, h, w)`` of feature maps ``(B, D, h, w)``, without the bias."""
        return functional.conv2d(feature_maps, self.weight[:, :, None, None])


@final
class LinearHead(Head):
    r"""The papers' head, :math:`x = W f + b` of pooled features."""

    needs_feature_maps = False

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of pooled features ``(B, D)``."""
        return functional.linear(features, self.weight, self.bias)


@final
class AttentionHead(Head):
    r"""The mean of a class's scores over all positions, and a share of its highest score.

    .. math:: x_k = (1 - \lambda) \frac1{hw} \sum_{ij} m_{kij} + \lambda \max_{ij} m_{kij} + b_k,
        \qquad m_{kij} = \sum_d W_{kd} f_{dij}

    With a temperature T the maximum is a mean that is weighted by :math:`\mathrm{softmax}_{ij}(T\, m_{kij})`. Where the
    backbone pools by the average, λ = 0 is the linear head, whose weights training may start from.

    Args:
        width: features in, ``D``.
        classes: logits out, ``K``.
        attention_weight: λ, from 0 to 1; 0.1 costs little, 0.2 and more is worse (docs/results/recipe.md).
        attention_temperature: T; None for the maximum.

    Example:
        >>> import torch
        >>> head = AttentionHead(width=1, classes=1, attention_weight=0.5)
        >>> _ = head.load_state_dict({"weight": torch.tensor([[1.0]]), "bias": torch.tensor([0.0])})
        >>> head(torch.tensor([[[[1.0, -3.0]]]])).item()
        0.0
    """

    needs_feature_maps = True

    def __init__(
        self,
        width: int,
        classes: int,
        *,
        attention_weight: float = 0.05,
        attention_temperature: float | None = None,
    ) -> None:
        super().__init__(width, classes)
        self.attention_weight, self.temperature = attention_weight, attention_temperature

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of maps ``(B, D, h, w)``."""
        if self.training and features.is_cpu:  # of small maps, forward and backward in half the time
            scores = torch.bmm(self.weight.expand(len(features), -1, -1), features.flatten(2))
            if self.temperature is None:
                return (scores * self._shares(scores.detach())).sum(dim=2) + self.bias
        else:
            scores = self.activations(features).flatten(2)
        if self.temperature is None:
            highest = scores.amax(dim=2)
        else:
            highest = (scores * (self.temperature * scores).softmax(dim=2)).sum(dim=2)
        return torch.lerp(scores.mean(dim=2), highest, self.attention_weight) + self.bias

    def _shares(self, scores: Tensor) -> Tensor:
        """Return the share of every position in a logit, ``(B, K, h·w)``; equal maxima have equal shares.

        They are constants to the gradient, which takes one product instead of those of the mean and of the maximum.
        """
        highest = (scores == scores.amax(dim=2, keepdim=True)).to(scores.dtype)
        share = self.attention_weight / highest.sum(dim=2, keepdim=True)
        return (highest * share).add_((1 - self.attention_weight) / scores.shape[2])


@final
class BoostLU(Head):
    r"""The average of a class activation map whose positive values count five times.

    .. math:: x_k = \frac1{hw} \sum_{ij} \max(m_{kij},\, 5\,m_{kij}) + b_k, \qquad m_{kij} = \sum_d W_{kd} f_{dij}

    The average replaces the pooling of the backbone. The bias is not amplified: it depends on how common a class is,
    not on where it is.

    Example:
        >>> import torch
        >>> head = BoostLU(width=1, classes=1)
        >>> _ = head.load_state_dict({"weight": torch.tensor([[1.0]]), "bias": torch.tensor([0.0])})
        >>> head(torch.tensor([[[[1.0, -3.0]]]])).item()
        1.0
    """

    needs_feature_maps = True

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of maps ``(B, D, h, w)``."""
        return self.activations(features).mean(dim=(-2, -1)) + self.bias

    def activations(self, feature_maps: Tensor) -> Tensor:
        """Return the amplified maps; their average plus the bias is the logit."""
        plain = super().activations(feature_maps)
        return plain + (BOOST_FACTOR - 1) * functional.relu(plain)


_HEADS: Final[dict[str, type[Head]]] = {
    "linear": LinearHead,
    "attention": AttentionHead,
    "boostlu": BoostLU,
    "zero-shot": LinearHead,
}


def create_head(name: str, width: int, classes: int, **options: Any) -> Head:
    """Make the head "linear", "attention", "boostlu" or "zero-shot", which is linear; options are of its class."""
    if name not in _HEADS:
        raise UnknownNameError("head", name, _HEADS)
    return _HEADS[name](width, classes, **options)


@final
class Classifier(nn.Module):
    """One logit per class for every image.

    .. math:: x = W\\,\\mathrm{features}(\\mathrm{images}) + b

    with the linear head; see ``AttentionHead`` and ``BoostLU`` for the others.

    Args:
        backbone: gives the features.
        classes: how many logits, ``K``.
        head: "linear", "attention", "boostlu" or "zero-shot".
        average_flips: in eval mode, whether logits are the mean of those of an image and of its mirror image.
        average_sizes: in eval mode, the sides to which an image is resized; logits are the mean over all of them.
        **head_options: further arguments of the head.

    Example:
        >>> import torch
        >>> from labelgap.models import create_backbone
        >>> model = Classifier(create_backbone("small-cnn"), classes=10)
        >>> images = torch.zeros(2, 1, 64, 64, dtype=torch.uint8)
        >>> model(model.normalize(images)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        head: str = "linear",
        *,
        average_flips: bool = False,
        average_sizes: Sequence[int] = (),
        **head_options: Any,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.average_flips, self.average_sizes = average_flips, tuple(average_sizes)
        self.head = create_head(head, backbone.num_features, classes, **head_options)

    @property
    def reads_features(self) -> bool:
        """Whether the logits of an image are the head's of one vector: with averaged flips, the mean of two."""
        return not self.head.needs_feature_maps and not self.average_sizes

    @property
    def evaluation_cost(self) -> float:
        """The time that scoring an image takes, as a multiple of one forward pass at its own size."""
        own = self.backbone.input_spec.size
        sizes = sum((size / own) ** 2 for size in self.average_sizes) if self.average_sizes else 1.0
        return sizes * (2 if self.average_flips else 1)

    @overload
    def forward(self, images: Tensor, *, return_features: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, images: Tensor, *, return_features: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, images: Tensor, *, return_features: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits ``(B, K)`` of normalized images ``(B, C, H, W)``.

        With ``return_features``, also the pooled vectors ``(B, D)``: both from one call of ``forward``, the only method
        that ``DistributedDataParallel`` synchronizes.
        """
        read = self.backbone.feature_maps if self.head.needs_feature_maps else self.backbone.features
        views = iter([images] if self.training else self._views(images))
        first = next(views)
        if self.head.needs_feature_maps and return_features:
            inputs, features = self.backbone.maps_and_features(first)
        else:
            inputs = features = read(first)
        parts = [self._head_in_own_precision(inputs), *(self._head_in_own_precision(read(view)) for view in views)]
        logits = sum(parts[1:], parts[0]) / len(parts)
        return (logits, features) if return_features else logits

    def _views(self, images: Tensor) -> Iterator[Tensor]:
        """Yield what an image is scored as in eval mode, one in memory at a time: at every size, and mirrored."""
        own = images.shape[-1]
        for size in self.average_sizes or (own,):
            to: dict[str, Any] = {"size": (size, size), "mode": "bilinear", "antialias": size < own}
            yield (view := images if size == own else functional.interpolate(images, **to))
            if self.average_flips:
                yield view.flip(-1)

    def _head_in_own_precision(self, inputs: Tensor) -> Tensor:
        """Apply the head outside autocast: logits rounded to bfloat16 would tie ranks."""
        device = inputs.device.type
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            logits: Tensor = self.head(inputs)
            return logits
        with torch.autocast(device, enabled=False):
            logits = self.head(inputs.to(self.head.weight.dtype))
        return logits

    def normalize(self, images: Tensor) -> Tensor:
        """Turn bytes ``(B, C, H, W)`` into what ``forward`` takes, on their device."""
        return self.backbone.normalize(images)


def class_activation_maps(model: Classifier, images: Tensor) -> Tensor:
    r"""Return the contribution ``(B, K, h, w)`` of every position to every logit, without the bias.

    .. math:: m_{kij} = \sum_d W_{kd} f_{dij}

    and five times that where it is positive, for BoostLU. Where the backbone pools by the average, the average over all
    positions plus the bias is the logit; the head "attention" adds a share of the maximum. A transformer that pools
    otherwise has maps of what the head would give for each position alone. Where logits are averaged over an image and
    its mirror image, the maps are too; they are always those of the image's own size.

    Example:
        >>> import torch
        >>> from labelgap.models import create_backbone
        >>> model = Classifier(create_backbone("small-cnn"), classes=10, head="boostlu")
        >>> class_activation_maps(model, torch.zeros(2, 1, 64, 64)).shape
        torch.Size([2, 10, 8, 8])
    """
    maps: Tensor = model.head.activations(model.backbone.feature_maps(images))
    if not model.average_flips:
        return maps
    mirrored: Tensor = model.head.activations(model.backbone.feature_maps(images.flip(-1)))
    return (maps + mirrored.flip(-1)) / 2

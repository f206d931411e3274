"""Heads: from features to one logit per class.

``linear`` is a linear layer on the pooled features. ``boostlu`` (Kim et al., "Bridging the Gap between Model
Explanations in Partially Annotated Multi-label Classification", CVPR 2023) applies it at every position, which gives a
class activation map, and amplifies the positive values before averaging: a network trained with missing positives
highlights the right positions, only too weakly. ``zero-shot`` is a linear layer whose training starts from the
zero-shot scores of the class names (``training.loop.linear_trainer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Literal, final

from torch import Tensor, nn
from torch.nn import functional

from labelgap.core.errors import InputError, UnknownNameError

BOOST_FACTOR: Final = 5.0

HeadName = Literal["linear", "boostlu", "zero-shot"]


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

    def extra_repr(self) -> str:
        """Show the sizes."""
        classes, width = self.weight.shape
        return f"width={width}, classes={classes}"


@final
class LinearHead(Head):
    r"""The papers' head, :math:`x = W f + b` of pooled features.

    Example:
        >>> import torch
        >>> LinearHead(width=8, classes=3)(torch.zeros(2, 8)).shape
        torch.Size([2, 3])
    """

    needs_feature_maps = False

    def forward(self, features: Tensor) -> Tensor:
        """Return logits ``(B, K)`` of pooled features ``(B, D)``."""
        return functional.linear(features, self.weight, self.bias)


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


_HEADS: Final[dict[str, type[Head]]] = {"linear": LinearHead, "boostlu": BoostLU, "zero-shot": LinearHead}


def create_head(name: str, width: int, classes: int) -> Head:
    """Make the head "linear", "boostlu" or "zero-shot", which is linear.

    Example:
        >>> create_head("boostlu", width=8, classes=3)
        BoostLU(width=8, classes=3)
    """
    if name not in _HEADS:
        raise UnknownNameError("head", name, _HEADS)
    return _HEADS[name](width, classes)

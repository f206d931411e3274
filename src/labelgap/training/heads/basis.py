r"""The coordinates in which heads are trained: standardized features, and their principal components.

A head on :math:`z = V^\top (f - \mu) / \sigma` is a head on the features :math:`f` themselves:

.. math:: W z + b = W' f + b', \qquad W' = (W V^\top) / \sigma, \qquad b' = b - W' \mu

so nothing but the training depends on these coordinates. A checkpoint, a model card and an exported model hold
:math:`W'` and :math:`b'`. The statistics use no labels: heads of several folds may share those of all images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.losses.base.terms import widest_float

_RANK_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class FeatureBasis:
    """A linear change of coordinates of features.

    Attributes:
        mean: ``(D,)``
        scale: ``(D,)``, the standard deviation; 1 where it is 0.
        components: ``(D, R)`` orthonormal columns; None where the coordinates are the standardized features.
        variances: ``(R,)``, the mean square of each coordinate.
    """

    mean: Tensor
    scale: Tensor
    components: Tensor | None
    variances: Tensor

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        features: Tensor,
        *,
        standardize: bool = True,
        center: bool = False,
        rotate: bool = False,
        rank_tolerance: float = _RANK_TOLERANCE,
    ) -> FeatureBasis:
        """Return the coordinates of features ``(N, D)``.

        Args:
            features: of the images; in float64 where they are, else in float32.
            standardize: whether to subtract the mean and to divide by the standard deviation.
            center: whether to subtract the mean only.
            rotate: whether to use the principal components.
            rank_tolerance: components with a smaller share of the largest variance are left out.

        Example:
            >>> basis = FeatureBasis.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
            >>> basis.apply(torch.tensor([[3.0, 6.0]]))
            tensor([[1., 1.]])
        """
        if features.ndim != 2 or not len(features):
            raise InputError(f"features have shape {tuple(features.shape)}: a row for every image is needed.")
        values = features.detach()
        values = values if values.dtype == torch.float64 else values.to(torch.float32)
        mean, scale = values.new_zeros(values.shape[1]), values.new_ones(values.shape[1])
        if standardize:
            mean, deviation = values.mean(dim=0), values.std(dim=0, correction=0)
            constant = deviation <= 1e-6 * mean.abs()
            scale = torch.where(constant, torch.ones_like(deviation), deviation)
        elif center:
            mean = values.mean(dim=0)
        standardized = (values - mean) / scale
        if not rotate:
            return cls(mean, scale, None, standardized.square().mean(dim=0))
        components, variances = _principal_components(standardized, rank_tolerance)
        return cls(mean, scale, components, variances)

    def apply(self, features: Tensor) -> Tensor:
        """Return the coordinates ``(N, R)`` of features ``(N, D)``, on the device and in the type of the features."""
        coordinates = (features - self.mean.to(features)) / self.scale.to(features)
        return coordinates if self.components is None else coordinates @ self.components.to(features)

    def to_features(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights ``(…, K, D)`` and biases ``(…, K)`` on features of heads ``(…, K, R)`` on coordinates."""
        weight = weight if self.components is None else weight @ self.components.to(weight).t()
        weight = weight / self.scale.to(weight)
        return weight, bias - weight @ self.mean.to(weight)

    def from_features(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return heads on coordinates for heads on features; what no component can express is left out."""
        bias = bias + weight @ self.mean.to(weight)
        weight = weight * self.scale.to(weight)
        return (weight if self.components is None else weight @ self.components.to(weight)), bias

    def curvatures(self, classes: int, weight: Tensor) -> list[Tensor]:
        """Return a bound of the second derivatives of a mean loss in the weights and biases of a head.

        Args:
            classes: of the head.
            weight: what gives the device and the type.
        """
        variances = self.variances.to(weight) / (4 * classes)
        return [variances.repeat(classes), variances.new_full((classes,), 1 / (4 * classes))]


def _principal_components(values: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return orthonormal directions ``(D, R)`` and the mean squares ``(R,)`` of values ``(N, D)`` along them."""
    images, width = values.shape
    wide = values.to(widest_float(values.device))
    gram = wide @ wide.t() if images < width else wide.t() @ wide
    squares, vectors = torch.linalg.eigh(gram)
    kept = squares > tolerance * squares[-1].clamp(min=torch.finfo(squares.dtype).tiny)
    squares, vectors = squares[kept].flip(0), vectors[:, kept].flip(1)
    if images < width:
        vectors = wide.t() @ (vectors / squares.sqrt())
    return vectors.to(values.dtype).contiguous(), (squares / images).to(values.dtype)

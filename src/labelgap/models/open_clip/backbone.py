r"""The image tower of a model of open_clip as a backbone.

The features are the image's embedding :math:`e` in the space that images and texts share, scaled to a mean square of 1
per dimension, so that learning rates suit it as they suit other features:

.. math:: f = \sqrt D\; e / \lVert e \rVert

Reference: Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021; Ilharco
et al., OpenCLIP, 2021.
"""

from __future__ import annotations

import math
from typing import Any, cast, final

from torch import Tensor
from torch.nn.functional import normalize

from labelgap.core.errors import InputError
from labelgap.models.backbone import Backbone
from labelgap.models.module_backbone import dry_forward
from labelgap.models.open_clip.library import Clip


@final
class OpenClipBackbone(Backbone):
    """The image tower of a model that ``load_clip`` built, with the model's own input."""

    def __init__(self, clip: Clip) -> None:
        name, tower = clip.name.backbone, clip.network.visual
        embedding = dry_forward(lambda images: _embed(tower, images), tower, clip.input_spec, name)
        spec, width = clip.input_spec, embedding.shape[-1]
        super().__init__(num_features=width, input_spec=spec, weights=clip.weights, name=name)
        self.model = tower
        self.reproducible = self.reproducible and clip.weights == clip.name.weights

    def feature_maps(self, images: Tensor) -> Tensor:
        """Raise ``InputError``: the embedding is of the whole image."""
        raise InputError(
            f"{self.name} gives one embedding per image and no feature maps, so it has no class activation maps: use "
            "the head 'linear', or take another network."
        )

    def features(self, images: Tensor) -> Tensor:
        """Return the scaled embeddings ``(B, D)`` of normalized images."""
        unit: Tensor = normalize(_embed(self.model, images), dim=-1)
        return unit * math.sqrt(self.num_features)


def _embed(tower: Any, images: Tensor) -> Tensor:
    output = tower(images)
    return cast(Tensor, output[0] if isinstance(output, tuple) else output)

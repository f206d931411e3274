r"""Zero-shot classification: the text tower of a model of open_clip makes a linear head out of class names.

The embedding :math:`t_k` of class k is the normalized mean over prompt templates of normalized text embeddings. The
zero-shot logit of an image is the model's own score of image and text, with its learned scale and bias:

.. math:: x_k = s \cos(e, t_k) + b = w_k^\top f + b, \qquad w_k = \frac{s}{\sqrt D}\, t_k

where :math:`f` are the features of ``OpenClipBackbone``: a linear head that no label trained.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from labelgap.core.errors import InputError
from labelgap.models.module_backbone import FORWARD_ERRORS
from labelgap.models.open_clip.backbone import OpenClipBackbone
from labelgap.models.open_clip.library import OPEN_CLIP_PREFIX, Clip, import_open_clip, load_clip
from labelgap.models.weight_files import NO_WEIGHTS, read_weight_file

TEMPLATES: Final = ("{}", "a photo of a {}.", "a photo of the {}.", "a photo that shows a {}.")
"""The prompts of a class; their embeddings are averaged."""
_BLOCK_SIZE: Final = 1 << 20
"""Largest number of logits, or of feature values, that are computed at once."""


@dataclass(frozen=True, eq=False)
class ZeroShotClassifier:
    """A backbone, and a linear head on its features whose weights are texts.

    Attributes:
        backbone: the image tower.
        weight: ``(K, D)``
        bias: ``(K,)``
    """

    backbone: OpenClipBackbone
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]


def prompts_of(class_name: str, templates: Sequence[str] = TEMPLATES) -> list[str]:
    """Return the prompts of a class: underscores, hyphens and several spaces in its name become one space.

    Example:
        >>> prompts_of("traffic_light", ["{}", "a photo of a {}."])
        ['traffic light', 'a photo of a traffic light.']
    """
    words = " ".join(class_name.replace("_", " ").replace("-", " ").split())
    return [template.replace("{}", words) for template in templates]


def zero_shot_classifier(
    name: str,
    classes: Sequence[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    templates: Sequence[str] = TEMPLATES,
) -> ZeroShotClassifier:
    """Build a zero-shot classifier of some classes.

    Args:
        name: ``open_clip:MODEL/TAG``.
        classes: their names, in words that a caption would use.
        weights: a file of weights of the whole model, instead of those of the tag.
        templates: of the prompts; ``{}`` stands for the name of the class.
    """
    if not name.startswith(OPEN_CLIP_PREFIX):
        raise InputError(
            f"{name} has no text tower that labelgap can use: name a model of open_clip, as in "
            f"{OPEN_CLIP_PREFIX}ViT-B-32/laion2b_s34b_b79k."
        )
    random = InputError(f"{name} has random weights, which know no class names: give a file of its weights.")
    if weights == NO_WEIGHTS:
        raise random
    file = None if weights is None else read_weight_file(weights)
    clip = load_clip(name, file=file, text=True)
    if file is None and not clip.name.tag:
        raise random
    backbone = OpenClipBackbone(clip)
    texts = _text_embeddings(clip, classes, templates)
    scale, bias = clip.network.logit_scale.detach().exp(), getattr(clip.network, "logit_bias", None)
    weight = (scale / backbone.num_features**0.5 * texts).numpy().astype(np.float32)
    return ZeroShotClassifier(backbone, weight, np.full(len(classes), 0.0 if bias is None else bias.item(), np.float32))


def standardize_head(
    features: Sequence[NDArray[Any]], weight: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    r"""Return the head whose logits are those of another, standardized over some images.

    .. math:: w'_k = w_k / \sigma_k, \qquad b'_k = -w_k^\top \bar f / \sigma_k

    with the mean features :math:`\bar f`: the bias of the head cancels. A class of constant logits gets zeros.

    Args:
        features: ``(N, D)`` of each split.
        weight: ``(K, D)``
    """
    count = sum(map(len, features))
    step = max(1, _BLOCK_SIZE // max(weight.shape))
    blocks = [part[start : start + step] for part in features for start in range(0, len(part), step)]
    wide = weight.astype(np.float64)
    center = sum((block.sum(axis=0, dtype=np.float64) for block in blocks), np.zeros(weight.shape[1])) / max(count, 1)
    squares = sum(((((block - center) @ wide.T) ** 2).sum(axis=0) for block in blocks), np.zeros(len(weight)))
    deviation = np.sqrt(squares / max(count, 1))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 1e-9)
    return (wide * scale[:, None]).astype(np.float32), (-(wide @ center) * scale).astype(np.float32)


def _text_embeddings(clip: Clip, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
    """Return the normalized embedding of each class, ``(K, D)``."""
    network: Any = clip.network.eval()
    try:
        tokenize = import_open_clip().get_tokenizer(clip.name.model)
        embeddings = []
        with torch.inference_mode():
            for class_name in classes:
                encoded = network.encode_text(tokenize(prompts_of(class_name, templates)), normalize=True)
                embeddings.append(normalize(encoded.mean(dim=0), dim=-1))
        return torch.stack(embeddings).clone()
    except (*FORWARD_ERRORS, ImportError, OSError) as error:
        raise InputError(f"the class names cannot be encoded by {clip.name.backbone}: {error}") from error

"""Class activation maps: where in an image a class is predicted (Zhou et al., CVPR 2016)."""

from __future__ import annotations

from torch import Tensor

from labelgap.models.classifier import Classifier


def class_activation_maps(model: Classifier, images: Tensor) -> Tensor:
    r"""Return the contribution of every position to every logit, without the bias.

    .. math:: m_{kij} = \sum_d W_{kd} f_{dij}

    and five times that where it is positive, for BoostLU. Where the backbone pools by the average, the average over all
    positions plus the bias is the logit. A transformer that pools otherwise has maps of what the head would give for
    each position alone. Where logits are averaged over an image and its mirror image, the maps are too.

    Args:
        model: in whatever mode it is.
        images: normalized, ``(B, C, H, W)``.

    Returns:
        ``(B, K, h, w)``, at the resolution of the backbone's feature maps.

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

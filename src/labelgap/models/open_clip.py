r"""Models of open_clip. open_clip is imported only when one of its models is requested.

A model has two towers that map images and texts to one space. ``load_clip`` builds both. ``OpenClipBackbone`` keeps the
first: its features are the image's embedding :math:`e`, scaled to a mean square of 1 per dimension, so that learning
rates suit it as they suit other features, :math:`f = \sqrt D\; e / \lVert e \rVert`.

``zero_shot_classifier`` makes a linear head out of class names by the second. The embedding :math:`t_k` of class k is
the normalized mean over prompt templates of normalized text embeddings. The zero-shot logit of an image is the model's
own score of image and text, with its learned scale and bias:

.. math:: x_k = s \cos(e, t_k) + b = w_k^\top f + b, \qquad w_k = \frac{s}{\sqrt D}\, t_k

Reference: Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021; Ilharco
et al., OpenCLIP, 2021.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any, Final, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import normalize

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.models.backbone import FORWARD_ERRORS, Backbone, dry_forward
from labelgap.models.info import NO_WEIGHTS, OPEN_CLIP_PREFIX, RANDOM_WEIGHTS, InputSpec, WeightsInfo
from labelgap.models.timm import import_timm
from labelgap.models.weight_files import (
    WeightFile,
    check_finite,
    describe_mismatch,
    load_tensors,
    match_tensors,
    pretrained_file,
    read_weight_file,
)

TEMPLATES: Final = ("{}", "a photo of a {}.", "a photo of the {}.", "a photo that shows a {}.")
"""The prompts of a class; their embeddings are averaged."""
_BLOCK_SIZE: Final = 1 << 20  # largest number of logits, or of feature values, that are computed at once

_HUB_FILES: Final = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_UNSTATED_LICENSE: Final = "not stated by open_clip: see where the weights are"


@dataclass(frozen=True)
class ClipName:
    """A model of open_clip and the tag of its weights; ``tags`` are those that it has."""

    model: str
    tag: str
    tags: tuple[str, ...]

    @property
    def backbone(self) -> str:
        """The name as a backbone: ``open_clip:MODEL/TAG``."""
        return f"{OPEN_CLIP_PREFIX}{self.model}" + (f"/{self.tag}" if self.tag else "")

    @property
    def configuration(self) -> dict[str, Any]:
        """What open_clip states about the weights of the tag; empty without a tag."""
        stated: dict[str, Any] = import_open_clip().get_pretrained_cfg(self.model, self.tag) if self.tag else {}
        return stated

    @property
    def weights(self) -> WeightsInfo:
        """Where the weights of the tag come from; random ones without a tag."""
        if not self.tag:
            return RANDOM_WEIGHTS
        repository = self.configuration.get("hf_hub")
        place = f"{PurePosixPath(repository + '_').parent} on the Hugging Face hub" if repository else None
        return WeightsInfo(place or str(self.configuration["url"]), _UNSTATED_LICENSE)


@dataclass(frozen=True, eq=False)
class Clip:
    """A model of open_clip, the images it takes, and where its weights come from."""

    name: ClipName
    network: Any
    input_spec: InputSpec
    weights: WeightsInfo


def import_open_clip() -> Any:
    """Import open_clip; the error says what is missing."""
    if importlib.util.find_spec("open_clip") is None:
        raise InputError("this model is made by open_clip, which is not installed: pip install 'labelgap[clip]'.")
    import_timm()  # also where torchvision, which both need, cannot load its operators
    try:
        return importlib.import_module("open_clip")
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"open_clip cannot be imported ({reason}): pip install --upgrade 'labelgap[clip]'.") from error


def parse_name(name: str) -> ClipName:
    """Return the model and tag that ``open_clip:MODEL`` or ``open_clip:MODEL/TAG`` names."""
    open_clip = import_open_clip()
    model, slash, tag = name.removeprefix(OPEN_CLIP_PREFIX).partition("/")
    models = open_clip.list_models()
    if model not in models:
        known = [f"{OPEN_CLIP_PREFIX}{known}" for known in models]
        raise UnknownNameError("backbone", f"{OPEN_CLIP_PREFIX}{model}", known, f"open_clip has {len(known)} models.")
    tags = tuple(open_clip.list_pretrained_tags_by_model(model))
    if slash and tag not in tags:
        known = [f"{OPEN_CLIP_PREFIX}{model}/{known}" for known in tags]
        raise UnknownNameError("backbone", f"{OPEN_CLIP_PREFIX}{model}/{tag}", known or [f"{OPEN_CLIP_PREFIX}{model}"])
    return ClipName(model, tag, tags)


def load_clip(
    name: str, *, pretrained: bool = True, file: WeightFile | None = None, size: int | None = None, text: bool = False
) -> Clip:
    """Build a model ``open_clip:MODEL/TAG`` with the weights of the tag if ``pretrained``, or of a file.

    A file is of the whole model or, without ``text``, of its image tower alone.
    """
    parsed = parse_name(name)
    if file is None and pretrained and not parsed.tag and parsed.tags:
        raise InputError(
            f"which weights of {parsed.backbone}? Name them, {parsed.backbone}/TAG, with one of the tags "
            f"{', '.join(parsed.tags)}; or give a file, or none for random ones (--weights)."
        )
    weights = file.weights if file else parsed.weights if pretrained else RANDOM_WEIGHTS
    downloaded = file is None and weights != RANDOM_WEIGHTS
    path = _pretrained_file(parsed) if downloaded else None
    with torch.random.fork_rng(devices=[], enabled=weights != RANDOM_WEIGHTS):  # replaced weights draw nothing
        network = _create(parsed, size)
    if path is not None:
        _load_checkpoint(network, path, parsed.backbone)
    elif file is not None:
        _load_file(network, file, parsed.backbone, text)
    return Clip(parsed, network, _input_spec(network, parsed.backbone), weights)


def _create(name: ClipName, size: int | None) -> Any:
    stated = name.configuration
    options: dict[str, Any] = {"force_quick_gelu": True} if stated.get("quick_gelu") else {}
    if size is not None:
        options["force_image_size"] = size
    options["device"] = torch.get_default_device()
    preprocessing = {key: stated[key] for key in ("mean", "std", "interpolation") if key in stated}
    try:
        with _quiet_logging():
            return import_open_clip().create_model(
                name.model, load_weights=False, pretrained_text=False, force_preprocess_cfg=preprocessing, **options
            )
    except (*FORWARD_ERRORS, ImportError, OSError) as error:
        where = "" if size is None else f" for images of {size} px"
        raise InputError(f"{name.backbone} cannot be built{where}: {error}") from error


def _input_spec(network: Any, name: str) -> InputSpec:
    stated: dict[str, Any] = import_open_clip().get_model_preprocess_cfg(network)
    size = stated["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if height != width:
        raise InputError(f"{name} takes images of {height} × {width}, and here they are square.")
    interpolation = "bilinear" if stated["interpolation"] == "bilinear" else "bicubic"
    return InputSpec(height, tuple(stated["mean"]), tuple(stated["std"]), interpolation=interpolation)  # type: ignore[arg-type]


def _pretrained_file(name: ClipName) -> Path:
    stated = name.configuration
    repository, _, file = str(stated.get("hf_hub", "")).rpartition("/")
    files = (str(PurePosixPath(file).with_suffix(".safetensors")), file) if file else _HUB_FILES
    place = SimpleNamespace(hf_hub_id=repository, hf_hub_filename=files, url=stated.get("url"))
    return pretrained_file(place, name.backbone)


def _load_file(network: Any, file: WeightFile, name: str, text: bool) -> None:
    """Load a user's file: into the image tower where that is enough and it fits, else into the whole model."""
    tensors = match_tensors(file.tensors, network.visual)
    fits = not describe_mismatch(tensors, network.visual)
    if fits and not text:
        load_tensors(network.visual, tensors, file, name)
    elif fits and len(file.tensors) == len(tensors):
        raise InputError(f"{file.path} holds the image tower of {name} alone, and class names need its text tower too.")
    else:
        _load_checkpoint(network, file.path, name)


def _load_checkpoint(network: Any, path: Path, name: str) -> None:
    """Load a file of a whole model, as open_clip does; no code in it is run."""
    try:
        with _quiet_logging():
            import_open_clip().load_checkpoint(network, str(path), strict=True, weights_only=True)
    except (*FORWARD_ERRORS, OSError, SafetensorError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{path} cannot be loaded as the weights of {name} ({' '.join(str(error).split())[:300]}). "
            "Are they the weights of another network?"
        ) from error
    check_finite(path, network.state_dict())


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Keep open_clip's log messages from the terminal, and from configuring the root logger."""
    root, handler, disabled = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(handler)
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.removeHandler(handler)


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
        raise self.no_maps_error()

    def features(self, images: Tensor) -> Tensor:
        """Return the scaled embeddings ``(B, D)`` of normalized images."""
        unit: Tensor = normalize(_embed(self.model, images), dim=-1)
        return unit * math.sqrt(self.num_features)


def _embed(tower: Any, images: Tensor) -> Tensor:
    output = tower(images)
    return cast(Tensor, output[0] if isinstance(output, tuple) else output)


@dataclass(frozen=True, eq=False)
class ZeroShotClassifier:
    """A backbone, and a linear head on its features whose weights ``(K, D)`` are texts."""

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
        templates: the prompts; ``{}`` stands for the name of the class.
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
    r"""Return the head whose logits are those of another ``(K, D)``, standardized over ``(N, D)`` features of splits.

    .. math:: w'_k = w_k / \sigma_k, \qquad b'_k = -w_k^\top \bar f / \sigma_k

    with the mean features :math:`\bar f`: the bias of the head cancels. A class of constant logits gets zeros.
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

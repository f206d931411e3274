"""Any network of timm as a backbone. timm is imported only when one of its models is requested.

A timm model has two stages: ``forward_features`` gives feature maps (of a convolutional network) or tokens (of a
transformer); ``forward_head`` pools them, by the average, a class token or attention, into the vector that the
classifier reads.

``features`` is that vector, exactly as timm computes it. ``feature_maps`` applies the same head to each position alone,
as if it were an image of one position, so maps are in the space of the features and every model has class activation
maps. Where the head is the plain average, they are the model's own maps, and their average is the features.

timm needs torchvision but none of its compiled operators; see ``core.torchvision``.

Reference: Wightman, PyTorch Image Models, 2019.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any, Final, cast, final

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.torchvision import declared_operators
from labelgap.models.backbone import FORWARD_ERRORS, Backbone, dry_forward, timm_input
from labelgap.models.info import RANDOM_WEIGHTS, TIMM_PREFIX, InputSpec, WeightsInfo
from labelgap.models.weight_files import (
    WeightFile,
    describe_mismatch,
    load_tensors,
    match_tensors,
    pretrained_file,
    read_weight_file,
)

_LICENSES: Final = {
    "apache-2.0": "Apache-2.0",
    "bsd-3-clause": "BSD-3-Clause",
    "cc-by-4.0": "CC-BY-4.0",
    "cc-by-nc-4.0": "CC-BY-NC-4.0, not for commercial use",
    "mit": "MIT",
}
_FILTERS: Final = (
    *("checkpoint_filter_fn", "checkpoint_filter_fn_classifier", "_filter_fn", "_filter_torchvision_pretrained"),
)
"""Functions of timm's modules that translate the tensor names of the authors' own code."""
_MIN_POSITIONS: Final = 4


def import_timm() -> Any:
    """Import timm; the error says what is missing."""
    if importlib.util.find_spec("timm") is None:
        raise InputError("this backbone is made by timm, which is not installed: pip install 'labelgap[timm]'.")
    try:
        with declared_operators():
            return importlib.import_module("timm")
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        if "torchvision" not in reason:
            raise InputError(f"timm cannot be imported ({reason}): pip install --upgrade 'labelgap[timm]'.") from error
        raise InputError(
            f"timm cannot be imported: the torchvision that is installed does not fit this torch ({reason}). "
            "Install both again from one index, so that their versions match and both are built for the CPU or for the "
            "same CUDA: pip uninstall torch torchvision, then pip install torch torchvision."
        ) from error


def pretrained_config(model: str) -> Any:
    """Return timm's configuration of a model, with a tag (``resnet50.tv_in1k``) or with the default one."""
    timm = import_timm()
    architecture, _, tag = model.partition(".")
    if renamed := timm.models.get_deprecated_models().get(architecture):
        return pretrained_config(renamed)
    if not timm.is_model(architecture):
        known = [f"{TIMM_PREFIX}{name}" for name in timm.list_models()]
        raise UnknownNameError("backbone", f"{TIMM_PREFIX}{model}", known, f"timm has {len(known):,} models.")
    tags = [name.partition(".")[2] for name in timm.list_models(f"{architecture}.*", include_tags=True)]
    if tag and tag not in tags:
        known = [f"{TIMM_PREFIX}{architecture}.{name}" for name in tags if name]
        raise UnknownNameError("backbone", f"{TIMM_PREFIX}{model}", known or [f"{TIMM_PREFIX}{architecture}"])
    return timm.get_pretrained_cfg(model)


def weights_info(configuration: Any) -> WeightsInfo:
    """Return the source of the weights of a configuration, and their license."""
    place = configuration.hf_hub_id or configuration.url
    if not place:
        return RANDOM_WEIGHTS
    license = (configuration.license or "").replace("unknown", "")
    source = f"{place} on the Hugging Face hub" if configuration.hf_hub_id else str(place)
    return WeightsInfo(source, _LICENSES.get(license, license) or "not stated by timm: see where the weights are")


@final
class TimmBackbone(Backbone):
    """A model of timm without its classifier, with the input of its configuration.

    Args:
        model: its name in timm, with or without the tag of its weights.
        pretrained: load the weights of that tag, if there are any; random ones otherwise.
        file: weights to load instead.
        size: the image size, if it is not the configuration's.
        name: the name that error messages use.
    """

    def __init__(
        self,
        model: str,
        *,
        pretrained: bool = True,
        file: WeightFile | None = None,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        name = name or f"{TIMM_PREFIX}{model}"
        config = pretrained_config(model)
        spec = _input_spec(config, size, name)
        weights = file.weights if file else weights_info(config) if pretrained else RANDOM_WEIGHTS
        with torch.random.fork_rng(devices=[], enabled=weights != RANDOM_WEIGHTS):  # replaced weights draw nothing
            download = file is None and weights != RANDOM_WEIGHTS
            network = _create(config, size, pretrained_file(config, name) if download else None, name)
        if file is not None:
            _load(network, file, name)
        positions, features = dry_forward(
            lambda images: (first := network.forward_features(images), network.forward_head(first, pre_logits=True)),
            *(network, spec, name),
        )
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise InputError(f"{name} cannot be a backbone: it does not give one vector per image.")
        canonical = f"{TIMM_PREFIX}{_canonical_name(config)}"
        super().__init__(num_features=features.shape[1], input_spec=spec, weights=weights, name=canonical)
        self.model = network
        self.reproducible = self.reproducible and file is None
        tokens = positions.shape[1] if isinstance(positions, Tensor) and positions.ndim == 3 else 0
        self._prefix_tokens = _prefix_tokens(network, tokens)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return the output of the model's head for each position, ``(B, D, h, w)``."""
        return self._head_per_position(self.model.forward_features(images), images)

    def features(self, images: Tensor) -> Tensor:
        """Return the input of the model's classifier, ``(B, D)``, pooled as the model does."""
        return self._head(self.model.forward_features(images))

    def maps_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return both from one forward pass."""
        positions = self.model.forward_features(images)
        return self._head_per_position(positions, images), self._head(positions)

    def _head(self, positions: Any) -> Tensor:
        return cast(Tensor, self.model.forward_head(positions, pre_logits=True))

    def _head_per_position(self, positions: Any, images: Tensor) -> Tensor:
        """Apply the head to every position as if it were an image, and arrange the results as a map."""
        if not isinstance(positions, Tensor) or positions.ndim not in (3, 4):
            raise self.no_maps_error()
        if positions.ndim == 4:
            channels_last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
            grid = positions if channels_last else positions.permute(0, 2, 3, 1)
            single = grid.reshape(-1, 1, 1, grid.shape[-1])
            single = single if channels_last else single.permute(0, 3, 1, 2)
        else:
            if self._prefix_tokens is None:
                raise self.no_maps_error()
            tokens = positions[:, self._prefix_tokens :]
            grid = tokens.reshape(-1, *self._grid_shape(tokens.shape[1], images), tokens.shape[-1])
            single = tokens.reshape(-1, 1, tokens.shape[-1]).expand(-1, self._prefix_tokens + 1, -1)
        return self._head(single).reshape(*grid.shape[:3], -1).permute(0, 3, 1, 2)

    def _grid_shape(self, count: int, images: Tensor) -> tuple[int, int]:
        """Return height and width of a grid of so many positions, in proportion to the images."""
        height = max(round((count * images.shape[-2] / images.shape[-1]) ** 0.5), 1)
        if count < 1 or count % height:
            raise self.no_maps_error()
        return height, count // height


def _input_spec(config: Any, size: int | None, name: str) -> InputSpec:
    _, height, width = config.input_size
    if size is None and height != width:
        raise InputError(f"{name} takes images of {height} × {width}, and here they are square: say of which size.")
    return timm_input(vars(config), size)


def _canonical_name(config: Any) -> str:
    return ".".join(filter(None, [config.architecture, config.tag]))


def _create(config: Any, size: int | None, file: Path | None, name: str) -> Any:
    options: dict[str, Any] = {"img_size": size} if size is not None and config.fixed_input_size else {}
    if file is not None:
        tensors = read_weight_file(file).tensors
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": tensors, "custom_load": False}}
    try:
        network = import_timm().create_model(_canonical_name(config), num_classes=0, **options)
        if file is not None:
            network.pretrained_cfg.pop("state_dict", None)
        return network
    except (*FORWARD_ERRORS, OSError, SafetensorError) as error:
        if file is not None:
            raise InputError(f"{file} cannot be loaded as the weights of {name}: {error}") from error
        where = "" if size is None else f" for images of {size} px"
        raise InputError(f"{name} cannot be built{where}: {error}") from error


def _load(network: nn.Module, file: WeightFile, name: str) -> None:
    """Load a file: as it is if it fits, else after timm's translation of the authors' names."""
    stated = cast(Any, network).pretrained_cfg.get("classifier") or ()
    classifiers = (stated,) if isinstance(stated, str) else tuple(stated)
    tensors = match_tensors(file.tensors, network, classifiers)
    if describe_mismatch(tensors, network):
        module = vars(sys.modules[type(network).__module__])
        translate = next((module[found] for found in _FILTERS if found in module), None)
        if translate is not None:
            translated = match_tensors(_translate(translate, tensors, network), network, classifiers)
            if not describe_mismatch(translated, network):
                tensors = translated
    load_tensors(network, tensors, file, name)


def _translate(translate: Any, tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    try:
        translated: dict[str, Tensor] = translate(dict(tensors), network)
    except TypeError:
        translated = translate(dict(tensors))
    except FORWARD_ERRORS:
        return tensors
    return translated


def _prefix_tokens(network: Any, tokens: int) -> int | None:
    """Return how many tokens precede those of the positions: as the model states, or else what leaves a square."""
    stated = getattr(network, "num_prefix_tokens", None)
    if stated is not None:
        return int(stated)
    counts = (tokens - extra for extra in range(3))
    return next(
        (tokens - count for count in counts if count >= _MIN_POSITIONS and math.isqrt(count) ** 2 == count), None
    )

"""Any network of timm as a backbone.

A timm model has two stages: ``forward_features`` gives feature maps (of a convolutional network) or tokens (of a
transformer); ``forward_head`` pools them, by the average, a class token or attention, into the vector that the
classifier reads.

``features`` is that vector, exactly as timm computes it. ``feature_maps`` applies the same head to each position alone,
as if it were an image of one position, so maps are in the space of the features and every model has class activation
maps. Where the head is the plain average, they are the model's own maps, and their average is the features.

Reference: Wightman, PyTorch Image Models, 2019.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Final, Literal, cast, final

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.func import functional_call

from labelgap.core.errors import InputError
from labelgap.models.backbone import RANDOM_WEIGHTS, Backbone, InputSpec
from labelgap.models.timm.library import TIMM_PREFIX, import_timm, pretrained_config, weights_info
from labelgap.models.timm.pretrained import pretrained_file
from labelgap.models.weight_files import WeightFile, describe_mismatch, load_tensors, match_tensors

__all__ = ["TimmBackbone"]

_FILTERS: Final = (
    "checkpoint_filter_fn",
    "checkpoint_filter_fn_classifier",
    "_filter_fn",
    "_filter_torchvision_pretrained",
)
"""What a module of timm calls its translation of the names in files that its authors' code wrote."""

_FAILURES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a model may raise that is given pictures of a size it was not made for."""

_FEWEST: Final = 4


@final
class TimmBackbone(Backbone):
    """A model of timm without its classifier; its input is what its configuration says.

    Args:
        model: as timm names it, with or without the tag of its weights.
        pretrained: load the weights of that tag, where there are any; random ones otherwise.
        file: weights to load instead.
        size: side of the pictures, where it is not the configuration's.
        name: what the user calls it, for messages.
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
        configuration = pretrained_config(model)
        spec = _input(configuration, size, name)
        weights = file.weights if file else weights_info(configuration) if pretrained else RANDOM_WEIGHTS
        with torch.random.fork_rng(devices=[], enabled=weights != RANDOM_WEIGHTS):  # what is overwritten draws nothing
            fetch = file is None and weights != RANDOM_WEIGHTS
            found = pretrained_file(configuration, name) if fetch else None
            network = _create(configuration, size, found, name)
        if file is not None:
            _load(network, file, name)
        full_name = f"{TIMM_PREFIX}{_canonical(configuration)}"
        width, tokens = _probed(network, spec, name)
        super().__init__(num_features=width, input_spec=spec, weights=weights, name=full_name)
        self.model = network
        self.reproducible = self.reproducible and file is None
        self._extra = _extra_tokens(network, tokens)

    def feature_maps(self, images: Tensor) -> Tensor:
        """Return what the model's head makes of each place, ``(B, D, h, w)``."""
        return self._each_place(self.model.forward_features(images), images)

    def features(self, images: Tensor) -> Tensor:
        """Return what the model's classifier would read, ``(B, D)``, pooled in the model's own way."""
        return self._pooled(self.model.forward_features(images))

    def maps_and_features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return both out of one pass."""
        seen = self.model.forward_features(images)
        return self._each_place(seen, images), self._pooled(seen)

    def _pooled(self, seen: Any) -> Tensor:
        return cast(Tensor, self.model.forward_head(seen, pre_logits=True))

    def _each_place(self, seen: Any, images: Tensor) -> Tensor:
        """Hand every place to the head as a picture of its own, and lay the answers out as a map."""
        if not isinstance(seen, Tensor) or seen.ndim not in (3, 4):
            raise self._without_maps()
        if seen.ndim == 4:
            last = getattr(self.model, "output_fmt", "NCHW") == "NHWC"
            places = seen if last else seen.permute(0, 2, 3, 1)
            alone = places.reshape(-1, 1, 1, places.shape[-1])
            alone = alone if last else alone.permute(0, 3, 1, 2)
        else:
            if self._extra is None:
                raise self._without_maps()
            tokens = seen[:, self._extra :]
            places = tokens.reshape(-1, *self._grid(tokens.shape[1], images), tokens.shape[-1])
            alone = tokens.reshape(-1, 1, tokens.shape[-1]).expand(-1, self._extra + 1, -1)
        return self._pooled(alone).reshape(*places.shape[:3], -1).permute(0, 3, 1, 2)

    def _grid(self, places: int, images: Tensor) -> tuple[int, int]:
        """Return the height and width of a grid with so many places, shaped like the pictures."""
        height = max(round((places * images.shape[-2] / images.shape[-1]) ** 0.5), 1)
        if places < 1 or places % height:
            raise self._without_maps()
        return height, places // height

    def _without_maps(self) -> InputError:
        return InputError(
            f"{self.name} does not keep what it sees at each place, so it has no activation maps: its features can be "
            "used (--head linear), or take another network."
        )


def _input(configuration: Any, size: int | None, name: str) -> InputSpec:
    """Return what pictures must look like, by the model's own configuration."""
    channels, height, width = configuration.input_size
    if size is None and height != width:
        raise InputError(f"{name} takes pictures of {height} × {width}, and here they are square: say of which size.")
    interpolation: Literal["bilinear", "bicubic"] = (
        "bilinear" if configuration.interpolation == "bilinear" else "bicubic"
    )
    return InputSpec(
        size=height if size is None else size,
        mean=tuple(configuration.mean),
        std=tuple(configuration.std),
        channels=channels,
        interpolation=interpolation,
    )


def _canonical(configuration: Any) -> str:
    return ".".join(filter(None, [configuration.architecture, configuration.tag]))


def _create(configuration: Any, size: int | None, found: Path | None, name: str) -> Any:
    """Let timm build the model without a classifier, and load a file of its own; a fixed input is told the size."""
    options: dict[str, Any] = {"img_size": size} if size is not None and configuration.fixed_input_size else {}
    if found is not None:
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(found), "custom_load": False}}
    try:
        return import_timm().create_model(_canonical(configuration), num_classes=0, **options)
    except (*_FAILURES, OSError, SafetensorError) as error:
        if found is not None:
            raise InputError(f"{found} cannot be loaded as the weights of {name}: {error}") from error
        where = "" if size is None else f" for pictures of {size} px"
        raise InputError(f"{name} cannot be built{where}: {error}") from error


def _load(network: nn.Module, file: WeightFile, name: str) -> None:
    """Load a file: as it is if it fits, else after what timm does to files that its authors' code wrote."""
    told = cast(Any, network).pretrained_cfg.get("classifier") or ()
    classifiers = (told,) if isinstance(told, str) else tuple(told)
    tensors = match_tensors(file.tensors, network, classifiers)
    if describe_mismatch(tensors, network):
        module = vars(sys.modules[type(network).__module__])
        translate = next((module[found] for found in _FILTERS if found in module), None)
        if translate is not None:
            translated = match_tensors(_translated(translate, tensors, network), network, classifiers)
            if not describe_mismatch(translated, network):
                tensors = translated
    load_tensors(network, tensors, file, name)


def _translated(translate: Any, tensors: dict[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    try:
        made: dict[str, Tensor] = translate(dict(tensors), network)
    except TypeError:
        made = translate(dict(tensors))
    except _FAILURES:
        return tensors
    return made


def _probed(network: nn.Module, spec: InputSpec, name: str) -> tuple[int, int]:
    """Return how many features there are, and how many tokens (0: they are no tokens).

    A picture without content is sent through a network without content, which costs next to nothing.
    """
    training = network.training
    probe = _Probe(network).eval()
    shape = (1, spec.channels, spec.size, spec.size)
    empty = {key: value.to("meta") for key, value in (*probe.named_parameters(), *probe.named_buffers())}
    try:
        with torch.no_grad():
            try:
                seen, features = functional_call(probe, empty, torch.zeros(shape, device="meta"))
            except _FAILURES:  # some look at values, so they need some
                seen, features = probe(torch.zeros(shape, device=next(network.parameters()).device))
    except _FAILURES as error:
        raise InputError(f"{name} cannot be a backbone for pictures of {spec.size} px: {error}") from error
    finally:
        network.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise InputError(f"{name} cannot be a backbone: it does not give one vector per picture.")
    return features.shape[1], seen.shape[1] if isinstance(seen, Tensor) and seen.ndim == 3 else 0


def _extra_tokens(network: Any, tokens: int) -> int | None:
    """Return how many tokens come before those of the places: as the model says, or else what leaves a square."""
    told = getattr(network, "num_prefix_tokens", None)
    if told is not None:
        return int(told)
    left = [
        extra for extra in range(3) if tokens - extra >= _FEWEST and math.isqrt(tokens - extra) ** 2 == tokens - extra
    ]
    return left[0] if left else None


@final
class _Probe(nn.Module):
    """From pictures to what is seen of them and to vectors, through ``forward``."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Any, Any]:
        network: Any = self.network
        seen = network.forward_features(images)
        return seen, network.forward_head(seen, pre_logits=True)

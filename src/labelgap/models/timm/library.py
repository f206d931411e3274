"""timm's models and their configurations. timm is imported only when one of its models is requested.

timm needs torchvision but none of its compiled operators. The torchvision of PyPI is linked to CUDA; beside a CPU-only
torch (on ARM there is no other) its operators cannot be loaded. torchvision survives that, except that it describes two
of them, ``nms`` and ``qnms``, to the compiler without asking whether they exist. ``import_timm`` declares those that
are missing, without a body, just before that.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.models.backbone import RANDOM_WEIGHTS, WeightsInfo

TIMM_PREFIX: Final = "timm:"
RECOMMENDED_MODELS: Final = {
    "vit_small_patch14_reg4_dinov2.lvd142m": "DINOv2, trained without labels; faster with --size 224",
    "vit_base_patch16_siglip_256.v2_webli": "SigLIP 2, trained on images with their captions",
    "convnext_tiny.fb_in22k": "ConvNeXt, trained on ImageNet-22k",
}
"""Models for users who can download weights: trained on more than ImageNet-1k. labelgap has not measured them."""

_LICENSES: Final = {
    "apache-2.0": "Apache-2.0",
    "bsd-3-clause": "BSD-3-Clause",
    "cc-by-4.0": "CC-BY-4.0",
    "cc-by-nc-4.0": "CC-BY-NC-4.0, not for commercial use",
    "mit": "MIT",
}
_OPERATORS: Final = ("nms", "qnms")
_SCHEMA: Final = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_REGISTRATION: Final = re.compile(r"^@register_model\b", re.MULTILINE)


def import_timm() -> Any:
    """Import timm; the error says what is missing."""
    if importlib.util.find_spec("timm") is None:
        raise InputError("this backbone is made by timm, which is not installed: pip install 'labelgap[timm]'.")
    try:
        with _declare_operators():
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


class _BeforeRegistration:
    """An import hook that finds no module; it declares the operators that torchvision could not load."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            import torch

            for operator in _OPERATORS:
                if not hasattr(torch.ops.torchvision, operator):
                    torch.library.define(f"torchvision::{operator}", _SCHEMA)


@contextmanager
def _declare_operators() -> Iterator[None]:
    """Let torchvision be imported within this context, also where its compiled operators cannot be loaded."""
    hook: Any = _BeforeRegistration()
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)


def count_timm_models() -> int | None:
    """Return how many models timm has, None if it is not installed; counted in its files, without importing it."""
    spec = importlib.util.find_spec("timm")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [file for folder in folders for file in (Path(folder) / "models").glob("*.py")]
    return sum(len(_REGISTRATION.findall(file.read_text(encoding="utf-8"))) for file in files) or None


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

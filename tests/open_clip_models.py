"""A small model of open_clip for the tests, with random weights."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from labelgap.models.open_clip import import_open_clip

TINY: Final = "open_clip:tiny-for-tests"
SIZE: Final = 32
WIDTH: Final = 16


def open_clip_or_skip() -> Any:
    """Return open_clip, which then has a tiny model; skip the test, or the module, where it is not installed."""
    if importlib.util.find_spec("open_clip") is None:
        pytest.skip("open_clip is not installed: pip install 'labelgap[clip]'", allow_module_level=True)
    _add_model()
    return import_open_clip()


@cache
def _add_model() -> None:
    vision = {"image_size": SIZE, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{TINY.partition(':')[2]}.json"
        path.write_text(json.dumps({"embed_dim": WIDTH, "vision_cfg": vision, "text_cfg": text}), encoding="utf-8")
        import_open_clip().add_model_config(path)


def save_weights(path: Path, *, seed: int = 0) -> Any:
    """Write random weights of the tiny model, and return the model as open_clip makes it."""
    open_clip = import_open_clip()
    torch.manual_seed(seed)
    model = open_clip.create_model(TINY.partition(":")[2])
    with torch.no_grad():  # in the first layers most parameters start at 0 and 1, where much that is wrong looks right
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    torch.save(model.state_dict(), path)
    return model.eval()

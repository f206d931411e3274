"""Export of a run as a repository of the Hugging Face hub: what other people run, a card, and the run itself.

A network of timm with a linear head becomes files for ``transformers``; any other would need code of ours there, which
nobody should trust, and becomes an ONNX file. The folder ``labelgap`` holds what
``labelgap.open_run("hf://owner/name")`` needs. No image, label or folder of the data is in it.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from labelgap.core.errors import InputError
from labelgap.core.files import make_folder, write_json, write_text
from labelgap.core.manifest import write_manifest
from labelgap.core.tensors import write_tensors
from labelgap.core.terminal import unescaped_output
from labelgap.inference.export import (
    PREPROCESS,
    SCRIPT_NAME,
    TOLERANCE,
    ExportGraph,
    describe_images,
    export_onnx,
)
from labelgap.models import Classifier
from labelgap.models.efficientnet_lite import EfficientNetLite
from labelgap.models.heads import LinearHead
from labelgap.models.info import TIMM_PREFIX
from labelgap.models.timm import TimmBackbone, import_timm
from labelgap.training.config import write_config
from labelgap.training.history import METRICS_FILE, write_history
from labelgap.training.hub import RUN_FILES, RUN_FOLDER, hub_library
from labelgap.training.rerun import without_directories
from labelgap.training.run import Run
from labelgap.training.run_files import BEST

CARD: Final = "README.md"
_CONFIG, _WEIGHTS, _PROCESSOR = "config.json", "model.safetensors", "preprocessor_config.json"
_ONNX: Final = "model.onnx"
_RESAMPLE: Final = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers of the filters

_PIPELINE_USE: Final = """
## In transformers

```python
from transformers import pipeline

classify = pipeline("image-classification", "FOLDER", top_k=None)
thresholds = classify.model.config.thresholds
present = [found["label"] for found in classify("photo.jpg") if found["score"] >= thresholds[found["label"]]]
```

Needs `transformers`, `timm` and `torchvision`. The scores are those of labelgap, except of large JPEG files, which
labelgap decodes at a smaller size, of transparent images and of 16 bits.
"""
_ONNX_USE: Final = """
## With onnxruntime

transformers has no class for this network: REASON. `model.onnx` needs onnxruntime and Pillow:
`python predict_onnx.py photo.jpg`, or

```python
import json, onnxruntime, predict_onnx

spec = predict_onnx.SPEC = json.load(open("preprocess.json", encoding="utf-8"))
network = onnxruntime.InferenceSession("model.onnx")
logits, scores = network.run(None, {spec["input"]: predict_onnx.inputs("photo.jpg")})
for known, score in zip(spec["classes"], scores[0]):
    print(known["name"], score, score >= known["threshold"])
```
"""


@dataclass(frozen=True)
class HubFolder:
    """A repository of the hub as a folder; ``reason`` is why ``transformers`` cannot open it, None where it can."""

    path: Path
    files: tuple[str, ...]
    reason: str | None


def export_huggingface(run: Run, folder: str | os.PathLike[str], *, card: str = "", force: bool = False) -> HubFolder:
    """Write a run as a repository of the hub, with its model ``card``; other files of the folder stay."""
    _ = run.thresholds  # raises where the run is not finished
    path = Path(folder)
    if path.exists() and not (path.is_dir() and (force or not any(path.iterdir()))):
        raise InputError(f"{path} exists already: replace its files with --force, or choose another folder.")
    if (path / METRICS_FILE).exists():
        raise InputError(f"{path} is the folder of a run, whose config.json would be replaced: choose another.")
    converted = _as_timm(run.model)
    reason = converted if isinstance(converted, str) else None
    make_folder(path)
    if isinstance(converted, str):
        export_onnx(run, path / _ONNX, force=True)
    else:
        _write_transformers(run, *converted, path)
    both = (_ONNX, PREPROCESS, SCRIPT_NAME), (_CONFIG, _WEIGHTS, _PROCESSOR)
    files, others = both if reason else both[::-1]
    for name in others:
        (path / name).unlink(missing_ok=True)
    _write_run(run, path / RUN_FOLDER)
    write_text(path / CARD, _card(card or f"# {run.path.resolve().name}\n", reason))
    return HubFolder(path, (*files, CARD, f"{RUN_FOLDER}/"), reason)


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a folder as the repository ``owner/name``, which is made where there is none; return its address."""
    hub = hub_library()
    try:
        with unescaped_output():
            address = str(hub.create_repo(name, exist_ok=True))
            hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload from labelgap")
    except Exception as error:  # of the HTTP library underneath, or of its checks
        raise InputError(
            f"{name} cannot be uploaded ({type(error).__name__}: {error}). Logged in? `hf auth login`."
        ) from error
    return address


def _as_timm(model: Classifier) -> tuple[str, dict[str, Any], nn.Module] | str:
    """Return timm's network that gives the logits of a run, with its name and options; else why there is none."""
    model, spec = deepcopy(model).cpu(), model.backbone.input_spec
    backbone, options = model.backbone, dict[str, Any]()
    if not isinstance(model.head, LinearHead):
        return f"its head {type(model.head).__name__} is not a linear layer on pooled features"
    if model.average_flips or model.average_sizes:
        return "it averages several views of an image"
    if isinstance(backbone, TimmBackbone):
        architecture, stated = backbone.name.removeprefix(TIMM_PREFIX), backbone.model.pretrained_cfg
        if stated.get("fixed_input_size") and spec.size != stated["input_size"][-1]:
            options["img_size"] = spec.size
    elif isinstance(backbone, EfficientNetLite):
        architecture = f"tf_{backbone.name.replace('-', '_')}"
    else:
        return f"it does not know {backbone.name}"
    network = import_timm().create_model(architecture, num_classes=len(model.head.bias), **options).eval()
    classifier = network.get_classifier()
    if not isinstance(classifier, nn.Linear | nn.Conv2d) or classifier.bias is None:
        return f"timm's {architecture} has no linear classifier"
    own = {id(parameter) for parameter in classifier.parameters()}
    names = [name for name, value in network.state_dict(keep_vars=True).items() if id(value) not in own]
    source = backbone.model if isinstance(backbone, TimmBackbone) else backbone
    network.load_state_dict(dict(zip(names, source.state_dict().values(), strict=True)), strict=False)
    images = torch.randn(2, spec.channels, spec.size, spec.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        classifier.weight.copy_(model.head.weight.view_as(classifier.weight))
        classifier.bias.copy_(model.head.bias)
        expected = model.eval()(images)
        difference = (network(images) - expected).abs().max() / expected.abs().max().clamp(min=1)
    if not difference <= TOLERANCE:
        return f"timm's {architecture} computes its features otherwise"
    return architecture, options, network


def _write_transformers(run: Run, architecture: str, options: dict[str, Any], network: nn.Module, folder: Path) -> None:
    classes, spec = run.config.classes, run.model.backbone.input_spec
    images = describe_images(run, ExportGraph(run.model))
    config = {
        "architectures": ["TimmWrapperForImageClassification"],
        "model_type": "timm_wrapper",
        "architecture": architecture,
        "model_args": options,
        "problem_type": "multi_label_classification",
        "num_classes": len(classes),
        "label_names": list(classes),
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
        "thresholds": dict(zip(classes, run.thresholds.values.tolist(), strict=True)),
        "dtype": "float32",
    }
    size, short = images["size"], images["resize"]
    processor = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": size, "width": size} if short is None else {"shortest_edge": short},
        "resample": _RESAMPLE[images["interpolation"]],
        "do_center_crop": short is not None,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(spec.mean),
        "image_std": list(spec.std),
    }
    write_json(folder / _CONFIG, config)
    write_json(folder / _PROCESSOR, processor)
    write_tensors(folder / _WEIGHTS, network.state_dict(), {"format": "pt"})


def _write_run(run: Run, folder: Path) -> None:
    """Write what predicts: the whole network, so that nothing else is downloaded for it. Paths lose their folders."""
    make_folder(folder)
    write_config(folder, without_directories(run.config))
    write_history(folder, run.history, run.metrics)
    write_tensors(folder / BEST, run.model.state_dict(), {"epoch": str(run.metrics["best_epoch"])})
    write_manifest(folder, RUN_FILES)


def _card(card: str, reason: str | None) -> str:
    """Return the card with the library that opens the files, and a section on them before the others."""
    text, library = _PIPELINE_USE, "transformers"
    if reason is not None:
        text, library = _ONNX_USE.replace("REASON", reason), "onnx"
    card = card.replace("library_name: labelgap", f"library_name: {library}", 1).replace("; `config.json` has them", "")
    before, use, after = card.partition("\n## Use\n")
    return f"{before.rstrip()}\n{text}{use}{after}"

"""A run for other programs: one ONNX file, what must be done to an image first, and a script that does it.

The file takes bytes and normalises them itself, so that all there is to do is to decode and to resize. Names of the
classes, thresholds and their marks are in its metadata. Where onnxruntime is installed, the file is compared with
PyTorch before it is written.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import write_bytes, write_json, write_text
from labelgap.data.images import ArrayImages
from labelgap.data.transforms import CenterCrop, Resize
from labelgap.inference.export_script import SCRIPT
from labelgap.inference.predict.columns import UNSURE_WITHIN
from labelgap.models import Classifier
from labelgap.training.features.precomputed import IdentityBackbone
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.run import Run

__all__ = ["ExportedFiles", "export_onnx"]

TOLERANCE: Final = 1e-4
"""How far scores may be from PyTorch's, and logits relative to the largest of them where that is above 1."""

PREPROCESS: Final = "preprocess.json"
SCRIPT_NAME: Final = "predict_onnx.py"
_OPSET: Final = 18
_LARGEST: Final = 2**31 - 1


@dataclass(frozen=True)
class ExportedFiles:
    """What was written.

    Attributes:
        model: the ONNX file.
        preprocess: what must be done to an image, the classes, their thresholds.
        script: a program that needs neither labelgap nor PyTorch.
        difference: the largest difference between a score by onnxruntime and by PyTorch; None where it was not checked.
    """

    model: Path
    preprocess: Path
    script: Path
    difference: float | None


def export_onnx(run: Run, path: str | os.PathLike[str], *, force: bool = False) -> ExportedFiles:
    """Write a run's network as ONNX, and beside it ``preprocess.json`` and ``predict_onnx.py``.

    The network takes ``images``, uint8 ``(batch, C, size, size)``, or ``features``, float32 ``(batch, D)``, for any
    batch, and gives ``logits`` and ``scores`` ``(batch, K)``.

    Args:
        run: finished.
        path: the file, ending in .onnx; its folder must exist.
        force: replace files that are there.

    Raises:
        InputError: packages are missing, or files are there already.
        RunError: onnxruntime gives other scores than PyTorch. Nothing is written then.
    """
    _ = run.thresholds  # says so where the run is not finished
    model = Path(path)
    files = ExportedFiles(model, model.with_name(PREPROCESS), model.with_name(SCRIPT_NAME), None)
    _check_path(files, force)
    graph = _Graph(deepcopy(run.model).cpu()).eval()
    example = graph.example(2)
    content = _converted(graph, example, run)
    difference = _difference(graph, content)
    write_json(files.preprocess, {"format": 1, "model": model.name, **_preprocess(run, graph)})
    write_text(files.script, SCRIPT)
    write_bytes(model, content)
    return ExportedFiles(files.model, files.preprocess, files.script, difference)


class _Graph(nn.Module):
    """From bytes, or features, to logits and scores."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network
        self.spec = network.backbone.input_spec
        self.takes_features = isinstance(network.backbone, IdentityBackbone)
        self.picture_mean: Tensor
        self.picture_std: Tensor
        self.register_buffer("picture_mean", torch.tensor(self.spec.mean).view(1, -1, 1, 1))
        self.register_buffer("picture_std", torch.tensor(self.spec.std).view(1, -1, 1, 1))

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and scores."""
        if not self.takes_features:
            values = (values.to(torch.float32) / 255 - self.picture_mean) / self.picture_std
        logits = self.network(values)
        return logits, torch.sigmoid(logits)

    @property
    def takes(self) -> str:
        """The name of the input."""
        return "features" if self.takes_features else "images"

    def example(self, count: int, seed: int = 0) -> Tensor:
        """Return an input of random numbers."""
        random = torch.Generator().manual_seed(seed)
        if self.takes_features:
            return torch.randn(count, self.network.backbone.num_features, generator=random)
        shape = (count, self.spec.channels, self.spec.size, self.spec.size)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)


def _check_path(files: ExportedFiles, force: bool) -> None:
    if files.model.suffix.lower() != ".onnx":
        raise InputError(f"{files.model}: the name of the file ends in .onnx.")
    if not files.model.absolute().parent.is_dir():
        raise InputError(f"{files.model} cannot be written: the folder {files.model.absolute().parent} does not exist.")
    there = [file for file in (files.model, files.preprocess, files.script) if file.exists()]
    if there and not force:
        raise InputError(f"{there[0]} is there already: --force replaces it, or choose another folder.")
    lacking = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if lacking:
        raise InputError(f"to export, the package {lacking[0]} is needed: pip install 'labelgap[onnx]'.")


def _converted(graph: _Graph, example: Tensor, run: Run) -> bytes:
    """Return the ONNX file: any batch, our metadata, and nothing of the machine that made it."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of torch's own insides
        program = torch.onnx.export(
            graph,
            (example,),
            input_names=[graph.takes],
            output_names=["logits", "scores"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    _strip(proto.graph)
    for function in proto.functions:
        _strip(function)
    metadata = {**_facts(run), "preprocess": _preprocess(run, graph)}
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=json.dumps(value, ensure_ascii=False))
    if proto.ByteSize() > _LARGEST:
        raise RunError("this network is larger than 2 GB, which one ONNX file cannot hold.")
    content: bytes = proto.SerializeToString()
    return content


def _strip(part: Any) -> None:
    """Remove what the exporter noted for its own debugging: names of source files, traces of calls."""
    del part.metadata_props[:]
    part.doc_string = ""
    for group in (
        part.node,
        part.value_info,
        *(getattr(part, name, ()) for name in ("input", "output", "initializer")),
    ):
        for item in group:
            if hasattr(item, "metadata_props"):
                del item.metadata_props[:]
                item.doc_string = ""


def _facts(run: Run) -> dict[str, Any]:
    """Return what the file says of the classes."""
    thresholds = run.thresholds
    return {
        "classes": list(run.config.classes),
        "thresholds": thresholds.values.tolist(),
        "marks": list(thresholds.marks),
        "method": run.config.method,
        "backbone": run.config.backbone,
    }


def _preprocess(run: Run, graph: _Graph) -> dict[str, Any]:
    """Return what must be done before the network, and what its output means."""
    line, thresholds = run.calibration, run.thresholds
    calibrated = [False] * len(run.config.classes) if line is None else line.classes
    classes = [
        {
            "name": name,
            "threshold": float(thresholds.values[column]),
            "mark": thresholds.marks[column],
            "scale": line.scale if line is not None and calibrated[column] else None,
            "offset": line.offset if line is not None and calibrated[column] else None,
        }
        for column, name in enumerate(run.config.classes)
    ]
    unsure = {mark: None if np.isinf(odds) else odds for mark, odds in UNSURE_WITHIN.items()}
    return {"input": graph.takes, **_pictures(run, graph), "unsure_within_odds": unsure, "classes": classes}


def _pictures(run: Run, graph: _Graph) -> dict[str, Any]:
    """Return how a picture is resized, as the run itself does it; ``resize`` is None where it is squashed."""
    if graph.takes_features:
        return {"width": graph.network.backbone.num_features}
    nothing = ArrayImages(np.zeros((0, 1, 1), dtype=np.uint8))
    inputs = ImageInputs(nothing, graph.network.backbone, torch.device("cpu"), transform=run.config.transform)
    transform = inputs.transform_of(None)
    if not isinstance(transform, Resize | CenterCrop):
        raise RunError(f"pictures are prepared by {type(transform).__name__}, which cannot be exported.")
    return {
        "size": transform.size,
        "resize": transform.resize if isinstance(transform, CenterCrop) else None,
        "interpolation": transform.interpolation,
        "channels": graph.spec.channels,
        "values": "uint8, RGB or grey, 0 to 255; the network normalises them itself",
    }


def _difference(graph: _Graph, content: bytes) -> float | None:
    """Return how far scores by onnxruntime are from PyTorch's, at most; None where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    largest = 0.0
    for count in (1, 3):
        values = graph.example(count, seed=count)
        with torch.no_grad():
            wanted = [each.numpy() for each in graph(values)]
        found = session.run(["logits", "scores"], {graph.takes: values.numpy()})
        apart = [_apart(mine, theirs) for mine, theirs in zip(found, wanted, strict=True)]
        if not max(apart) <= TOLERANCE:
            raise RunError(f"onnxruntime gives other scores than PyTorch (by {max(apart):.2g}): nothing was written.")
        largest = max(largest, apart[1])
    return largest


def _apart(mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> float:
    return float(np.abs(mine - theirs).max() / max(1.0, float(np.abs(theirs).max())))

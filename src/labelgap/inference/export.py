"""Export of a run: an ONNX file, a JSON file with its preprocessing, and a script that uses both.

The network normalizes uint8 pixels itself, so that a caller only decodes and resizes. Where onnxruntime is installed,
its scores are compared with PyTorch's before anything is written.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import warnings
from copy import deepcopy
from dataclasses import dataclass, replace
from inspect import getsource, unwrap
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import make_folder, remove_partials_of, write_bytes, write_json, write_text
from labelgap.core.text import CONTROL, FORMULA
from labelgap.data.decoding import (
    FORMATS,
    PLUGINS,
    brightest_sample,
    exif_orientation,
    full_scale,
    is_deep,
    readable_formats,
    to_rgb,
    upright,
)
from labelgap.data.images import ArrayImages
from labelgap.data.readers.image_paths import IMAGE_SUFFIX
from labelgap.data.transforms import CenterCrop, Resize
from labelgap.inference.columns import unsure_within
from labelgap.models import Classifier
from labelgap.models.efficientnet_lite import EfficientNetLite
from labelgap.models.inference import FoldedEfficientNet
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.network import IdentityBackbone
from labelgap.training.run import Run

_TEMPLATE: Final = '''\
"""Labels of images by an exported network. Needs onnxruntime and Pillow: python predict_onnx.py photo.jpg folder/"""

from __future__ import annotations
import csv, json, math, os, re, sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
try:
    import numpy as np, onnxruntime
    from PIL import ExifTags, Image
except ImportError as error:
    sys.exit(f"this script needs onnxruntime and Pillow ({error}): pip install onnxruntime pillow")

HERE, FORMATS, PLUGINS = Path(__file__).resolve().parent, @FORMATS@, @PLUGINS@

# how labelgap reads an image
@DECODING@

def files(paths):  # a folder is replaced by the images below it, sorted, without hidden ones
    suffix = r"\\.npy" if SPEC["input"] == "features" else @SUFFIX@
    for path in paths:
        if not Path(path).is_dir():
            yield path
        for top, folders, names in os.walk(path) if Path(path).is_dir() else ():
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and re.fullmatch(suffix, Path(name).suffix, re.IGNORECASE):
                    yield str(Path(top, name))

def inputs(path):  # an image as bytes (1, C, size, size): upright, on white, resized; or an .npy of features (N, D)
    if SPEC["input"] == "features":
        return np.load(path).astype(np.float32)
    size, side, image = SPEC["size"], SPEC["resize"] or SPEC["size"], Image.open(path, formats=readable_formats())
    image.draft(None, (2 * side, 2 * side))
    white = full_scale(image.mode, brightest_sample(image)) if is_deep(image.mode) else 255
    image = Image.fromarray(np.ascontiguousarray(upright(to_rgb(image, white), exif_orientation(image))))
    shape = [side * length // min(image.size) for length in image.size] if SPEC["resize"] else [size, size]
    image = image.resize(shape, Image.Resampling[SPEC["interpolation"].upper()])
    left, top = (round((length - size) / 2) for length in shape)
    image = image.crop((left, top, left + size, top + size)).convert("L" if SPEC["channels"] == 1 else "RGB")
    return np.asarray(image, dtype=np.uint8).reshape(1, size, size, SPEC["channels"]).transpose(0, 3, 1, 2)

def sigmoid(logit):
    return 0.5 * (1 + math.tanh(0.5 * logit))

def label(logit, known):  # unsure: the odds are near the threshold's, or the threshold is a default
    within, cut = SPEC["unsure_within_odds"][known["mark"]], min(max(known["threshold"], 1e-12), 1 - 1e-12)
    apart = (known["scale"] or 1) * (logit - math.log(cut / (1 - cut)))
    return "unsure" if within is None or abs(apart) < math.log(within) else "present" if apart > 0 else "absent"

def shown(text):  # what a terminal obeys is escaped
    return re.sub(@CONTROL@, lambda match: match[0].encode("unicode_escape").decode(), text)

def text(name):  # a cell that no spreadsheet takes for a formula
    return shown("'" + name if re.match(@FORMULA@, name) else name)

def predict(paths):
    session = onnxruntime.InferenceSession(str(HERE / SPEC["model"]), providers=["CPUExecutionProvider"])
    rows = csv.writer(sys.stdout)
    rows.writerow(["image", "class", "score", "probability", "label", "mark"])
    unread = 0
    for path in paths:
        try:
            given = inputs(path)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            formats = ", ".join(readable_formats())
            print(shown(f"{path} cannot be read ({error}). The formats are {formats}."), file=sys.stderr)
            unread += 1
            continue
        for logits in session.run(["logits"], {SPEC["input"]: given})[0].tolist():
            for logit, known in zip(logits, SPEC["classes"]):
                calibrated = known["offset"] is not None
                probability = f"{sigmoid(known['scale'] * logit + known['offset']):.6f}" if calibrated else ""
                cells = [text(path), text(known["name"]), f"{sigmoid(logit):.6f}", probability]
                rows.writerow([*cells, label(logit, known), known["mark"]])
    return unread

if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit(f"usage: python {Path(__file__).name} IMAGE|FOLDER … > predicted.csv")
    try:
        SPEC = json.loads((HERE / "preprocess.json").read_text(encoding="utf-8"))
        found = list(files(sys.argv[1:]))
        failed = predict(found)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output is gone
        os._exit(141)
    except Exception as error:
        sys.exit(f"preprocess.json or the network beside this script is damaged, export again ({error!r})"[:500])
    if not found:
        sys.exit(shown(f"there is no image in {' '.join(sys.argv[1:])}: name images or folders of images"))
    sys.exit(1 if failed else 0)
'''

_DECODING: Final = (readable_formats, is_deep, brightest_sample, full_scale, to_rgb, upright, exif_orientation)
"""The functions of this package that the script has, so that both read an image in one way."""

SCRIPT: Final = (
    _TEMPLATE.replace("@FORMATS@", repr(FORMATS))
    .replace("@PLUGINS@", repr(PLUGINS))
    .replace("@DECODING@\n", "\n".join(getsource(unwrap(each)) for each in _DECODING))
    .replace("@CONTROL@", ascii(CONTROL))
    .replace("@FORMULA@", repr(FORMULA))
    .replace("@SUFFIX@", repr(IMAGE_SUFFIX.pattern))
)


TOLERANCE: Final = 1e-4
"""The largest difference of scores to PyTorch's, and of logits relative to the largest where that is above 1."""

PREPROCESS: Final = "preprocess.json"
SCRIPT_NAME: Final = "predict_onnx.py"
_OPSET: Final = 18
_MAX_BYTES: Final = 2**31 - 1


@dataclass(frozen=True)
class ExportedFiles:
    """The files of an export."""

    model: Path  # the ONNX file
    preprocess: Path  # the preprocessing of an image, the classes and their thresholds
    script: Path  # a program that needs neither labelgap nor PyTorch
    difference: float | None  # the largest difference of scores to PyTorch's; None where it was not checked


def export_onnx(run: Run, path: str | os.PathLike[str], *, force: bool = False) -> ExportedFiles:
    """Write a run's network as ONNX, and beside it ``preprocess.json`` and ``predict_onnx.py``.

    The network takes ``images``, uint8 ``(batch, C, size, size)``, or ``features``, float32 ``(batch, D)``, for any
    batch size, and returns ``logits`` and ``scores`` ``(batch, K)``.

    Args:
        run: finished.
        path: the file, ending in .onnx; its folder is created where it does not exist.
        force: replace existing files.

    Raises:
        InputError: packages are missing, or files exist already.
        RunError: onnxruntime returns other scores than PyTorch. Nothing is written.
    """
    _ = run.thresholds  # raises where the run is not finished
    model = Path(path)
    files = ExportedFiles(model, model.with_name(PREPROCESS), model.with_name(SCRIPT_NAME), None)
    _check_path(files, force)
    graph = ExportGraph(deepcopy(run.model).cpu()).eval()
    preprocess = describe_preprocess(run, graph)
    content = _convert(_fold(graph), run, preprocess)
    difference = _verify(graph, content)
    make_folder(model.parent)
    for file in (files.model, files.preprocess, files.script):
        remove_partials_of(file)
    write_json(files.preprocess, {"format": 1, "model": model.name, **preprocess})
    write_text(files.script, SCRIPT)
    write_bytes(model, content)
    return replace(files, difference=difference)


class ExportGraph(nn.Module):
    """Maps uint8 images, or features, to logits and scores."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network
        self.spec = network.backbone.input_spec
        self.on_features = isinstance(network.backbone, IdentityBackbone)
        self.input_name = "features" if self.on_features else "images"
        self.image_mean, self.image_std = (
            nn.Buffer(torch.tensor(each).view(1, -1, 1, 1)) for each in (self.spec.mean, self.spec.std)
        )

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and scores."""
        if not self.on_features:
            values = (values.to(torch.float32) / 255 - self.image_mean) / self.image_std
        logits = self.network(values)
        return logits, torch.sigmoid(logits)

    def example(self, count: int, seed: int = 0) -> Tensor:
        """Return an input of random numbers."""
        random = torch.Generator().manual_seed(seed)
        if self.on_features:
            return torch.randn(count, self.network.backbone.num_features, generator=random)
        shape = (count, self.spec.channels, self.spec.size, self.spec.size)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)


def _check_path(files: ExportedFiles, force: bool) -> None:
    if files.model.suffix.lower() != ".onnx":
        example = files.model.with_suffix("") / "model.onnx"
        raise InputError(f"{files.model}: the file name must end in .onnx, e.g. {example}")
    existing = [file for file in (files.model, files.preprocess, files.script) if file.exists()]
    if existing and not force:
        raise InputError(f"{existing[0]} exists already: replace it with --force, or choose another folder.")
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"an export needs the package {missing[0]}: pip install 'labelgap[onnx]'.")


def _fold(graph: ExportGraph) -> ExportGraph:
    """Return the graph without batch norms, which take much of the time of an export, where labelgap can fold them."""
    backbone = graph.network.backbone
    if isinstance(backbone, EfficientNetLite):
        graph = deepcopy(graph)
        graph.network.backbone = FoldedEfficientNet(backbone).network
    return graph


def _convert(graph: ExportGraph, run: Run, preprocess: dict[str, Any]) -> bytes:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns of its own internals
        program = torch.onnx.export(
            graph,
            (graph.example(2),),
            input_names=[graph.input_name],
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
    metadata = {
        "classes": list(run.config.classes),
        "thresholds": run.thresholds.values.tolist(),
        "marks": list(run.thresholds.marks),
        "method": run.config.method,
        "backbone": run.config.backbone,
        "preprocess": preprocess,
    }
    for name, value in metadata.items():
        proto.metadata_props.add(key=name, value=json.dumps(value, ensure_ascii=False))
    if proto.ByteSize() > _MAX_BYTES:
        raise RunError("this network is larger than 2 GB, which one ONNX file cannot hold.")
    content: bytes = proto.SerializeToString()
    return content


def _strip(part: Any) -> None:
    del part.metadata_props[:]
    part.doc_string = ""
    groups = ("node", "value_info", "input", "output", "initializer")
    for group in (getattr(part, name, ()) for name in groups):
        for item in group:
            if hasattr(item, "metadata_props"):
                del item.metadata_props[:]
                item.doc_string = ""


def describe_preprocess(run: Run, graph: ExportGraph) -> dict[str, Any]:
    """Return the preprocessing of the input, and the meaning of the output."""
    line, thresholds = run.calibration, run.thresholds
    classes = [
        {
            "name": name,
            "threshold": float(thresholds.values[column]),
            "mark": thresholds.marks[column],
            "scale": None if line is None else line.scale,
            "offset": line.offset[column] if line is not None and line.classes[column] else None,
        }
        for column, name in enumerate(run.config.classes)
    ]
    images = describe_images(run, graph)
    return {"input": graph.input_name, **images, "unsure_within_odds": unsure_within(), "classes": classes}


def describe_images(run: Run, graph: ExportGraph) -> dict[str, Any]:
    """Return how the run resizes an image; ``resize`` is None where it is not cropped."""
    if graph.on_features:
        return {"width": graph.network.backbone.num_features}
    no_images = ArrayImages(np.zeros((0, 1, 1), dtype=np.uint8))
    inputs = ImageInputs(no_images, graph.network.backbone, torch.device("cpu"), transform=run.config.transform)
    transform = inputs.transform_of(None)
    if not isinstance(transform, Resize | CenterCrop):
        raise RunError(f"the run transforms images by {type(transform).__name__}, which cannot be exported.")
    return {
        "size": transform.size,
        "resize": transform.resize if isinstance(transform, CenterCrop) else None,
        "interpolation": transform.interpolation,
        "channels": graph.spec.channels,
        "values": "uint8, RGB or gray, 0 to 255; the network normalizes them itself",
    }


def _verify(graph: ExportGraph, content: bytes) -> float | None:
    """Return the largest difference of a score to PyTorch's; None where onnxruntime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    largest = 0.0
    for count in (1, 3):
        values = graph.example(count, seed=count)
        with torch.no_grad():
            expected = [output.numpy() for output in graph(values)]
        outputs = session.run(["logits", "scores"], {graph.input_name: values.numpy()})
        pairs = zip(outputs, expected, strict=True)
        difference = [float(np.abs(got - each).max() / max(1.0, float(np.abs(each).max()))) for got, each in pairs]
        if not max(difference) <= TOLERANCE:
            by = f"{max(difference):.2g}"
            raise RunError(f"onnxruntime returns other scores than PyTorch (by {by}): nothing was written.")
        largest = max(largest, difference[1])
    return largest


def export_pt2(run: Run, path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """Write a run's network as ``.pt2``, with ``preprocess.json`` in it; see ``export_onnx`` for inputs and outputs."""
    file, graph = Path(path), ExportGraph(deepcopy(run.model).cpu()).eval()
    if file.suffix != ".pt2" or (file.exists() and not force):
        raise InputError(f"{file}: the file name must end in .pt2, and an existing file is replaced with --force only.")
    described = describe_preprocess(run, graph)
    with torch.no_grad():
        program = torch.export.export(graph, (graph.example(2),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    graphs = (module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule))
    for node in (node for each in graphs for node in each.nodes):
        node.meta.pop("stack_trace", None)  # it names folders of this machine
    content = io.BytesIO()
    torch.export.save(program, content, extra_files={PREPROCESS: json.dumps(described, ensure_ascii=False)})
    make_folder(file.parent)
    write_bytes(file, content.getvalue())
    return file

"""Export of a run for ``torch.export.load``: a program of PyTorch that needs no code of labelgap."""

from __future__ import annotations

import io
import json
import os
from copy import deepcopy
from pathlib import Path

import torch

from labelgap.core.errors import InputError
from labelgap.core.files import make_folder, write_bytes
from labelgap.inference.export import PREPROCESS, ExportGraph, describe_preprocess
from labelgap.training.run import Run


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

"""``labelgap export``: write a run as ONNX."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import labelgap as lg
from labelgap.cli.options import Force, RunFolder, option
from labelgap.cli.printing import print_fields
from labelgap.core.system import format_bytes


def export(
    run: RunFolder,
    onnx: Annotated[Path, option("File to write, .onnx; two more are written beside it.")],
    force: Force = False,
) -> None:
    """Write a run as ONNX, with preprocess.json and a script that needs only onnxruntime and Pillow."""
    from labelgap.inference.export import export_onnx

    opened = lg.open_run(run)
    files = export_onnx(opened, onnx, force=force)
    size, difference = format_bytes(files.model.stat().st_size), files.difference
    checked = "checked", f"scores of onnxruntime and PyTorch differ by at most {max(difference or 0, 1e-9):.0e}"
    if difference is None:
        checked = "unchecked", "onnxruntime is not installed: pip install onnxruntime, and export again"
    takes = "features.npy" if opened.config.backbone == "features" else "photo.jpg folder/"
    print_fields(
        ("wrote", f"{files.model} ({size}), {files.preprocess}, {files.script}"),
        checked,
        ("run", f"python {shlex.quote(str(files.script))} {takes}"),
    )

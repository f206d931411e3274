"""``labelgap export``: write a run as ONNX."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from labelgap.cli.options import Force, RunFolder


def export(
    run: RunFolder,
    onnx: Annotated[Path, typer.Option("--onnx", help="File to write, .onnx; two more are written beside it.")],
    force: Force = False,
) -> None:
    """Write a run as ONNX, with preprocess.json and a script that needs only onnxruntime and Pillow."""
    from labelgap.core.system import format_bytes
    from labelgap.inference.export import export_onnx
    from labelgap.training import open_run

    opened = open_run(run)
    files = export_onnx(opened, onnx, force=force)
    print(
        f"{'wrote':<10}{files.model} ({format_bytes(files.model.stat().st_size)}), {files.preprocess}, {files.script}"
    )
    if files.difference is None:
        print(f"{'unchecked':<10}onnxruntime is not installed: pip install onnxruntime, and export again")
    else:
        print(f"{'checked':<10}scores of onnxruntime and PyTorch differ by at most {max(files.difference, 1e-9):.0e}")
    takes = "features.npy" if opened.config.backbone == "features" else "photo.jpg folder/"
    print(f"{'run':<10}python {shlex.quote(str(files.script))} {takes}")

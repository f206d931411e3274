"""``labelgap export``: a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labelgap.cli.evaluate import RunFolder

__all__ = ["export"]


def export(
    run: RunFolder,
    onnx: Annotated[Path, typer.Option("--onnx", help="File to write, ending in .onnx; two more go beside it.")],
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a run as ONNX, with preprocess.json and a script that needs only onnxruntime and Pillow."""
    from labelgap.core.system import format_bytes
    from labelgap.inference.export import export_onnx
    from labelgap.training import open_run

    opened = open_run(run)
    made = export_onnx(opened, onnx, force=force)
    print(f"{'wrote':<10}{made.model} ({format_bytes(made.model.stat().st_size)}), {made.preprocess}, {made.script}")
    if made.difference is None:
        print(f"{'unchecked':<10}onnxruntime is not installed here: pip install onnxruntime, and export again")
    else:
        print(f"{'checked':<10}by onnxruntime: its scores are those of PyTorch to {max(made.difference, 1e-9):.0e}")
    takes = "features.npy" if opened.config.backbone == "features" else "photo.jpg"
    print(f"{'use it':<10}python {made.script} {takes}")

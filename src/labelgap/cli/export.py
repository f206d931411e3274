"""``labelgap export``: write a run for other programs."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import labelgap as lg
from labelgap.cli.options import Force, RunFolder, option
from labelgap.cli.printing import print_fields
from labelgap.core.errors import InputError
from labelgap.core.system import format_bytes


def export(
    run: RunFolder,
    onnx: Annotated[Path | None, option("File to write, .onnx; two more are written beside it.")] = None,
    huggingface: Annotated[Path | None, option("Folder to write, for transformers and the hub.")] = None,
    push_to_hub: Annotated[str | None, option("Upload that folder.", metavar="OWNER/NAME")] = None,
    mlflow: Annotated[Path | None, option("Folder to write, a model of MLflow.")] = None,
    pt2: Annotated[Path | None, option("File to write, .pt2, for torch.export.load.")] = None,
    force: Force = False,
) -> None:
    """Write a run for programs without labelgap: as ONNX with a script, for transformers, MLflow or PyTorch."""
    if not any((onnx, huggingface, push_to_hub, mlflow, pt2)):
        raise InputError("say what to write: --onnx, --huggingface, --push-to-hub, --mlflow or --pt2.")
    opened = lg.open_run(run)
    if onnx is not None:
        _export_onnx(opened, onnx, force)
    if huggingface is not None or push_to_hub is not None:
        _export_huggingface(opened, huggingface, push_to_hub, force)
    if mlflow is not None:
        from labelgap.inference.exports.mlflow import export_mlflow

        print_fields(("wrote", export_mlflow(opened, mlflow)), ("run", f"mlflow models serve -m {mlflow}"))
    if pt2 is not None:
        from labelgap.inference.export import export_pt2

        print_fields(("wrote", export_pt2(opened, pt2, force=force)))


def _export_onnx(run: lg.Run, onnx: Path, force: bool) -> None:
    from labelgap.inference.export import export_onnx

    files = export_onnx(run, onnx, force=force)
    size, difference = format_bytes(files.model.stat().st_size), files.difference
    checked = "checked", f"scores of onnxruntime and PyTorch differ by at most {max(difference or 0, 1e-9):.0e}"
    if difference is None:
        checked = "unchecked", "onnxruntime is not installed: pip install onnxruntime, and export again"
    takes = "features.npy" if run.config.backbone == "features" else "photo.jpg folder/"
    print_fields(
        ("wrote", f"{files.model} ({size}), {files.preprocess}, {files.script}"),
        checked,
        ("run", f"python {shlex.quote(str(files.script))} {takes}"),
    )


def _export_huggingface(run: lg.Run, folder: Path | None, name: str | None, force: bool) -> None:
    from labelgap.core.stored import read_bytes
    from labelgap.inference.exports.huggingface import export_huggingface, push_to_hub
    from labelgap.reporting.model_card import MODEL_CARD_FILE, render_model_card

    card = run.path / MODEL_CARD_FILE
    text = read_bytes(card).decode() if card.exists() else render_model_card(run)
    with TemporaryDirectory() as temporary:
        written = export_huggingface(run, folder or temporary, card=text, force=force)
        place = name or shlex.quote(str(written.path))
        opens = f'transformers.pipeline("image-classification", "{place}", top_k=None)'
        if written.reason is not None:
            opens = f"python {place}/predict_onnx.py photo.jpg; transformers cannot: {written.reason}"
        if folder is not None:
            print_fields(("wrote", f"{written.path}: {', '.join(written.files)}"))
        if name is not None:
            print_fields(("uploaded", push_to_hub(written.path, name)))
            print_fields(("labelgap", f"labelgap predict hf://{name} photos/"))
        print_fields(("run", opens))

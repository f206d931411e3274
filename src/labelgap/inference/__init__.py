"""A finished run at work: predictions of new images (``predict``, ``parts``) and the export to ONNX (``export``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.inference.export import ExportedFiles, export_onnx
    from labelgap.inference.parts import PartsResult, predict_parts
    from labelgap.inference.predict import PredictionSummary, predict_to_file

__all__ = ["ExportedFiles", "PartsResult", "PredictionSummary", "export_onnx", "predict_parts", "predict_to_file"]

__getattr__ = lazy_names(__name__, "export", "parts", "predict")

"""A finished run at work: predictions of new images (``predict``, ``parts``) and the export to ONNX (``export``)."""

from labelgap.inference.export import ExportedFiles, export_onnx
from labelgap.inference.parts import PartsResult, predict_parts
from labelgap.inference.predict import PredictionSummary, predict_to_file

__all__ = ["ExportedFiles", "PartsResult", "PredictionSummary", "export_onnx", "predict_parts", "predict_to_file"]

"""A finished run at work: predictions of new images (``predict``) and the export to ONNX (``export``)."""

from labelgap.inference.export import ExportedFiles, export_onnx
from labelgap.inference.predict import PredictionSummary, predict_to_file

__all__ = ["ExportedFiles", "PredictionSummary", "export_onnx", "predict_to_file"]

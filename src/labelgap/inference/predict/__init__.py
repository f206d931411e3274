"""Predictions of any number of images in a CSV or Parquet file.

``prediction_file`` computes and assembles, ``batches`` reads, ``chunks`` makes it resumable, ``columns`` decides what
the file holds, ``image_arguments`` finds the images of a command.
"""

from labelgap.inference.predict.assembly import PredictionSummary
from labelgap.inference.predict.prediction_file import predict_to_file

__all__ = ["PredictionSummary", "predict_to_file"]

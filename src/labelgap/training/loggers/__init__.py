"""Live logs of a training: the scalars of every epoch to a CSV file, TensorBoard, Weights & Biases or MLflow."""

from labelgap.training.loggers.run_log import LOGGERS, check_loggers, log_epochs

__all__ = ["LOGGERS", "check_loggers", "log_epochs"]

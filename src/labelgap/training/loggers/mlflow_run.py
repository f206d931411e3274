"""MLflow: a run on the server of ``MLFLOW_TRACKING_URI``, or in ``mlflow.db`` of the run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from labelgap.training.loggers.base import EpochLogger, Row, Scalars

MLFLOW_DATABASE: Final = "mlflow.db"
_LONGEST: Final = 500
"""Characters of a parameter."""


class MlflowLogger(EpochLogger):
    """Logs scalars with the epoch as their step, and the hyper-parameters as parameters.

    The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, "labelgap" by default.
    """

    package = "mlflow"

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, id: str, start: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a training waits for a server that is away
        import mlflow

        library: Any = mlflow
        local = not os.environ.get("MLFLOW_TRACKING_URI")
        database = f"sqlite:///{(folder / MLFLOW_DATABASE).absolute().as_posix()}"
        self._client = library.MlflowClient(tracking_uri=database if local else None)
        if not id:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "labelgap")
            experiment = self._client.get_experiment_by_name(name)
            number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            id = str(self._client.create_run(number, run_name=folder.name).info.run_id)
            for key, value in settings.items():
                self._client.log_param(id, key, str(value)[:_LONGEST])
        else:
            self._client.update_run(id, status="RUNNING")
        super().__init__(folder, settings, id=id, start=start)

    def log(self, rows: Sequence[Row], new: Sequence[Row]) -> None:
        """Log the new epochs, except those that a killed process has logged already."""
        known = {metric.step for metric in self._client.get_metric_history(self.id, "epoch")}
        for epoch, scalars in new:
            if epoch not in known:
                self._send({**scalars, "epoch": epoch}, epoch)

    def finish(self, rows: Sequence[Row], measured: Scalars) -> None:
        """Log the measures at the last epoch."""
        self._send(measured, rows[-1][0])

    def close(self, *, finished: bool) -> None:
        """End the run."""
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")

    def _send(self, scalars: Scalars, epoch: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self.id, [Metric(name, value, now, epoch) for name, value in scalars.items()])

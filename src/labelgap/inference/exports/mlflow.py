"""Export of a run as a model of MLflow: a file of code beside the ONNX export runs it, without labelgap or PyTorch."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from labelgap.core.errors import InputError
from labelgap.core.files import make_folder, write_text
from labelgap.inference.export import export_onnx
from labelgap.training.network import IdentityBackbone
from labelgap.training.run import Run

_PACKAGES: Final = ["numpy", "onnxruntime", "pandas", "pillow"]
_CODE: Final = '''\
"""Images, as bytes in the column "image", or features to a score per class."""

import io, json
import mlflow, numpy as np, pandas as pd

class Model(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        import onnxruntime, predict_onnx
        with open(context.artifacts["preprocess"], encoding="utf-8") as file:
            self.spec, self.script = json.load(file), predict_onnx
        self.network = onnxruntime.InferenceSession(context.artifacts["model"], providers=["CPUExecutionProvider"])

    def predict(self, context, model_input, params=None):
        if self.spec["input"] == "features":
            values = np.asarray(model_input, dtype=np.float32)
        else:
            self.script.SPEC = self.spec
            values = np.concatenate([self.script.inputs(io.BytesIO(image)) for image in model_input["image"]])
        scores = self.network.run(["scores"], {self.spec["input"]: values})[0]
        return pd.DataFrame(scores, columns=[known["name"] for known in self.spec["classes"]])

mlflow.models.set_model(Model())
'''


def export_mlflow(run: Run, folder: str | os.PathLike[str]) -> Path:
    """Write a run as a model of MLflow into a new folder; the thresholds of the scores are in its metadata."""
    path = Path(folder)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import
    try:
        mlflow: Any = importlib.import_module("mlflow")
    except ImportError:
        raise InputError("this needs MLflow: pip install 'labelgap[mlflow,onnx]'.") from None
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists already: choose another folder.")
    schema, column = mlflow.types.Schema, mlflow.types.ColSpec
    backbone, signature = run.model.backbone, None
    if not isinstance(backbone, IdentityBackbone):
        scores = [column("float", name) for name in run.config.classes]
        signature = mlflow.models.ModelSignature(schema([column("binary", "image")]), schema(scores))
    make_folder(path)
    with TemporaryDirectory() as temporary, warnings.catch_warnings(action="ignore"):  # it wants an example of bytes
        files = export_onnx(run, Path(temporary, "model.onnx"))
        write_text(Path(temporary, "model.py"), _CODE)
        mlflow.pyfunc.save_model(
            path,
            python_model=f"{temporary}/model.py",
            code_paths=[str(files.script)],
            artifacts={"model": str(files.model), "preprocess": str(files.preprocess)},
            signature=signature,
            pip_requirements=_PACKAGES,
            metadata={"thresholds": dict(zip(run.config.classes, run.thresholds.values.tolist(), strict=True))},
        )
    return path

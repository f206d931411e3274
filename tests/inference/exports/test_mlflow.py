"""A run as a model of MLflow: loaded, and served, in processes that have no labelgap."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image
from tests.training.untrained_run import CLASSES, make_run
from tests.waiting import wait_until

from labelgap.core.errors import InputError
from labelgap.inference.exports.mlflow import export_mlflow

pytest.importorskip("mlflow")
pytest.importorskip("mlflow.pyfunc")

PROGRAM = """
import pathlib, sys
sys.modules["labelgap"] = sys.modules["torch"] = None
import mlflow, pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
print(model.metadata.metadata["thresholds"]["cat"])
scores = model.predict(pd.DataFrame({"image": [pathlib.Path(path).read_bytes() for path in sys.argv[2:]]}))
print(scores.to_json(orient="split"))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    for number, size in enumerate([(90, 60), (40, 130)]):
        pixels = np.random.default_rng(number).integers(0, 256, (5, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_a_model_is_loaded_and_served(photos: list[Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = export_mlflow(run, tmp_path / "model")
    expected = run.predict(photos, device="cpu")
    with pytest.raises(InputError, match="exists already"):
        export_mlflow(run, folder)
    done = subprocess.run([sys.executable, "-c", PROGRAM, folder, *photos], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    threshold, scores = done.stdout.splitlines()
    assert float(threshold) == run.thresholds.values[0] and json.loads(scores)["columns"] == list(CLASSES)
    np.testing.assert_allclose(json.loads(scores)["data"], expected, atol=2e-3)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where it looks for uvicorn
    if shutil.which("uvicorn", path=path) is None:
        pytest.skip("uvicorn is not installed: nothing was served")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    serve = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(folder), "--env-manager", "local"]
    with (tmp_path / "log").open("wb") as log:
        how: dict[str, Any] = {"stdout": log, "stderr": log, "env": {**os.environ, "PATH": path}}
        server = subprocess.Popen([*serve, "--port", address.rpartition(":")[2]], start_new_session=True, **how)
    try:

        def answers() -> bool:
            assert server.poll() is None, (tmp_path / "log").read_text()
            try:
                return bool(urlopen(f"{address}/ping", timeout=5).status == 200)
            except OSError:
                return False

        wait_until(answers)
        rows = [[base64.b64encode(photo.read_bytes()).decode()] for photo in photos]
        body = json.dumps({"dataframe_split": {"columns": ["image"], "data": rows}}).encode()
        request = Request(f"{address}/invocations", body, {"Content-Type": "application/json"})
        answer = json.loads(urlopen(request, timeout=60).read())["predictions"]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    np.testing.assert_allclose([[row[name] for name in CLASSES] for row in answer], expected, atol=2e-3)


def test_a_run_on_features_takes_features(tmp_path: Path) -> None:
    import mlflow

    run = make_run(tmp_path / "run", backbone="features", width=5)
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    scores = mlflow.pyfunc.load_model(str(export_mlflow(run, tmp_path / "model"))).predict(vectors)
    np.testing.assert_allclose(scores, run.predict(vectors, device="cpu"), atol=1e-5)

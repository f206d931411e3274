from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.conftest import call
from tests.training.untrained_run import CLASSES, make_run

from labelgap.core.errors import InputError
from labelgap.inference.export import export_pt2

PROGRAM = """
import sys
sys.modules["labelgap"] = None
import numpy as np, torch
extra = {"preprocess.json": ""}
network = torch.export.load(sys.argv[1], extra_files=extra).module()
logits, scores = network(torch.from_numpy(np.load("pixels.npy")))
np.save("scores.npy", scores.detach().numpy())
print(extra["preprocess.json"])
"""


@pytest.mark.parametrize(
    "settings",
    [{"head": "attention", "average_flips": True}, {"average_sizes": (64, 80)}],
    ids=["attention and flips", "sizes"],
)
def test_a_program_runs_without_labelgap(settings: dict[str, Any], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", **settings)
    file = export_pt2(run, tmp_path / "model.pt2")
    assert str(Path(__file__).parents[3]).encode() not in file.read_bytes()
    spec = run.model.backbone.input_spec
    shape = (3, spec.channels, spec.size, spec.size)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    command = [sys.executable, "-I", "-c", PROGRAM, str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = run.model(run.model.normalize(torch.from_numpy(pixels))).sigmoid().numpy()
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), expected, atol=1e-6)
    described = json.loads(done.stdout)
    assert [known["name"] for known in described["classes"]] == list(CLASSES) and described["size"] == spec.size


def test_a_run_on_features_and_existing_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", backbone="features", width=5)
    file = tmp_path / "model.pt2"
    assert call("export", str(run.path), "--pt2", str(file)) == 0
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    scores = torch.export.load(file).module()(torch.from_numpy(vectors))[1].detach().numpy()
    np.testing.assert_allclose(scores, run.predict(vectors, device="cpu"), atol=1e-6)
    for path in (file, tmp_path / "model.pt"):
        with pytest.raises(InputError, match="--force"):
            export_pt2(run, path)
    assert export_pt2(run, file, force=True) == file

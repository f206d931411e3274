"""``Predictor``: bytes, addresses and arrays give what ``predict`` writes, in any process."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.data.readers.shards.test_load_shards import serve_shards
from tests.training.untrained_run import CLASSES, make_run

import labelgap as lg
from labelgap.core.errors import InputError
from labelgap.data import FileImages, addresses
from labelgap.inference.columns import LABELS
from labelgap.inference.predict import predict_to_file
from labelgap.training import Run
from labelgap.training.features import extract_features
from labelgap.training.progress import Reporter

BAD = "3.jpg"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> FileImages:
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number in range(10):
        pixels = random.integers(0, 256, (90 + 9 * number, 120, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    (folder / BAD).write_text("no picture")
    return FileImages(folder, [f"{number}.jpg" for number in range(10)])


def test_bytes_addresses_and_arrays_give_what_predict_writes(run: Run, photos: FileImages, tmp_path: Path) -> None:
    predict_to_file(run, photos, tmp_path / "a.parquet", layout="wide", device="cpu")
    table = pq.read_table(tmp_path / "a.parquet")
    paths = [photos.path(row) for row in range(len(photos))]
    predictor = lg.Predictor(run.path, device="cpu", batch_size=4)
    with serve_shards(photos.root) as server:
        batches = {
            "bytes": [path.read_bytes() for path in paths],
            "path": [f"{server.url}/{path.name}" if row % 2 else str(path) for row, path in enumerate(paths)],
        }
        found = {name: predictor({name: values}) for name, values in batches.items()}
    for result in found.values():
        for column, name in enumerate(CLASSES):
            expected = table[f"score.{name}"].to_numpy()
            np.testing.assert_allclose(result["score"][:, column], expected, rtol=0, atol=1e-6)
            if name != "dog":
                written = table[f"probability.{name}"].to_numpy()
                np.testing.assert_allclose(result["probability"][:, column], written, rtol=0, atol=1e-6)
            codes = {"absent": lg.ABSENT, "present": lg.PRESENT, "unsure": lg.UNKNOWN, None: lg.UNKNOWN}
            assert set(LABELS) < set(codes)
            assert result["label"][:, column].tolist() == [codes[each] for each in table[f"label.{name}"].to_pylist()]
        assert np.isnan(result["probability"][:, 1]).all()
        assert [row for row, error in enumerate(result["error"]) if error] == [3]
    assert "not an image" in found["bytes"]["error"][3] and BAD in found["path"]["error"][3]
    arrays = predictor({"image": [photos[row] for row in range(3)]})["score"]
    np.testing.assert_allclose(
        arrays, run.predict([np.array(photos[row]) for row in range(3)], device="cpu"), atol=1e-6
    )


def test_missing_cells_and_dead_addresses_are_errors_of_their_rows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "PAUSE_SECONDS", 0.0)
    predictor = lg.Predictor(run, device="cpu")
    encoded = io.BytesIO()
    Image.new("RGB", (20, 20)).save(encoded, "PNG")
    found = predictor({"bytes": [None, encoded.getvalue(), b""], "other": [1, 2, 3]})
    assert [bool(error) for error in found["error"]] == [True, False, True]
    dead = predictor({"path": ["http://127.0.0.1:9/a.jpg", "nothing.jpg"]})
    assert "attempts failed" in dead["error"][0] and "does not exist" in dead["error"][1]
    assert np.isnan(dead["score"]).all() and (dead["label"] == lg.UNKNOWN).all()
    assert predictor({"bytes": []})["score"].shape == (0, 3)
    with pytest.raises(InputError, match="one of the columns"):
        predictor({"picture": []})


def _score(pickled: bytes, content: bytes) -> list[float]:
    return pickle.loads(pickled)({"bytes": [content]})["score"][0].tolist()  # type: ignore[no-any-return]


def test_a_pickled_predictor_needs_no_run_folder(tmp_path: Path, photos: FileImages) -> None:
    run = make_run(tmp_path / "run")
    predictor, content = lg.Predictor(run, device="cpu"), photos.path(0).read_bytes()
    expected = predictor({"bytes": [content]})["score"][0].tolist()
    pickled = pickle.dumps(predictor)
    for file in run.path.iterdir():
        file.unlink()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.apply(_score, (pickled, content)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("flips", [False, True])
def test_features_are_those_of_the_feature_cache(tmp_path: Path, photos: FileImages, flips: bool) -> None:
    run = make_run(tmp_path / "run", backbone="efficientnet-lite0", size=32, average_flips=flips)
    good = photos.select([0, 1, 2, 4])
    found = lg.Predictor(run, device="cpu", features=True)({"path": [str(good.path(row)) for row in range(4)]})
    how = {"device": torch.device("cpu"), "reporter": Reporter(quiet=True), "average_flips": flips}
    (features,) = extract_features([good], run.model.backbone, **how, precision=run.config.feature_precision)  # type: ignore[arg-type]
    np.testing.assert_allclose(found["feature"], features, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["score"], run.predict(good, device="cpu"), rtol=0, atol=1e-6)
    vectors = make_run(tmp_path / "vectors", backbone="features", width=5)
    given = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    scores = lg.Predictor(vectors, device="cpu")({"feature": given})["score"]
    np.testing.assert_allclose(scores, vectors.predict(given, device="cpu"), rtol=0, atol=1e-6)

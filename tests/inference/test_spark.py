"""Spark: a column of bytes or of addresses becomes what a ``Predictor`` returns."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.training.untrained_run import CALIBRATION, make_run

import labelgap as lg

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'labelgap[spark]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.skip("there is no Java runtime, e.g. Debian's default-jre-headless")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = pyspark.sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    started = builder.getOrCreate()
    yield started
    started.stop()


def test_a_data_frame_is_scored_as_predict_scores(session: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", calibration=CALIBRATION)
    (tmp_path / "photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(9):
        pixels = random.integers(0, 256, (64, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.jpg")
    (tmp_path / "photos" / "4.jpg").write_text("no picture")
    paths = sorted(str(path) for path in (tmp_path / "photos").iterdir())
    frame = session.read.format("binaryFile").load(str(tmp_path / "photos"))
    by_bytes = frame.select("path", lg.spark.predict_udf(run, features=True)("content").alias("found")).collect()
    named = session.createDataFrame([(path,) for path in paths], "path string").repartition(2)
    by_path = named.select("path", lg.spark.predict_udf(run, batch_size=2)("path").alias("found")).collect()
    expected = lg.Predictor(run, features=True)({"path": paths})
    for rows, names in ((by_bytes, ("score", "probability", "label", "feature")), (by_path, ("score", "label"))):
        found = {Path(row["path"].removeprefix("file:")).name: row["found"] for row in rows}
        assert sorted(found) == [Path(path).name for path in paths] and "not an image" in found["4.jpg"]["error"]
        for name in names:
            values = np.array([found[Path(path).name][name] for path in paths], dtype=np.float64)
            np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6)

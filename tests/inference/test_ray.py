"""Ray: two nodes on this machine, a worker and a driver that are killed, and the same scores as ``predict``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.inference.ray_cluster import ray_cluster
from tests.inference.test_parts import check
from tests.serving import serve
from tests.training.untrained_run import CALIBRATION, make_run

import labelgap as lg
from labelgap.data import FileImages
from labelgap.data.parts import PartFolder, PartsManifest
from labelgap.inference import sources
from labelgap.inference.engines.ray import RayEngine, Workers, connected
from labelgap.inference.parts import Outcome, PartsResult, predict_parts
from labelgap.training import Run

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'labelgap[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of Ray's own

COUNT, BAD = 23, "007.jpg"
DRIVER = """
import sys
import labelgap as lg
from labelgap.inference import sources
from labelgap.inference.engines.ray import RayEngine, Workers
from labelgap.inference.parts import predict_parts
sources.IMAGES_PER_SHARD = 2
predict_parts(lg.Predictor(sys.argv[1]), sys.argv[2], sys.argv[3], engine=RayEngine(Workers(1, 2)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and photos, one of which cannot be read."""
    made = tmp_path_factory.mktemp("ray")
    make_run(made / "run", calibration=CALIBRATION)
    (made / "photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(COUNT):
        pixels = random.integers(0, 256, (64, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(made / "photos" / f"{number:03d}.jpg")
    (made / "photos" / BAD).write_text("no picture")
    return made


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_cluster() as running:
        yield running.address


def workers() -> list[int]:
    """Return the ids of the processes that compute shards."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name = path.read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::") and b"ShardWorker" in name:
            found.append(int(path.parent.name))
    return found


def wait_for(condition: Any) -> Any:
    """Wait until something is so."""
    ends = time.monotonic() + 300
    while not (found := condition()):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return found


def test_a_killed_driver_and_a_killed_worker_lose_no_row_and_double_none(
    cluster: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "IMAGES_PER_SHARD", 2)
    run, source, out = Run(folder / "run"), str(folder / "photos"), folder / "out"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(run.path), source, str(out)])
    wait_for(lambda: list(out.glob("part-*")))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_for(lambda: not workers())
    first = len(list(out.glob("_part-*")))
    assert 0 < first < 12
    killed = list[int]()

    def engine(job: Any, shards: Any) -> Iterator[Outcome]:
        for outcome in RayEngine(Workers(1, 2), cluster)(job, shards):
            if not killed and (alive := workers()):
                killed.append(alive[0])
                os.kill(alive[0], signal.SIGKILL)
            yield outcome

    result = predict_parts(lg.Predictor(run), source, out, engine=engine)
    assert killed and result.computed == 12 - first
    check(result, run, FileImages(source, [f"{number:03d}.jpg" for number in range(COUNT)]))


def test_the_rows_of_a_dataset_are_scored(cluster: str, folder: Path) -> None:
    run, paths = Run(folder / "run"), sorted(str(path) for path in (folder / "photos").iterdir())
    with connected(cluster):
        assert len({node["NodeID"] for node in ray.nodes() if node["Alive"]}) == 2
        dataset = ray.data.from_items([{"path": path, "row": row} for row, path in enumerate(paths)])
        found = lg.ray.predict(dataset, run, workers="1:2", features=True).take_all()
    found.sort(key=lambda row: row["row"])
    assert [row["path"] for row in found] == paths and [bool(row["error"]) for row in found].index(True) == 7
    expected = lg.Predictor(run, features=True)({"path": paths})
    for name in ("score", "probability", "label", "feature"):
        np.testing.assert_allclose([row[name] for row in found], expected[name], rtol=0, atol=1e-6)


class SlowServer(SimpleHTTPRequestHandler):
    """Takes a second for each file."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        time.sleep(self.path.endswith(".parquet"))
        super().copyfile(source, outputfile)

    def log_message(self, format: str, *values: object) -> None:
        """Print nothing."""


def test_a_lost_node_loses_no_row_and_doubles_none(folder: Path) -> None:
    """``labelgap predict --engine ray``, and the node of a part of its workers is killed with them."""
    photos, out = FileImages(folder / "photos", [f"{number:03d}.jpg" for number in range(COUNT)]), folder / "lost"
    (folder / "tables").mkdir()
    for start in range(0, COUNT, 2):
        contents = [photos.path(row).read_bytes() for row in range(start, min(start + 2, COUNT))]
        table = pa.table({"image": list(photos.names[start : start + 2]), "bytes": contents})
        pq.write_table(table, folder / "tables" / f"{start:03d}.parquet")
    with ray_cluster() as running, serve(partial(SlowServer, directory=str(folder))) as address:
        command = ["-m", "labelgap", "predict", str(folder / "run"), f"{address}/tables", "--out", str(out)]
        driver = subprocess.Popen([sys.executable, *command, "--engine", "ray", "--workers", "3"])
        wait_for(lambda: list(out.glob("_part-*")) and {*workers()}.intersection(running.processes()))
        running.kill_second()
        assert len(list(out.glob("_part-*"))) < 10
        assert driver.wait(300) == 0
    (manifest,) = PartFolder(str(out)).read(PartsManifest, ["_manifest.json"])
    check(PartsResult(str(out), 12, 12, manifest.parts, 12), Run(folder / "run"), photos)
    assert lg.verify_run(out).intact

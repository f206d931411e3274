"""Unfinished predictions: resumed after a kill at any moment, one process at a time, damaged."""

from __future__ import annotations

import re
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from tests.killing import killed_at_every_operation, run_forked
from tests.mutations import mutations
from tests.racing import race
from tests.training.untrained_run import make_run, predict_many, predict_when_refused

from labelgap.core.errors import InputError, RunError
from labelgap.data import ArrayImages
from labelgap.inference.predict import predict_to_file
from labelgap.training import Run


class KilledError(Exception):
    """Simulates the end of a process."""


class InterruptedImages:
    """Images of which one raises, the first time."""

    def __init__(self, images: ArrayImages, at: int) -> None:
        self.images, self.at = images, at
        self.names = images.names
        self.rows_read: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        self.rows_read.append(row)
        if row == self.at:
            self.interrupt()
        return self.images[row]

    def interrupt(self) -> None:
        raise KilledError

    def select(self, rows: ArrayLike) -> ArrayImages:
        return self.images.select(rows)

    def fingerprint(self) -> str:
        return self.images.fingerprint()


class KillingImages(InterruptedImages):
    """Images of which one kills the process."""

    def interrupt(self) -> None:
        signal.raise_signal(signal.SIGKILL)


@pytest.mark.usefixtures("small_chunks")
def test_an_interrupted_prediction_resumes_after_its_last_chunk(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    source = InterruptedImages(images, at=100)
    with pytest.raises(KilledError):
        predict_to_file(run, source, out, device="cpu", batch_size=8)
    assert not out.exists()
    source.at, source.rows_read = 10**9, []
    predict_to_file(run, source, out, device="cpu", batch_size=8)
    assert source.rows_read[0] == 96 and len(source.rows_read) == 54
    predict_to_file(run, images, tmp_path / "b.csv", device="cpu", batch_size=8)
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.usefixtures("small_chunks")
def test_chunks_of_another_prediction_are_not_resumed(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    other = make_run(tmp_path / "other", head="boostlu")
    for run_, source, size, message in (
        (other, images, 8, "another run"),
        (run, images.select(range(149, -1, -1)), 8, "other images"),
        (run, images.select(range(100)), 8, "other images"),
        (run, images, 4, "another batch size"),
    ):
        with pytest.raises(RunError, match=message):
            predict_to_file(run_, source, out, device="cpu", batch_size=size)
    predict_to_file(other, images, out, device="cpu", batch_size=8, restart=True)
    predict_to_file(other, images, tmp_path / "b.csv", device="cpu", batch_size=8)
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_foreign_folder_is_not_touched(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    folder = tmp_path / "a.csv.partial"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    for restart in (False, True):
        with pytest.raises(RunError, match="no prediction"):
            predict_to_file(run, images, tmp_path / "a.csv", device="cpu", restart=restart)
    assert (folder / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.usefixtures("small_chunks")
def test_a_killed_prediction_ends_with_the_bytes_of_an_uninterrupted_one(run: Run, tmp_path: Path, suffix: str) -> None:
    out, chunks = tmp_path / f"a.{suffix}", tmp_path / f"a.{suffix}.partial"
    killing = partial(KillingImages, at=60)
    assert run_forked(lambda: predict_many(str(run.path), str(out), wrap=killing)) == -signal.SIGKILL
    assert not out.exists() and len(list(chunks.glob("chunk-*.safetensors"))) == 3
    predict_many(str(run.path), str(out))
    assert not chunks.exists() and [path.name for path in tmp_path.iterdir()] == [out.name]
    predict_many(str(run.path), str(tmp_path / f"b.{suffix}"))
    assert out.read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


@pytest.mark.usefixtures("small_chunks")
def test_killed_at_every_operation_it_ends_with_the_same_bytes(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    folder, whole = tmp_path / "killed", tmp_path / "whole.csv"
    folder.mkdir()
    out, kills = folder / "a.csv", 0
    images = images.select(range(30))
    predict_to_file(run, images, whole, device="cpu", batch_size=8)
    for kills in killed_at_every_operation(
        lambda: predict_to_file(run, images, out, device="cpu", batch_size=8), folder
    ):
        try:
            predict_to_file(run, images, out, device="cpu", batch_size=8)
        except InputError as error:
            assert "exists already" in str(error)
        assert out.read_bytes() == whole.read_bytes()
        assert [path.name for path in folder.iterdir()] == [out.name], f"after a kill at operation {kills}"
        out.unlink()
    assert kills > 15


@pytest.mark.usefixtures("small_chunks")
def test_damaged_chunks_are_redone(
    run: Run, images: ArrayImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "a.csv", tmp_path / "a.csv.partial"
    whole = predict_to_file(run, images, tmp_path / "whole.csv", device="cpu", batch_size=8).path.read_bytes()
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    chunk = kept["chunk-000002.safetensors"]
    swapped = kept["chunk-000003.safetensors"]
    for content in (swapped, b"", *mutations(chunk, 12)):
        folder.mkdir(exist_ok=True)
        for name, original in kept.items():
            (folder / name).write_bytes(original)
        (folder / "chunk-000002.safetensors").write_bytes(content)
        source = InterruptedImages(images, at=10**9)
        predict_to_file(run, source, out, device="cpu", batch_size=8, quiet=False)
        assert out.read_bytes() == whole and not folder.exists()
        assert source.rows_read[:16] == list(range(32, 48)) and len(source.rows_read) == 16 + 54
        assert "chunk-000002.safetensors is damaged" in re.sub(r"\s+", " ", capsys.readouterr().err)
        out.unlink()


def test_a_damaged_description_is_discarded_by_restart(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out, folder = tmp_path / "a.csv", tmp_path / "a.csv.partial"
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    path = folder / "prediction.json"
    for content in (b"", b"[]", b"{}", b"[" * 100_000, b'{"format": 1e999}', *mutations(path.read_bytes(), 60)):
        path.write_bytes(content)
        with pytest.raises(RunError, match="restart"):
            predict_to_file(run, InterruptedImages(images, at=0), out, device="cpu", batch_size=8)
    predict_to_file(run, images, out, device="cpu", batch_size=8, restart=True)
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


@pytest.mark.usefixtures("small_chunks")
def test_nothing_is_written_through_a_link_in_place_of_a_chunk(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out, folder, other = tmp_path / "a.csv", tmp_path / "a.csv.partial", tmp_path / "other"
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    other.write_text("mine")
    (folder / "chunk-000002.safetensors").unlink()
    (folder / "chunk-000002.safetensors").symlink_to(other)
    with pytest.raises(RunError, match="leads out of it"):
        predict_to_file(run, images, out, device="cpu", batch_size=8)
    assert other.read_text() == "mine" and not out.exists()


def test_of_two_predictions_into_one_file_one_is_refused_and_names_the_other(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    refused, done = race(predict_when_refused, str(run.path), str(out))
    assert done == "done" and "a.csv.partial is in use by another process (predicting, process" in refused
    predict_many(str(run.path), str(tmp_path / "b.csv"), 40)
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]

"""Predictions in parts: from every kind of source, resumed, divided over machines; on a disk, over HTTP and in S3."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.data.readers.shards.test_load_shards import serve_shards
from tests.killing import run_forked
from tests.training.untrained_run import CALIBRATION, make_run

import labelgap as lg
from labelgap.core.errors import InputError, RunError
from labelgap.data import FileImages
from labelgap.data.writers.shards import ShardOptions, write_shards
from labelgap.inference import sources
from labelgap.inference.parts import Outcome, PartJob, PartsResult, predict_parts
from labelgap.training import Run
from labelgap.verification import accept_changes

COUNT, BAD = 23, "007.jpg"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> FileImages:
    """Photos, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("source") / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    names = [f"{number:03d}.jpg" for number in range(COUNT)]
    for name in names:
        Image.fromarray(random.integers(0, 256, (64, 80, 3), dtype=np.uint8)).save(folder / name)
    (folder / BAD).write_text("no picture")
    return FileImages(folder, names)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "IMAGES_PER_SHARD", 5)


def check(result: PartsResult, run: Run, photos: FileImages) -> None:
    """Compare parts with the local scores: every image once."""
    assert result.complete and result.total("rows") == COUNT and result.total("unreadable") == 1
    table = pa.concat_tables(
        pq.read_table(Path(result.address) / f"part-{number:06d}.parquet") for number in range(result.shards)
    )
    rows = {Path(row["image"]).name: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows == COUNT and [row for row in rows if rows[row]["error"]] == [BAD]
    good = [row for row, name in enumerate(photos.names) if name != BAD]
    scores = np.stack([rows[photos.names[row]]["score"] for row in good])
    np.testing.assert_allclose(scores, run.predict(photos.select(good), device="cpu"), rtol=0, atol=1e-6)
    assert rows[BAD]["score"] is None


def write_parquets(photos: FileImages, folder: Path) -> dict[str, Path]:
    """Write the photos as bytes, as addresses and as Hugging Face stores them, in files of eight."""
    paths = [photos.path(row) for row in range(COUNT)]
    contents = [path.read_bytes() for path in paths]
    tables = {
        "bytes": {"image": list(photos.names), "bytes": contents},
        "path": {"path": [os.fspath(path) for path in paths]},
        "struct": {"image": [{"bytes": each, "path": None} for each in contents], "id": list(photos.names)},
    }
    for kind, columns in tables.items():
        (folder / kind).mkdir(parents=True)
        for start in range(0, COUNT, 8):
            pq.write_table(pa.table(columns).slice(start, 8), folder / kind / f"{start:03d}.parquet")
    return {kind: folder / kind for kind in tables}


@pytest.mark.usefixtures("small_shards")
def test_every_kind_of_source_gives_what_predict_gives(run: Run, photos: FileImages, tmp_path: Path) -> None:
    predictor = lg.Predictor(run, device="cpu", batch_size=4)
    for kind, folder in {"files": photos.root, **write_parquets(photos, tmp_path / "parquet")}.items():
        result = predict_parts(predictor, str(folder), tmp_path / "out" / kind)
        check(result, run, photos)
        assert result.shards == (5 if kind == "files" else 3)
        manifest = json.loads((tmp_path / "out" / kind / "_manifest.json").read_text())
        assert sum(part["rows"] for part in manifest["parts"]) == COUNT and len(manifest["parts"]) == result.shards
    with serve_shards(photos.root) as server:
        check(predict_parts(predictor, server.url, tmp_path / "out" / "http"), run, photos)


@pytest.mark.usefixtures("small_shards")
def test_a_quoted_pattern_is_a_source(run: Run, photos: FileImages, tmp_path: Path) -> None:
    predictor, tables = lg.Predictor(run, device="cpu"), write_parquets(photos, tmp_path / "parquet")["bytes"]
    check(predict_parts(predictor, f"{photos.root}/*.jpg", tmp_path / "all"), run, photos)
    check(predict_parts(predictor, f"{photos.root.parent}/ph*", tmp_path / "folders"), run, photos)
    check(predict_parts(predictor, f"{tables}/*.parquet", tmp_path / "tables"), run, photos)
    some = predict_parts(predictor, f"{photos.root}/01?.jpg", tmp_path / "some")
    names = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "some").glob("part-*")))["image"]
    assert some.shards == 2 and names.to_pylist() == [f"{number:03d}.jpg" for number in range(10, 20)]
    with pytest.raises(InputError, match="no image"):
        predict_parts(predictor, f"{photos.root}/*.gif", tmp_path / "none")


def test_tar_files_keep_their_labels(run: Run, photos: FileImages, tmp_path: Path) -> None:
    (photos.root.parent / "tags.csv").write_text(
        "image,present,absent\n" + "".join(f"{name},cat;dog,owl\n" for name in photos.names if name != BAD)
    )
    data = lg.load(photos.root.parent / "tags.csv", images=photos.root, duplicates="off")
    write_shards(data, tmp_path / "tars", ShardOptions(bytes_per_shard=30_000))
    with serve_shards(tmp_path / "tars") as server:
        result = predict_parts(lg.Predictor(run, device="cpu"), server.url, tmp_path / "out")
    assert result.complete and result.shards > 2 and result.total("rows") == COUNT - 1
    table = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "out").glob("part-*")))
    assert table["present"].to_pylist() == [["cat", "dog"]] * (COUNT - 1)
    assert table["absent"].to_pylist() == [["owl"]] * (COUNT - 1)
    expected = run.predict(data.train.images, device="cpu")
    order = [data.train.images.names.index(name) for name in table["image"].to_pylist()]
    np.testing.assert_allclose(np.stack(table["score"].to_pylist()), expected[order], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("small_shards")
def test_a_killed_command_resumes_and_machines_share_the_shards(
    run: Run, photos: FileImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor, source, out = lg.Predictor(run, device="cpu"), str(photos.root), tmp_path / "out"
    compute, done = PartJob.compute, list[int]()

    def killed(job: PartJob, shard: sources.InputShard) -> Outcome:
        if shard.number == 2:
            signal.raise_signal(signal.SIGKILL)
        done.append(shard.number)
        return compute(job, shard)

    monkeypatch.setattr(PartJob, "compute", killed)
    assert run_forked(lambda: predict_parts(predictor, source, out)) == -signal.SIGKILL
    assert [path.name for path in sorted(out.glob("part-*"))] == ["part-000000.parquet", "part-000001.parquet"]

    def counted(job: PartJob, shard: sources.InputShard) -> Outcome:
        done.append(shard.number)
        return compute(job, shard)

    monkeypatch.setattr(PartJob, "compute", counted)
    (out / "part-000001.parquet").write_bytes(b"damaged")
    part = predict_parts(predictor, source, out, part=(0, 2))
    assert not part.complete and done == [2, 4] and not (out / "_manifest.json").exists()
    whole = predict_parts(predictor, source, out, part=(1, 2))
    assert done == [2, 4, 1, 3]
    check(whole, run, photos)
    assert predict_parts(predictor, source, out).computed == 0
    single = predict_parts(predictor, source, tmp_path / "single")
    assert [each.digest for each in single.summaries] == [each.digest for each in whole.summaries]
    other = lg.Predictor(make_run(tmp_path / "other", head="boostlu"), device="cpu")
    with pytest.raises(RunError, match="another run"):
        predict_parts(other, source, out)
    again = predict_parts(other, source, out, restart=True, part=(0, 2))
    assert again.computed == 3 and not again.complete and (out / "part-000001.parquet").exists()
    (out / "part-000001.parquet").write_bytes(b"of the other machine")
    assert predict_parts(other, source, out, restart=True, part=(0, 2)).computed == 3
    assert (out / "part-000001.parquet").read_bytes() == b"of the other machine"
    assert predict_parts(other, source, out, part=(1, 2)).complete


@pytest.mark.usefixtures("small_shards")
def test_verify_says_what_is_wrong_with_parts(
    run: Run, photos: FileImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    predictor = lg.Predictor(run, device="cpu")
    predict_parts(predictor, str(photos.root), whole, part=(0, 2))
    assert call("verify", str(whole)) == 0 and "all intact; not all shards are done" in capsys.readouterr().out
    predict_parts(predictor, str(photos.root), whole)
    assert call("verify", str(whole)) == 0 and "12 files, all intact" in capsys.readouterr().out

    def damaged(name: str, change: Callable[[bytes], bytes | None]) -> dict[str, str]:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(whole, out)
        content = change((whole / name).read_bytes())
        (out / name).unlink() if content is None else (out / name).write_bytes(content)
        assert call("verify", str(out)) == 2
        return {file.name: file.problem for file in lg.verify_run(out).problems}

    part, summary = "part-000001.parquet", "_part-000001.json"
    assert "digest" in damaged(part, lambda content: b"PAR2" + content[4:])[part]
    assert damaged(part, lambda content: None) == {part: "missing"}
    assert damaged(summary, lambda content: None) == {summary: "missing"}
    assert "_manifest.json" in damaged(summary, lambda content: content.replace(b'"rows": 5', b'"rows": 6'))[summary]
    assert "damaged" in damaged("_prediction.json", lambda content: content[:20])["_prediction.json"]
    assert "another" in damaged("_prediction.json", lambda content: content.replace(b"cat", b"cow"))["_manifest.json"]
    rows = damaged("_manifest.json", lambda content: content.replace(b'"rows": 3', b'"rows": 4'))
    assert [*rows] == ["_part-000004.json", "part-000004.parquet"] and "4 were written" in rows["part-000004.parquet"]
    with pytest.raises(RunError, match="on purpose"):
        accept_changes(out)


def test_what_cannot_be_done_is_said_before_or_at_the_end(run: Run, photos: FileImages, tmp_path: Path) -> None:
    predictor, folders = lg.Predictor(run, device="cpu"), write_parquets(photos, tmp_path)
    (folders["bytes"] / "008.parquet").write_bytes(b"PAR1 damaged")
    pq.write_table(pa.table({"label": [1]}), folders["bytes"] / "016.parquet")
    with pytest.raises(InputError, match="2 shards of 3") as caught:
        predict_parts(predictor, str(folders["bytes"]), tmp_path / "out")
    assert "008.parquet" in str(caught.value) and "none of the columns" in str(caught.value)
    assert (tmp_path / "out" / "part-000000.parquet").exists()
    (tmp_path / "empty").mkdir()
    for source, part in (("empty", (0, 1)), ("photos", (3, 3)), ("nothing", (0, 1))):
        with pytest.raises(InputError):
            predict_parts(predictor, str(tmp_path / source), tmp_path / "other", part=part)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="thesis"):
        predict_parts(predictor, str(folders["path"]), tmp_path / "taken")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket of an S3 server in this process."""
    server_module = pytest.importorskip("moto.server", reason="moto is not installed")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.usefixtures("small_shards")
def test_a_bucket_is_read_and_written(bucket: str, run: Run, photos: FileImages, tmp_path: Path) -> None:
    import s3fs

    s3fs.S3FileSystem().put(str(photos.root), f"{bucket}/photos", recursive=True)
    predictor = lg.Predictor(run, device="cpu")
    part = predict_parts(predictor, f"{bucket}/photos", f"{bucket}/out", part=(0, 2))
    assert not part.complete and part.computed == 3
    result = predict_parts(predictor, f"{bucket}/photos", f"{bucket}/out")
    assert result.computed == 2 and call("verify", f"{bucket}/out") == 0
    s3fs.S3FileSystem().get(f"{bucket}/out", str(tmp_path / "copy"), recursive=True)
    assert not [path for path in (tmp_path / "copy").iterdir() if path.name.endswith(".partial")]
    check(PartsResult(str(tmp_path / "copy"), result.shards, 5, result.summaries, 0), run, photos)


def test_the_command_writes_parts(tmp_path: Path, photos: FileImages, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = make_run(tmp_path / "run", calibration=CALIBRATION), tmp_path / "out"
    command = ["predict", str(run.path), str(photos.root), "--device", "cpu", "--out", str(out)]
    assert call(*command, "--shards", "0/1", "--features") == 0
    printed = capsys.readouterr()
    assert "1 of 1 done" in printed.out and BAD in printed.err
    table = pq.read_table(out / "part-000000.parquet")
    assert table["feature"].type.list_size == run.model.backbone.num_features
    assert call(*command, "--shards", "1/2", "--features") == 0
    none = capsys.readouterr().out
    assert "none of them is of 1/2" in none and "wrote" not in none
    for wrong in (["--shards", "2/2"], ["--shards", "x"], ["--engine", "rai"], ["--engine", "ray", "--workers", "0:2"]):
        assert call(*command, *wrong) == 2

"""Sources that somebody else made: what they may name, and what is wrong with them."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.data.readers.shards.sample_shards import write_sample
from tests.data.readers.shards.test_load_shards import serve_shards
from tests.training.untrained_run import make_run

import labelgap as lg
from labelgap.core.errors import InputError, RunError
from labelgap.data import addresses
from labelgap.data.parts import PartFolder, StoredParts
from labelgap.inference.parts import PartJob, predict_parts
from labelgap.inference.sources import list_shards
from labelgap.training import Run


def png(value: int = 0) -> bytes:
    encoded = io.BytesIO()
    Image.new("L", (20, 20), value).save(encoded, "PNG")
    return encoded.getvalue()


def predicted(run: Run, source: str, out: Path) -> list[dict[str, Any]]:
    """Return the rows of the parts of a source."""
    result = predict_parts(lg.Predictor(run, device="cpu"), source, out)
    assert result.complete
    return pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("part-*"))]).to_pylist()  # type: ignore[no-any-return]


REFUSED = [
    *("file://a.png", "ftp://127.0.0.1/a.png", "memory://a.png", "simplecache::https://127.0.0.1:9/a.png"),
    *("https://127.0.0.1:9/a.zip::memory://a", "../a.png", "b/../../a.png", "..", "local://a.png", "reference::a://b"),
]


def test_addresses_in_a_source_are_below_it_or_urls_of_known_kinds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "PAUSE_SECONDS", 0.0)
    (tmp_path / "a.png").write_bytes(png())
    folder = tmp_path / "source"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "c.png").write_bytes(png())
    inside, absolute = ["b/c.png", "b/../b/c.png"], str(tmp_path / "a.png")
    named = [*REFUSED, *inside, absolute, "https://127.0.0.1:9/a.png", None, "", "a\0b"]
    pq.write_table(pa.table({"path": named}), folder / "table.parquet")
    rows = predicted(run, str(folder), tmp_path / "local")
    errors = {address: row["error"] for address, row in zip(named, rows, strict=True)}
    assert [address for address in named if errors[address] is None] == [*inside, absolute]
    for address in REFUSED:
        assert "is refused" in errors[address], address
    assert "attempts failed" in errors["https://127.0.0.1:9/a.png"]
    with serve_shards(folder) as server:
        rows = predicted(run, f"{server.url}/table.parquet", tmp_path / "remote")
    found = {address: row["error"] for address, row in zip(named, rows, strict=True)}
    assert found["b/c.png"] is None and all("is refused" in found[address] for address in (*REFUSED, absolute))
    direct = lg.Predictor(run, device="cpu")({"path": ["memory://a.png", absolute]})
    assert "is refused" in direct["error"][0] and not direct["error"][1]
    for source in ("memory://a", "file://a"):
        with pytest.raises(InputError, match="is refused"):
            list_shards(source)


def test_empty_sources_names_that_are_no_text_and_damaged_members(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    pq.write_table(
        pa.table({"bytes": pa.array([], pa.binary()), "present": pa.array([], pa.list_(pa.string()))}),
        tmp_path / "a" / "0.parquet",
    )
    columns = {"bytes": pa.array([png(), None, png(9)], pa.large_binary()), "image": ["same", "same", None]}
    pq.write_table(pa.table(columns | {"present": [["cat", None], None, []]}), tmp_path / "a" / "1.parquet")
    rows = predicted(run, str(tmp_path / "a"), tmp_path / "out")
    assert [row["image"] for row in rows] == ["same", "same", "1.parquet:2"]
    assert [row["error"] is None for row in rows] == [True, False, True]
    stored = StoredParts(PartFolder(str(tmp_path / "out")))
    assert dict(stored.sizes) == {"part-000001.parquet": 2}
    pq.write_table(pa.table({"bytes": [png()]}), tmp_path / "a" / "2.parquet")
    predicted_parts = predict_parts(lg.Predictor(run, device="cpu"), str(tmp_path / "a"), tmp_path / "mixed")
    with pytest.raises(InputError, match="two kinds"):
        StoredParts(PartFolder(predicted_parts.address)).read("part-000002.parquet", "present")
    (tmp_path / "b").mkdir()
    name = os.fsdecode(b"\xff.png")
    (tmp_path / "b" / name).write_bytes(b"bad")
    (row,) = predicted(run, str(tmp_path / "b"), tmp_path / "names")
    assert row["image"] == "\\udcff.png" and row["error"]
    for number, label in enumerate((b"{", b'{"present": "cat"}', b'{"present": [1]}')):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for member, content in (("1.png", png()), ("1.json", label)):
                about = tarfile.TarInfo(member)
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
        if number:
            with pytest.raises(InputError, match=r"1\.json"):
                predicted(run, str(tmp_path / f"{number}.tar"), tmp_path / f"tar-{number}")
    cut = tmp_path / "cut.tar"
    cut.write_bytes((tmp_path / "1.tar").read_bytes()[:600])
    with pytest.raises(InputError, match=r"cut\.tar"):
        predicted(run, str(cut), tmp_path / "cut")


def test_a_shard_that_changed_is_computed_again_and_a_damaged_part_is_found(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(3):
        pq.write_table(pa.table({"bytes": [png(number)]}), tmp_path / "a" / f"{number}.parquet")
    predictor, out = lg.Predictor(run, device="cpu"), tmp_path / "out"
    assert predict_parts(predictor, str(tmp_path / "a"), out).computed == 3
    path = tmp_path / "a" / "1.parquet"
    pq.write_table(pa.table({"bytes": [png(200)]}), path)
    os.utime(path, (1, 1))
    assert predict_parts(predictor, str(tmp_path / "a"), out).computed == 1
    part = out / "part-000002.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    stored = StoredParts(PartFolder(str(out)))
    stored.read("part-000001.parquet", "image")
    with pytest.raises(RunError, match=r"part-000002\.parquet is damaged"):
        stored.read("part-000002.parquet", "image")
    (out / "_manifest.json").write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        StoredParts(PartFolder(str(out)))


def test_drivers_at_the_same_time_leave_whole_parts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(6):
        pq.write_table(pa.table({"bytes": [png(number)]}), tmp_path / "a" / f"{number}.parquet")
    failures: list[BaseException] = []

    def drive(part: tuple[int, int]) -> None:
        try:
            predict_parts(lg.Predictor(run, device="cpu"), str(tmp_path / "a"), tmp_path / "out", part=part)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(part,)) for part in ((0, 2), (1, 2), (0, 1), (0, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stored = StoredParts(PartFolder(str(tmp_path / "out")))
    assert len([stored.read(part, "image") for part in stored.sizes]) == 6
    assert not list((tmp_path / "out").glob(".*"))


def test_results_of_a_worker_of_another_run_do_not_count(run: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"bytes": [png()]}), tmp_path / "a.parquet")
    (shard,) = list_shards(str(tmp_path / "a.parquet"))
    predictor, other = lg.Predictor(run, device="cpu"), lg.Predictor(make_run(tmp_path / "b", head="boostlu"))
    predict_parts(predictor, shard.address, tmp_path / "out")
    PartJob(other, str(tmp_path / "out")).compute(shard)
    assert predict_parts(predictor, shard.address, tmp_path / "out").computed == 1


def test_a_digest_covers_all_that_decides_the_scores(tmp_path: Path) -> None:
    digests = set()
    for number, weight in enumerate((0.05, 0.5)):
        torch.manual_seed(0)
        run = make_run(tmp_path / str(number), head="attention")
        run.model.head.attention_weight = weight  # type: ignore[assignment]
        digests.add(lg.Predictor(run, device="cpu").digest)
    assert len(digests) == 2


def test_features_that_are_not_finite_are_errors_of_their_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", backbone="features", width=5)
    found = lg.Predictor(run, device="cpu")({"feature": np.array([[0.0] * 5, [np.nan] * 5])})
    assert [bool(error) for error in found["error"]] == [False, True]
    assert np.isnan(found["score"][1]).all() and np.isfinite(found["score"][0]).all()


def test_a_folder_of_shards_is_its_tars_and_not_the_table_beside_them(tmp_path: Path) -> None:
    write_sample(tmp_path / "photos", tmp_path / "shards")
    assert {Path(shard.address).suffix for shard in list_shards(str(tmp_path / "shards"))} == {".tar"}

"""The audit of predictions in parts gives what the audit of the same data on one machine gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.training.some_prior import teach, with_prior

import labelgap as lg
from labelgap.audit.candidates import CandidateLimits, TopCandidates, rank_candidates
from labelgap.audit.parts import PartTables, find_missing_in_parts
from labelgap.audit.scorers import StoredScorer
from labelgap.core.errors import InputError, RunError
from labelgap.data.parts import PartFolder, StoredParts
from labelgap.inference.parts import predict_parts
from labelgap.review.folder import open_review_folder

CLASSES = ("red", "green", "blue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A linear run on small photos whose colors are their labels, half of them known; and the same in Parquet."""
    made = tmp_path_factory.mktemp("audit")
    (made / "photos").mkdir()
    random, lines = np.random.default_rng(0), ["image,split,red,green,blue"]
    for number in range(90):
        present = random.random(3) < 0.4
        pixels = (np.where(present, 200, 40) + random.integers(0, 50, (24, 24, 3))).astype(np.uint8)
        Image.fromarray(pixels).save(made / "photos" / f"{number:03d}.png")
        known = random.random(3) < 0.5
        cells = ["" if not seen else str(int(value)) for seen, value in zip(known, present, strict=True)]
        lines.append(",".join([f"{number:03d}.png", "train" if number < 60 else "val", *cells]))
    (made / "tags.csv").write_text("\n".join(lines))
    data = lg.load(made / "tags.csv", images=made / "photos", duplicates="off")
    how: dict[str, Any] = {"backbone": "efficientnet-lite0", "size": 32, "protocol": "linear", "epochs": 3}
    lg.fit(data, "an", out=made / "run", device="cpu", quiet=True, trace="off", **how)
    (made / "table").mkdir()
    for split in data.splits:
        write_table(made / "table" / f"{split.name}.parquet", split)
    return made


def write_table(path: Path, split: lg.Split) -> None:
    codes = split.labels.to_dense()
    columns: dict[str, Any] = {"image": list(split.images.names)}
    columns["bytes"] = [Path(str(split.images.encoded(row))).read_bytes() for row in range(len(split))]  # type: ignore[attr-defined]
    for name, state in (("present", lg.PRESENT), ("absent", lg.ABSENT)):
        columns[name] = [[CLASSES[k] for k in np.flatnonzero(row == state)] for row in codes]
    pq.write_table(pa.table(columns), path)


def rows(audit: Any, kind: str) -> list[tuple[str, str, str]]:
    return [(row["image"], row["split"], row["class"]) for row in audit.of_kind(kind).to_pylist()]


@pytest.mark.parametrize("sources", [(), ("teacher",)])
def test_features_in_parts_give_the_candidates_and_the_estimate_of_the_local_audit(
    folder: Path, tmp_path: Path, sources: tuple[str, ...]
) -> None:
    run = lg.open_run(folder / "run")
    data = run.load_data()
    data = with_prior(data, **{name: teach(data) for name in sources}) if sources else data
    how: dict[str, Any] = {"data": data, "device": "cpu", "quiet": True, "per_class": 40}
    local = lg.find_missing(run, splits=["train", "val"], out=tmp_path / "local", **how)
    predictor = lg.Predictor(run, device="cpu", features=True)
    predict_parts(predictor, str(folder / "table"), tmp_path / "parts")
    found = find_missing_in_parts(run, str(tmp_path / "parts"), out=tmp_path / "found", **how)
    assert found.metadata["priors"] == pytest.approx(local.metadata["priors"], abs=1e-3)
    assert all(slope > 0.1 for slope in found.metadata["priors"].values())
    for kind in ("missing", "wrong", "random"):
        scores = [
            dict(zip(rows(each, kind), each.of_kind(kind)["score"].to_pylist(), strict=True)) for each in (local, found)
        ]
        assert scores[0].keys() == scores[1].keys() and (kind == "wrong" or len(scores[0]) > 3)
        np.testing.assert_allclose([scores[1][key] for key in scores[0]], list(scores[0].values()), rtol=0, atol=1e-4)
    for name in ("unknown_total", "unknown_per_class", "images", "trained_images", "folds", "splits", "likely"):
        assert found.metadata[name] == local.metadata[name]
    assert found.estimate is not None and local.estimate is not None
    assert abs(found.estimate["missing"] - local.estimate["missing"]) <= 1
    assert open_review_folder(tmp_path / "found").data.classes == CLASSES


def test_scores_in_parts_rank_as_the_same_scores_in_memory(folder: Path) -> None:
    run = lg.open_run(folder / "run")
    predict_parts(lg.Predictor(run, device="cpu"), str(folder / "table"), folder / "scores")
    found = find_missing_in_parts(run, str(folder / "scores"), out=folder / "by-scores", per_class=20, limit=30)
    data = run.load_data()
    tables = {split.name: split.labels for split in data.splits}
    stored = {split.name: run.logits(split.images, device="cpu") for split in data.splits}
    expected = rank_candidates(tables, [StoredScorer(stored)], CandidateLimits(20, 30))
    np.testing.assert_allclose(found.of_kind("missing")["score"], expected.missing.scores, rtol=0, atol=1e-4)
    assert found.metadata["trained_images"] == 60 and found.estimate is None and expected.estimate is not None
    with pytest.raises(InputError, match="_manifest"):
        find_missing_in_parts(run, str(folder / "table"))


def test_images_that_are_no_data_of_the_run_are_reviewed_by_their_addresses(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    for number in range(12):
        pixels = np.full((24, 24, 3), 20 * number, dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "bucket" / f"new-{number}.png")
    command = [str(folder / "run"), "--device", "cpu"]
    assert (
        call(
            "predict",
            command[0],
            str(tmp_path / "bucket"),
            *command[1:],
            "--shards",
            "0/1",
            "--out",
            str(tmp_path / "p"),
        )
        == 0
    )
    assert call("audit", *command, "--predictions", str(tmp_path / "p")) == 2  # needs a folder of its own
    out = tmp_path / "candidates"
    assert call("audit", *command, "--predictions", str(tmp_path / "p"), "--out", str(out)) == 0
    data = open_review_folder(out).data
    assert data.classes == CLASSES and len(data.train) == 12
    part = pq.read_table(tmp_path / "p" / "part-000000.parquet").to_pylist()
    said = {
        (row["image"], name): value for row in part for name, value in zip(CLASSES, row["probability"], strict=True)
    }
    for row in pq.read_table(out / "candidates.parquet").to_pylist():
        assert row["score"] == pytest.approx(said[Path(row["image"]).name, row["class"]], abs=1e-4)
    assert data.train.images[3][0, 0, 0] == 20 * int(data.train.images.names[3].split("-")[-1].removesuffix(".png"))
    other = lg.fit(
        lg.load("digits", train=20, val=5, test=5), "an", out=tmp_path / "other", epochs=1, device="cpu", quiet=True
    )
    with pytest.raises(RunError, match="another run"):
        PartTables(StoredParts(PartFolder(str(tmp_path / "p"))), other, None)


def test_the_best_of_parts_together_are_the_best_of_all() -> None:
    random = np.random.default_rng(0)
    keys = np.round(random.normal(size=(600, 7)), 1).astype(np.float32)
    for per_class, limit in ((40, 60), (5, 1000), (300, 90)):
        whole, merged = (TopCandidates(7, per_class, limit) for _ in range(2))
        whole.update(keys)
        for start in range(0, 600, 150):
            part = TopCandidates(7, per_class, limit)
            part.update(keys[start : start + 150], start)
            merged.add(part.ranked())
        one, other = whole.ranked(), merged.ranked()
        assert np.array_equal(one.rows, other.rows) and np.array_equal(one.columns, other.columns)

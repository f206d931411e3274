"""Pictures of data in a report: what is said of them, and what must not get into them."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import ArrayImages, FileImages
from labelgap.labels import PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.label_model import PlattCalibration
from labelgap.reporting.sections.classes import class_table
from labelgap.reporting.sections.examples import _prediction, disagreement_examples, random_examples, thumbnail_data_url
from labelgap.studies import Study
from labelgap.training import Run


def opened(address: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(address.partition("base64,")[2])))


def test_a_small_grey_picture_keeps_its_pixels() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    table = LabelTable.from_dense([[1]], ["cat"])
    assert np.array_equal(
        np.asarray(opened(thumbnail_data_url(Split("test", ArrayImages(pixels), table), 0))), pixels[0]
    )


def test_every_class_called_present_or_missed_is_shown_with_its_verdict(
    run_of: Callable[..., Run], data: Dataset
) -> None:
    run = run_of()
    assert data.test is not None
    shown = random_examples(run, data, 5)
    stored = pq.read_table(run.path / "predictions.parquet").to_pylist()
    scores = {row["image"]: row for row in stored if row["split"] == "test"}
    truth = dict(zip(data.test.labels.images, data.test.evaluation_labels.to_dense(), strict=True))
    assert len(shown) == 5
    for example in shown:
        said = {chip["name"]: chip["outcome"] for chip in example["predictions"][0]["classes"]}
        for number, name in enumerate(data.classes):
            called, known = scores[example["image"]][f"score.{name}"] >= 0.5, truth[example["image"]][number] == PRESENT
            expected = {(True, True): "right", (True, False): "wrong", (False, True): "missed"}.get((called, known))
            assert said.get(name) == expected


def test_a_class_of_which_nobody_knows_is_neither_right_nor_wrong(run_of: Callable[..., Run], data: Dataset) -> None:
    run = run_of()
    assert data.test is not None
    nothing = LabelTable.from_dense(np.full(data.test.labels.shape, UNKNOWN), data.classes, data.test.labels.images)
    blind = replace(data, test=Split("test", data.test.images, nothing))
    shown = [example["predictions"][0]["classes"] for example in random_examples(run, blind)]
    verdicts = {chip["outcome"] for chips in shown for chip in chips}
    assert verdicts == {"unknown"}


def test_where_nothing_is_called_present_the_nearest_class_is_told(data: Dataset) -> None:
    scores, cuts = np.array([0.1, 0.349, 0.2, 0.0], dtype=np.float32), np.full(4, 0.5)
    answer = _prediction(scores, cuts, np.array([PRESENT, 0, 0, 0], dtype=np.int8), data.classes)
    assert answer["closest"] == "dog score 0.34"
    assert [(chip["name"], chip["outcome"]) for chip in answer["classes"]] == [("cat", "missed")]


def test_a_chip_shows_the_calibrated_probability_and_calls_anything_else_a_score() -> None:
    scores, cuts = np.array([0.9, 0.8, 0.005, 1.0], dtype=np.float32), np.array([0.5, 0.5, 0.001, 0.5])
    line = PlattCalibration(2.0, (-3.0, 0.0, 0.5, 0.0), (True, False, True, True), 50, 50, 1.0)
    answer = _prediction(scores, cuts, np.full(4, UNKNOWN, dtype=np.int8), ("cat", "dog", "owl", "yak"), line)
    chance = 1 / (1 + math.exp(-(2 * math.log(0.9 / 0.1) - 3)))
    expected = {"yak": "99 %", "cat": f"{int(100 * chance)} %", "dog": "score 0.80", "owl": "< 1 %"}
    assert {chip["name"]: chip["value"] for chip in answer["classes"]} == expected
    assert [chip["name"] for chip in answer["classes"]] == ["yak", "cat", "dog", "owl"]


def test_a_threshold_stands_on_the_scale_of_the_probabilities(run_of: Callable[..., Run], data: Dataset) -> None:
    run = run_of()
    columns = class_table(run, data).columns()
    assert ("threshold_probability" in columns) == (run.calibration is not None)
    known = tuple(number != 1 for number in range(len(data.classes)))
    line = PlattCalibration(2.0, (-1.0,) * len(known), known, 50, 50, 1.0)
    run.metrics["calibration"] = {**vars(line), "offset": list(line.offset), "method": "platt"}
    found, cuts = class_table(run, data).columns()["threshold_probability"], run.thresholds.values
    expected = 1 / (1 + np.exp(-(2 * np.log(cuts / (1 - cuts)) - 1)))
    assert np.isnan(found[1]) and np.allclose(found[list(known)], expected[list(known)], atol=1e-6)


def test_images_that_cannot_be_read_or_were_not_predicted_are_left_out(
    run_of: Callable[..., Run], data: Dataset, tmp_path: Path
) -> None:
    run = run_of()
    assert data.test is not None
    lost = replace(data.test, images=FileImages(tmp_path, data.test.labels.images))
    assert random_examples(run, replace(data, test=lost)) == []
    table = LabelTable.from_dense(data.test.labels.to_dense(), data.classes)
    assert random_examples(run, replace(data, test=Split("test", data.test.images, table))) == []
    assert disagreement_examples({"only": run}, data) == []


def test_contrasts_are_where_the_methods_disagree_about_the_most_classes(study: Study, data: Dataset) -> None:
    runs = {member.label: run for member, run in study.runs if not member.extra_labels}
    stored = {label: pq.read_table(run.path / "predictions.parquet").to_pylist() for label, run in runs.items()}
    called = {
        label: {row["image"]: {c for c in data.classes if row[f"score.{c}"] >= 0.5} for row in rows}
        for label, rows in stored.items()
    }
    assert data.test is not None
    apart = {image: len(called["an"][image] ^ called["ll"][image]) for image in data.test.labels.images}
    shown = disagreement_examples(runs, data, 3)
    assert [apart[example["image"]] for example in shown] == sorted(apart.values(), reverse=True)[:3]
    assert [answer["label"] for answer in shown[0]["predictions"]] == ["an", "ll"]

"""Images and their labels in a report: what is said of them, and how a method changed them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from tests.reporting.conftest import RunMaker, codes_of_train

from labelgap.core.errors import InputError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FileImages
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.metrics.label_model import PlattCalibration
from labelgap.reporting import LabelChanges, label_changes, write_report
from labelgap.reporting.sections.classes import class_table
from labelgap.reporting.sections.examples import (
    _prediction,
    disagreement_examples,
    random_examples,
)
from labelgap.reporting.sections.label_changes import label_change_figure
from labelgap.studies import Study
from labelgap.training import Run


def test_every_class_is_shown_with_its_verdict(run_of: RunMaker, data: Dataset) -> None:
    run = run_of()
    shown = random_examples(run, data, 5)
    stored = pq.read_table(run.path / "predictions.parquet").to_pylist()
    scores = {row["image"]: row for row in stored if row["split"] == "test"}
    truth = dict(zip(data.split("test").labels.images, data.split("test").evaluation_labels.to_dense(), strict=True))
    assert len(shown) == 5
    for example in shown:
        said = {chip["name"]: chip["outcome"] for chip in example["predictions"][0]["classes"]}
        for number, name in enumerate(data.classes):
            called, known = scores[example["image"]][f"score.{name}"] >= 0.5, truth[example["image"]][number] == PRESENT
            expected = {(True, True): "right", (True, False): "wrong", (False, True): "missed"}.get((called, known))
            assert said.get(name) == expected


def test_a_class_of_which_nobody_knows_is_neither_right_nor_wrong(run_of: RunMaker, data: Dataset) -> None:
    run = run_of()
    nothing = LabelTable.from_dense(
        np.full(data.split("test").labels.shape, UNKNOWN), data.classes, data.split("test").labels.images
    )
    blind = replace(data, test=Split("test", data.split("test").images, nothing))
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


def test_a_threshold_stands_on_the_scale_of_the_probabilities(run_of: RunMaker, data: Dataset) -> None:
    run = run_of()
    columns = class_table(run, data).columns()
    assert ("threshold_probability" in columns) == (run.calibration is not None)
    known = tuple(number != 1 for number in range(len(data.classes)))
    line = PlattCalibration(2.0, (-1.0,) * len(known), known, 50, 50, 1.0)
    run.metrics["calibration"] = {**vars(line), "offset": list(line.offset), "method": "platt"}
    found, cuts = class_table(run, data).columns()["threshold_probability"], run.thresholds.values
    expected = 1 / (1 + np.exp(-(2 * np.log(cuts / (1 - cuts)) - 1)))
    assert np.isnan(found[1]) and np.allclose(found[list(known)], expected[list(known)], atol=1e-6)


def test_images_that_cannot_be_read_are_left_out(run_of: RunMaker, data: Dataset, tmp_path: Path) -> None:
    run = run_of()
    lost = replace(data.split("test"), images=FileImages(tmp_path, data.split("test").labels.images))
    assert random_examples(run, replace(data, test=lost)) == []
    table = LabelTable.from_dense(data.split("test").labels.to_dense(), data.classes)
    assert random_examples(run, replace(data, test=Split("test", data.split("test").images, table))) == []
    assert disagreement_examples({"only": run}, data) == []


def test_contrasts_are_where_the_methods_disagree_about_the_most_classes(study: Study, data: Dataset) -> None:
    runs = {member.label: run for member, run in study.runs if not member.extra_labels}
    stored = {label: pq.read_table(run.path / "predictions.parquet").to_pylist() for label, run in runs.items()}
    called = {
        label: {row["image"]: {c for c in data.classes if row[f"score.{c}"] >= 0.5} for row in rows}
        for label, rows in stored.items()
    }
    apart = {image: len(called["an"][image] ^ called["ll"][image]) for image in data.split("test").labels.images}
    shown = disagreement_examples(runs, data, 3)
    assert [apart[example["image"]] for example in shown] == sorted(apart.values(), reverse=True)[:3]
    assert [answer["label"] for answer in shown[0]["predictions"]] == ["an", "ll"]


def modify(run: Run, flags: dict[tuple[int, int], list[int]]) -> Run:
    """Replace what a trace says was modified: (row, column) → epochs."""
    trace = run.trace
    trace["modified"][:] = False
    for (row, column), epochs in flags.items():
        entry = (trace["row"] == row) & (trace["column"] == column)
        for epoch in epochs:
            trace["modified"][epoch - 1, entry] = True
    return run


def hidden_labels(data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of two unknown labels of different images: truly present, and truly absent."""
    unknown, truth = data.train.labels.to_dense() == UNKNOWN, codes_of_train(data)
    present, absent = (np.argwhere(unknown & (truth == state)) for state in (PRESENT, ABSENT))
    return present[0], absent[absent[:, 0] != present[0, 0]][0]


def lines(changes: LabelChanges) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    """Each label's given state, what it was taken for, truth and first epoch."""
    changed = changes.states != UNKNOWN
    first_epoch = np.where(changed.any(axis=0), changed.argmax(axis=0) + 1, 0)
    columns = (changes.observed, changes.taken_for, changes.truth, first_epoch)
    places = zip(changes.rows.tolist(), changes.columns.tolist(), strict=True)
    return dict(zip(places, zip(*(each.tolist() for each in columns), strict=True), strict=True))


@pytest.mark.parametrize("method", ["ll-r", "ll-ct"])
def test_a_change_is_told_with_its_first_epoch(run_of: RunMaker, data: Dataset, method: str) -> None:
    right, wrong = hidden_labels(data)
    run = modify(run_of(method=method), {tuple(right): [2, 4, 5], tuple(wrong): [6]})
    changes = label_changes(run, data)
    assert changes is not None and changes.rejected is (method == "ll-r")
    assert (changes.total, changes.judged, changes.right, changes.complete) == (2, 2, 1, True)
    run.config = run.config.model_copy(update={"trace": 500})
    sampled = label_changes(run, data)
    assert sampled is not None and not sampled.complete
    found = lines(changes)
    assert found[tuple(right)] == (UNKNOWN, PRESENT, PRESENT, 2)
    assert found[tuple(wrong)] == (UNKNOWN, PRESENT, ABSENT, 6)
    assert next(iter(found)) == tuple(right), "an image that was chosen for a right change comes first"
    place = list(found).index(tuple(right))
    assert (changes.states[:, place] == PRESENT).tolist() == [False, True, False, True, True, False]
    for row in {right[0], wrong[0]}:
        truly = {(row, column) for column in np.flatnonzero(codes_of_train(data)[row] == PRESENT)}
        assert truly <= set(found), "given and truly present labels of the image are listed, too"
    label_change_figure(changes, width=5.0).canvas.draw()


def test_permanent_corrections_come_from_the_revisions(run_of: RunMaker, data: Dataset) -> None:
    (row, column), (other, absent) = hidden_labels(data)
    names, classes = data.train.labels.images, data.classes
    for method, first in (("ll-cp", 3), ("em-apl", 4)):
        run = run_of(method=method)
        made = [
            Revision(names[row], classes[column], PRESENT, method, epoch=3),
            Revision(names[other], classes[absent], ABSENT, method, epoch=5, target=0.25),
            Revision(names[other], classes[absent], PRESENT, "review"),
        ]
        Revisions(made).to_parquet(run.path / "revisions.parquet")
        changes = label_changes(run, data)
        assert changes is not None and (changes.total, changes.right) == (2, 2)
        assert lines(changes)[row, column] == (UNKNOWN, PRESENT, PRESENT, first), "APL's is made at the end of epoch 3"
        assert lines(changes)[other, absent][1:3] == (ABSENT, ABSENT)
        assert (changes.states[first - 1 :, list(lines(changes)).index((row, column))] == PRESENT).all()


def test_without_the_truth_nothing_is_judged(run_of: RunMaker, data: Dataset) -> None:
    right, wrong = hidden_labels(data)
    run = modify(run_of(method="ll-ct"), {tuple(right): [2], tuple(wrong): [3]})
    bare = replace(data, train=replace(data.train, truth=None))
    changes = label_changes(run, bare)
    assert changes is not None and (changes.total, changes.judged) == (2, 0)
    assert {tuple(right), tuple(wrong)} <= set(lines(changes))
    assert lines(changes)[tuple(right)] == (UNKNOWN, PRESENT, UNKNOWN, 2)
    codes = codes_of_train(data)
    codes[tuple(wrong)] = UNKNOWN
    partly = replace(
        data.train, truth=LabelTable.from_dense(codes, classes=data.classes, images=data.train.labels.images)
    )
    some = label_changes(run, replace(data, train=partly))
    assert some is not None and (some.total, some.judged, some.right) == (2, 1, 1), (
        "a change of unknown truth is no error"
    )
    turned = replace(data, train=data.train.select(np.arange(len(data.train))[::-1].copy()))
    assert label_changes(run, turned) is None, "rows of other images"
    assert label_changes(modify(run, {}), data) is None
    assert label_changes(run_of(method="an"), data) is None


def test_named_images_are_shown_with_or_without_a_change(run_of: RunMaker, data: Dataset) -> None:
    right, _ = hidden_labels(data)
    run, names = modify(run_of(method="ll-ct"), {tuple(right): [2]}), data.train.labels.images
    given = np.flatnonzero((data.train.labels.to_dense() == PRESENT).any(axis=1))
    rows = [int(given[given != right[0]][0]), int(right[0])]
    chosen = [names[row] for row in rows]
    changes = label_changes(run, data, images=chosen)
    assert changes is not None and list(dict.fromkeys(changes.rows.tolist())) == rows
    assert set(changes.taken_for[changes.rows == rows[0]].tolist()) == {UNKNOWN}
    with pytest.raises(InputError, match="training image"):
        label_changes(run, data, images=["nothing.jpg"])
    page = write_report(run, data=data, label_changes=chosen[:1]).read_text(encoding="utf-8")
    shown = page.partition('<ul class="changes">')[2].partition("</ul>\n")[0]
    assert chosen[0] in shown and chosen[1] not in shown

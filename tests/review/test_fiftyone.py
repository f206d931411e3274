"""A live FiftyOne data set: labels in and out, candidates as a view, decisions back.

FiftyOne needs a MongoDB server; where it brings none, FIFTYONE_DATABASE_URI names one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import labelgap as lg
from labelgap.audit.candidates import Audit
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, decisions, fiftyone_view, import_decisions

pytestmark = pytest.mark.filterwarnings("ignore")  # its own libraries warn
fiftyone = pytest.importorskip("fiftyone", reason="needs FiftyOne")


@pytest.fixture(autouse=True)
def _database() -> None:
    try:
        fiftyone.list_datasets()
    except Exception as error:
        pytest.skip(f"needs FiftyOne's database: {error}")


@pytest.fixture
def live(photos_review: Review, _database: None) -> Iterator[Any]:
    dataset = photos_review.folder.data.to_fiftyone()
    yield dataset
    dataset.delete()


def test_labels_go_to_fiftyone_and_come_back(photos_review: Review, live: Any) -> None:
    data = photos_review.folder.data
    back = lg.load(live, duplicates="off")
    assert [split.name for split in back.splits] == [split.name for split in data.splits]
    for split in back.splits:
        assert split.labels == data.split(split.name).labels


def test_fields_of_other_kinds_are_read(tmp_path: Path) -> None:
    for name in "ab":
        Image.effect_noise((30, 20), 60).save(tmp_path / f"{name}.jpg")
    box = fiftyone.Detection(label="dog", bounding_box=[0, 0, 1, 1])
    samples = [fiftyone.Sample(filepath=str(tmp_path / f"{name}.jpg"), tags=["validation"]) for name in "ab"]
    samples[0].tags = ["train", "good"]
    samples[0]["objects"] = fiftyone.Detections(detections=[box, box])
    samples[1]["kind"] = fiftyone.Classification(label="cat")
    dataset = fiftyone.Dataset()
    dataset.add_samples(samples)
    dataset.default_classes = ["dog", "owl"]
    with pytest.raises(lg.InputError, match="objects, kind"):
        lg.load(dataset)
    with pytest.raises(lg.InputError, match="'other'"):
        lg.load(dataset, field="other")
    data = lg.load(dataset, field="objects", unlisted="absent", duplicates="off")
    assert data.train.labels.to_dense().tolist() == [[PRESENT, ABSENT]]
    assert data.val is not None and data.val.labels.to_dense().tolist() == [[UNKNOWN, UNKNOWN]], "it was not labeled"
    dataset.delete()


def test_candidates_are_a_view_and_tags_are_decisions(photos_review: Review, live: Any) -> None:
    audit = Audit(photos_review.path / "candidates.parquet")
    view = fiftyone_view(live, audit)
    missing = audit.of_kind("missing").to_pydict()
    assert len(view) == len({*missing["image"]})
    probabilities = view.values("candidate_probability")
    assert probabilities == sorted(probabilities, reverse=True) and probabilities[0] == max(missing["score"])
    first, second = view[:2]
    first["candidates"].classifications[0].tags = ["present"]
    second["candidates"].classifications[0].tags = ["absent"]
    names = [sample["candidates"].classifications[0].label for sample in (first, second)]
    for sample in (first, second):
        sample.save()
    came = import_decisions(photos_review, "fiftyone", live, "ann")
    assert (came.images, came.decided, came.withdrawn) == (2, 2, 0)
    stored = {(made.class_name, made.value) for made in decisions(photos_review.path)}
    assert stored == {(names[0], PRESENT), (names[1], ABSENT)}
    assert import_decisions(photos_review, "fiftyone", live, "ann").decided == 0

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from labelgap.core.errors import InputError
from labelgap.data.dataset import Boxes, Dataset, Split
from labelgap.data.images import FEATURES, FileImages
from labelgap.inference import localization
from labelgap.inference.localization import map_maximum, mean_class_rate, pointing_game, pointing_hits
from labelgap.labels import LabelTable
from labelgap.training import Run
from labelgap.training.fit import fit


@pytest.fixture(scope="module")
def run_and_split(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Split]:
    """A run on two photos of 80 × 40 pixels, with three classes."""
    tmp_path = tmp_path_factory.mktemp("photos")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (80, 40), (9, 9, 9)).save(tmp_path / name)
    images = FileImages(tmp_path, ["a.png", "b.png"])
    labels = LabelTable.from_dense([[1, 0, 1], [1, 1, 0]], images=["a.png", "b.png"])
    data = Dataset("two", Split("train", images, labels), Split("val", images, labels))
    settings = {"epochs": 1, "batch_size": 2, "trace": "off", "device": "cpu", "quiet": True, "size": 32}
    run = fit(data, "an", backbone="tiny-cnn", protocol="end-to-end", out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    return run, data.train


def test_the_maximum_is_mapped_back_and_hit_rates_are_averaged(
    run_and_split: tuple[Run, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, split = run_and_split
    maps = torch.zeros(2, 3, 4, 4)
    maps[:, 0, 1, 2] = maps[:, 1, 3, 0] = maps[:, 2, 0, 3] = 1.0
    # an eighth of 32 pixels a cell; 80 × 40: cell (1, 2) is x 40…60, y 10…20, cell (3, 0) x 0…20, y 30…40
    monkeypatch.setattr(localization, "class_activation_maps", lambda model, images: maps[: len(images)])
    corners = np.array([[41, 11, 59, 19], [0, 0, 79, 5], [0, 31, 19, 39], [41, 11, 59, 19]], dtype=np.float64)
    boxes = Boxes(np.array([0, 1, 1, 0]), np.array([0, 0, 1, 2]), corners, np.array([False, False, False, True]))
    crowd = pointing_game(run, replace(split, boxes=boxes), device="cpu")
    assert crowd.class_counts.tolist() == [2, 1, 1] and crowd.class_hits.tolist() == [1, 1, 0], (
        "present: every one counts"
    )
    split = replace(split, boxes=boxes, labels=LabelTable.from_dense([[1, 0, 0], [1, 1, 0]], images=["a.png", "b.png"]))
    game = pointing_game(run, split, device="cpu")
    # class 0: hit and miss; class 1: hit; class 2: absent, as VOC takes a class with difficult objects alone
    assert game.class_counts.tolist() == [2, 1, 0] and game.class_hits.tolist() == [1, 1, 0]
    assert game.hit_rate == pytest.approx((0.5 + 1.0) / 2) and (game.images, game.available) == (2, 2)
    assert np.allclose(game.points[0], (19.5 * 2.5 - 0.5, 11.5 * 1.25 - 0.5)), "of pixels 19 and 20, 11 and 12"
    assert np.allclose(map_maximum(maps[0, 0].numpy(), 32, (80, 40)), game.points[0])
    samples = [pointing_game(run, split, images=1, device="cpu") for _ in range(2)]
    assert [each.images for each in samples] == [1, 1] and samples[0].available == 2
    assert np.array_equal(samples[0].rows, samples[1].rows)
    assert pointing_game(run, split, tolerance=9, device="cpu").class_hits.tolist() == [2, 1, 0]


def test_of_equal_maxima_the_top_left_counts(run_and_split: tuple[Run, Split], monkeypatch: pytest.MonkeyPatch) -> None:
    run, split = run_and_split
    monkeypatch.setattr(localization, "class_activation_maps", lambda model, images: torch.zeros(2, 3, 4, 4))
    boxes = Boxes(np.array([0, 0, 1]), np.array([1, 1, 1]), np.array([[50.0, 20, 79, 39], [0, 0, 2, 2], [1, 1, 9, 9]]))
    game = pointing_game(run, replace(split, boxes=boxes), device="cpu")
    assert np.allclose(game.points, [[0.75, 0.125]] * 2)
    assert game.hits.tolist() == [True, False], "one of two boxes is enough"


def test_what_has_no_maps_or_no_boxes_is_refused(run_and_split: tuple[Run, Split]) -> None:
    run, split = run_and_split
    with pytest.raises(InputError, match="no boxes"):
        pointing_game(run, split)
    boxes = Boxes(np.array([0]), np.array([0]), np.array([[0.0, 0, 9, 9]]))
    for change in ({"transform": "crop"}, {"backbone": FEATURES}):
        other = Run(run.path)
        other.config = run.config.model_copy(update=change)
        with pytest.raises(InputError):
            pointing_game(other, replace(split, boxes=boxes))
    renamed = LabelTable.from_dense(split.labels.to_dense(), ["x", "y", "z"], split.labels.images)
    with pytest.raises(InputError, match="other classes"):
        pointing_game(run, replace(split, boxes=boxes, labels=renamed))


def test_a_point_on_an_edge_is_inside_and_classes_count_alike() -> None:
    corners = [[0, 0, 4, 4], [10, 10, 12, 12], [5, 5, 6, 6]]
    assert pointing_hits([[4, 0]], [0], corners[:1]).tolist() == [True]
    assert pointing_hits([[4.1, 0]], [0], corners[:1]).tolist() == [False]
    assert pointing_hits([[7, 8]], [0], corners[:1], tolerance=5).tolist() == [True], "3 and 4 pixels away"
    assert pointing_hits([[7, 8]], [0], corners[:1], tolerance=4.9).tolist() == [False]
    assert pointing_hits([[11, 11], [5, 5], [0, 0]], [0, 0, 1], corners).tolist() == [True, True, False]
    assert mean_class_rate([1, 1, 0], [4, 1, 0]) == 0.625
    with pytest.raises(InputError, match="no box"):
        mean_class_rate([0], [0])

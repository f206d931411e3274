"""Where the network looks: hit rates and maps of a network trained here; what has none says why, or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.reporting.conftest import RunMaker

from labelgap.data import load
from labelgap.data.dataset import Dataset
from labelgap.data.images import FEATURES
from labelgap.labels import PRESENT
from labelgap.reporting import activation_examples, activation_figure, pointing_figure, pointing_game, write_report
from labelgap.reporting.page import Page
from labelgap.reporting.sections.localization import localization_section
from labelgap.studies import Study, StudyMember
from labelgap.training import Run
from labelgap.training.fit import fit


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits", train=8, val=4, test=16)


@pytest.fixture(scope="module")
def run(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {"epochs": 1, "batch_size": 8, "trace": "all", "device": "cpu", "quiet": True}
    out = tmp_path_factory.mktemp("study") / "first"
    return fit(digits, "an", backbone="tiny-cnn", protocol="end-to-end", out=out, **settings)  # type: ignore[arg-type]


def test_examples_are_of_many_classes(run: Run, digits: Dataset) -> None:
    boxes = digits.split("test").boxes
    assert boxes is not None
    examples = activation_examples({"a": run, "b": run}, digits, device="cpu")
    game = pointing_game(run, digits, device="cpu")
    names = [example.class_name for example in examples]
    assert len(set(names)) == len(names) == 6 and len({example.row for example in examples}) == 6
    for example in examples:
        column = digits.classes.index(example.class_name)
        (place,) = np.flatnonzero((game.rows == example.row) & (game.columns == column))
        assert np.allclose(example.points["a"], game.points[place]) and example.hits["b"] == game.hits[place]
        own = (boxes.rows == example.row) & (boxes.classes == column)
        assert np.array_equal(example.boxes, boxes.corners[own]) and example.size == (64, 64)
    activation_figure(examples, width=5.0).canvas.draw()
    pointing_figure({"a": game}, width=5.0).canvas.draw()
    bare = activation_examples({"a": run}, replace(digits.split("test"), boxes=None), device="cpu")
    for example in bare:
        assert not example.hits and not len(example.boxes)
        assert digits.split("test").labels.to_dense()[example.row, digits.classes.index(example.class_name)] == PRESENT


def test_pages_show_numbers_and_maps_and_without_images_only_numbers(run: Run, digits: Dataset) -> None:
    rate = f"{100 * pointing_game(run, digits, device='cpu').hit_rate:.1f}"
    page = write_report(run, data=digits).read_text()
    assert "16 test images with boxes" in page
    assert f"Hit rate: <b>{rate} %</b>" in page and page.count('href="#map-') == 6
    assert "data:image/" not in write_report(run, data=digits, images=False).read_text()
    study = Study(run.path.parent, "two", [StudyMember(label, run.path.name) for label in ("x", "y")])
    page = write_report(study, data=digits).read_text()
    assert page.count('href="#map-') == 12 and page.count(f"<td>{rate}</td>") == 2
    alone = replace(digits, test=replace(digits.split("test"), boxes=None))
    page = write_report(run, data=alone).read_text()
    assert "Pointing game" not in page and page.count('href="#map-') == 6


def test_what_has_no_maps_says_why(run_of: RunMaker, data: Dataset, run: Run, digits: Dataset) -> None:
    page = Page(digits)
    assert localization_section({"a": run_of()}, Page(data)) == localization_section({"a": run}, Page()) == ""
    other = Run(run.path)
    other.config = run.config.model_copy(update={"backbone": FEATURES})
    assert "trained on features" in localization_section({"a": other}, page) and not page.figures

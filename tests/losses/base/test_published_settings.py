"""The papers' settings per data set."""

from __future__ import annotations

import pytest

import labelgap as lg
from labelgap.core.errors import UnknownNameError
from labelgap.losses.base.registry import PAPER_DATASETS, defaults, published_options


@pytest.mark.parametrize(
    ("method", "dataset", "settings"),
    [
        ("em", "voc2012", {"alpha": 0.2}),
        ("em", "cub", {"alpha": 0.01}),
        ("em-apl", "nuswide", {"alpha": 0.1, "beta": 0.2, "warmup": 4}),
        ("ll-r", "coco2014", {"delta_rel": 0.4}),
        ("ll-cp", "voc2012", {"delta_rel": 0.1}),
        ("role", "cub", {"expected_positives": 31.4}),
        ("asl", "cub", {"gamma_neg": 1.0, "margin": 0.0}),
        ("an", "voc2012", {}),
    ],
)
def test_the_settings_are_those_the_papers_state(method: str, dataset: str, settings: dict[str, float]) -> None:
    assert published_options(method, dataset) == settings
    assert settings.items() <= defaults(method, dataset).items()


@pytest.mark.parametrize("dataset", [None, *PAPER_DATASETS, "digits", "voc2007", "coco2017"])
def test_every_method_can_be_made_from_its_defaults(dataset: str | None) -> None:
    for method in lg.methods():
        lg.loss(method, **defaults(method, dataset))


def test_sister_sets_share_their_settings() -> None:
    assert defaults("em", "voc2007") == defaults("em", "voc2012")
    assert published_options("role", "coco2017") == {"expected_positives": 2.9}


def test_an_unknown_data_set_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'voc2012'"):
        defaults("em", "voc12")

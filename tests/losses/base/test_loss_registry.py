"""Losses by name: those of this package, registered ones, those of plug-ins, and classes by their import path."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import labelgap as lg
from labelgap.core import registry as core_registry
from labelgap.core.errors import InputError, RunError, UnknownNameError
from labelgap.core.trust import class_path
from labelgap.losses import ElementwiseLoss, Paper, describe_method, loss_options, method_options
from labelgap.losses.base import registry
from labelgap.losses.base.registry import PAPER_DATASETS, defaults, published_options


class Squares(ElementwiseLoss):
    """Scaled powers of the logits; for tests.

    More text.
    """

    def __init__(self, scale: float = 0.5, *, power: int = 2) -> None:
        super().__init__()
        self.scale, self.power = scale, power

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.scale * logits**self.power


@pytest.fixture
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test registers is gone after it."""
    lg.methods()
    monkeypatch.setattr(registry._METHODS, "_entries", dict(registry._METHODS._entries))
    yield
    registry._registry.cache_clear()


@pytest.mark.usefixtures("clean_registry")
def test_a_registered_method_is_found_by_name_with_its_options() -> None:
    before = lg.methods()
    paper = Paper("Euclid", "Elements", "Alexandria", -300)
    lg.register_method("squares", Squares, paper=paper)
    assert lg.methods() == [*before, "squares"]
    entry = describe_method("squares")
    assert entry.summary == "Scaled powers of the logits; for tests."
    assert (entry.reference, entry.citation) == ("Euclid -300", 'Euclid, "Elements", Alexandria -300')
    assert method_options("squares") == {"scale": 0.5, "power": 2}
    loss_fn = lg.loss("squares", scale=2.0)
    assert loss_fn.name == "squares" and loss_fn(torch.ones(1, 2), torch.zeros(1, 2)).item() == 2.0
    with pytest.raises(UnknownNameError, match="'scale'"):
        lg.loss("squares", scala=1)


@pytest.mark.usefixtures("clean_registry")
def test_a_name_that_is_taken_and_a_class_that_is_no_loss_are_refused() -> None:
    with pytest.raises(InputError, match="'an'"):
        lg.register_method("an", Squares)
    for wrong in (torch.nn.BCELoss, Squares()):
        with pytest.raises(InputError, match="'mine'"):
            lg.register_method("mine", wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("clean_registry")
def test_entry_points_of_installed_packages_are_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(torch)("labelgap_test_plugin")
    module.Squares = Squares  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "labelgap_test_plugin", module)
    found = EntryPoints([EntryPoint("plugin-squares", "labelgap_test_plugin:Squares", registry.ENTRY_POINTS)])
    monkeypatch.setattr(core_registry, "entry_points", lambda group: found.select(group=group))
    registry._registry.cache_clear()
    assert lg.methods()[-1] == "plugin-squares"
    assert isinstance(lg.loss("plugin-squares"), Squares)
    assert describe_method("plugin-squares").reference == ""


def test_a_class_that_was_given_is_found_by_its_import_path() -> None:
    name = class_path(Squares)
    loss_fn = lg.loss(name, power=4)
    assert isinstance(loss_fn, Squares) and loss_fn.power == 4 and loss_fn.name == name
    with pytest.raises(RunError):
        lg.loss("somebody.elses.package:Loss")


def test_options_are_read_from_attributes_of_the_same_names() -> None:
    assert loss_options(Squares(3.0)) == {"scale": 3.0, "power": 2}
    assert loss_options(lg.losses.LargeLossCorrection(delta_rel=0.4)) == {
        **{"delta_rel": 0.4, "base": "unknown"},
        **{"eps": 0.0, "reduction": "mean"},
    }

    class Forgetful(Squares):
        def __init__(self, size: int = 1) -> None:
            super().__init__()

    with pytest.raises(InputError, match=r"Forgetful .*self\.size = size"):
        loss_options(Forgetful())


@pytest.mark.parametrize("name", lg.methods())
def test_every_loss_can_be_made_again_from_its_options(name: str) -> None:
    needed: dict[str, Any] = {"expected_positives": 1.5} if name in ("epr", "role") else {}
    options = loss_options(lg.loss(name, **needed))
    assert loss_options(lg.loss(name, **options)) == options
    assert set(options) == set(method_options(name))


@pytest.mark.parametrize("name", ["epr", "role"])
def test_the_number_of_positives_comes_from_fully_labeled_images(name: str) -> None:
    table = lg.LabelTable.from_dense([[1, -1, -1]])
    labels = np.tile([[1, 0, 0], [1, 1, 0]], (50, 1))
    val, nothing = lg.LabelTable.from_dense(labels[:2]), lg.LabelTable.from_dense(0 * labels)
    assert lg.loss(name).initialize_from(table, val) == {"expected_positives": 1.5}
    for full, found in ((99, {}), (100, {"expected_positives": 1.5})):
        partly = lg.LabelTable.from_dense([*labels[:full], [1, -1, -1]])
        assert lg.loss(name).initialize_from(table, partly) == found
    assert lg.loss(name).initialize_from(table, nothing) == lg.loss(name).initialize_from(table, None) == {}
    assert lg.loss(name, expected_positives=2.0).initialize_from(table, val) == {}
    made = lg.loss(name)
    made.prepare(val)
    assert loss_options(made)["expected_positives"] == 1.5
    with pytest.raises(InputError, match="expected_positives"):
        lg.loss(name).prepare(table)


@pytest.mark.parametrize(
    ("method", "dataset", "settings"),
    [
        ("em", "voc2012", {"alpha": 0.2}),
        ("em", "voc2007", {"alpha": 0.2}),
        ("em-apl", "nuswide", {"alpha": 0.1, "beta": 0.2, "warmup": 4}),
        ("ll-r", "coco2014", {"delta_rel": 0.4}),
        ("role", "coco2017", {"expected_positives": 2.9}),
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
    with pytest.raises(UnknownNameError, match="'voc2012'"):
        defaults("em", "voc12")

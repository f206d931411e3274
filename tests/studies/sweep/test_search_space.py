"""What is searched: the papers' spaces, as METHODS lists them, and what a user writes instead."""

from __future__ import annotations

import pytest

from labelgap.core.errors import InputError
from labelgap.losses import loss, method_options, methods
from labelgap.studies.sweep.search_space import (
    Parameter,
    head_space,
    paper_space,
    parse_parameter,
    parse_search,
    search_space,
)
from labelgap.training.auto import STRENGTHS

COLE = {"lr": (1e-2, 1e-3, 1e-4, 1e-5), "batch_size": (8, 16)}
QUARTERS = tuple(
    sorted({round(part * decade, 9) for decade in (1e-4, 1e-3, 1e-2) for part in (0.1, 0.25, 0.5, 0.75, 1)})
)
SHARES = (0.01, 0.02, 0.1, 0.2, 0.4, 0.9)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("an", COLE),
        ("role", COLE),
        ("two-way", COLE),
        ("gr", COLE),
        ("ll-ct", {"lr": QUARTERS, "delta_rel": (0.1, 0.2, 0.3, 0.4, 0.5)}),
        ("ll-cp-abs", {"lr": QUARTERS, "r0": (1, 1.5, 2), "delta_abs": (0.1, 0.15, 0.2)}),
        ("em-apl", {**COLE, "alpha": SHARES, "beta": SHARES}),
        ("asl", {**COLE, "gamma_neg": (1, 2), "margin": (0, 0.05, 0.2)}),
    ],
)
def test_the_default_is_the_space_of_the_paper(method: str, expected: dict[str, tuple[float, ...]]) -> None:
    assert {each.name: each.choices for each in paper_space(method)} == expected


def test_every_method_has_a_space_of_values_that_it_takes() -> None:
    for name in methods():
        for parameter in paper_space(name):
            if parameter.name in method_options(name):
                assert all(loss(name, **{parameter.name: value}) for value in parameter.choices)


def test_a_linear_head_searches_its_weight_decay_and_newton_has_no_rate() -> None:
    decay, standardize = head_space("an", 0.02, newton=True)
    assert (decay.name, decay.low, decay.high, decay.log) == ("weight_decay", 1e-5, 0.1, True)
    unit = 2048 / (5000 * 20)
    strengths = [strength * unit for strength in STRENGTHS]
    assert all(each in head_space("an", unit, newton=True)[0] for each in strengths), "all that `auto` compares"
    assert standardize.choices == (True, False)
    assert [each.name for each in head_space("em", 1.0, newton=False)] == [
        *("lr", "batch_size", "alpha", "weight_decay", "standardize")
    ]


def space_of(method: str, given: dict[str, str], fixed: dict[str, float]) -> tuple[Parameter, ...]:
    return search_space(parse_search(method, given, fixed), fixed, paper_space(method))


def test_a_range_or_values_take_the_place_of_the_papers_and_what_is_fixed_is_not_searched() -> None:
    space = space_of("em", {"lr": "1e-5..1e-2:log", "batch_size": "4..64"}, {"alpha": 0.1})
    rate, batch = space
    assert (rate.low, rate.high, rate.log, rate.integer) == (1e-5, 1e-2, True, False)
    assert (batch.low, batch.high, batch.log, batch.integer, batch.size) == (4, 64, False, True, 61)
    assert [str(each) for each in space] == ["lr=1e-05..0.01:log", "batch_size=4..64"]
    assert all(parse_parameter(each.name, str(each).partition("=")[2]) == each for each in space)


@pytest.mark.parametrize(
    ("given", "fixed", "message"),
    [
        ({"delta_rell": "0.1,0.2"}, {}, "Did you mean 'delta_rel'"),
        ({"learning_rate": "0.1,0.2"}, {}, "option of 'll-r' or setting of training"),
        ({"delta_rel": "-1..0.5"}, {}, "delta_rel"),
        ({"lr": "1e-2..1e-5"}, {}, "is empty"),
        ({"lr": ""}, {}, "is empty"),
        ({"lr": []}, {}, "is empty"),
        ({"lr": "0..1:log"}, {}, "begins above 0"),
        ({"lr": "a..b"}, {}, "1e-5..1e-2:log"),
        ({"lr": "1..2:linear"}, {}, "1e-5..1e-2:log"),
        ({"lr": "1,nan"}, {}, "finite"),
        ({"lr": "1e-3,1e-4"}, {"lr": 0.1}, "searched as well"),
        ({"lr": "1e-3"}, {"delta_rel": 0.2}, "nothing is left to search"),
        ({}, {"lr": 1e-3, "delta_rel": 0.2}, "nothing is left to search"),
    ],
)
def test_wrong_names_and_empty_spaces_are_refused(given: dict[str, str], fixed: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        space_of("ll-r", given, fixed)

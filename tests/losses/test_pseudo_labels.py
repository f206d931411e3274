"""`em-apl`: its rounds, how many labels each takes, and that a target stays what it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.losses.batches import set_heads
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revisions
from labelgap.losses import entropy as zhou2022
from labelgap.losses import loss
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.entropy import AsymmetricPseudoLabeling, lowest_per_class

IMAGES, CLASSES, EPOCHS, WARMUP = 37, 5, 7, 3


def a_table() -> LabelTable:
    """Classes of which more and more is known; of the last one nothing but an absent."""
    random = np.random.default_rng(0)
    labels = random.choice([PRESENT, ABSENT], (IMAGES, CLASSES), p=[0.3, 0.7]).astype(np.int8)
    labels[random.random((IMAGES, CLASSES)) > np.array([0.05, 0.2, 0.5, 0.9, 0.0])] = UNKNOWN
    labels[0, 4] = ABSENT
    return LabelTable.from_dense(labels)


TABLE = a_table()


def apl(table: LabelTable = TABLE, heads: tuple[int, ...] = (), **options: Any) -> AsymmetricPseudoLabeling:
    made = loss("em-apl", **{"warmup": WARMUP, **options})
    assert isinstance(made, AsymmetricPseudoLabeling)
    set_heads(made, heads)
    made.prepare(table, epochs=EPOCHS)
    return made


def logits_after(epoch: int, images: int = IMAGES) -> NDArray[np.float32]:
    return np.random.default_rng(epoch).normal(0, 3, (images, CLASSES)).astype(np.float32)


def scores_of(logits: NDArray[np.float32]) -> TrainingScores:
    """In batches and in any order, as a loop gives them."""

    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(logits.shape[-2], generator=torch.Generator().manual_seed(0))
        for index in torch.split(order, 8):
            yield index, torch.from_numpy(logits)[..., index, :]

    return scores


def nobody() -> Iterator[tuple[Tensor, Tensor]]:
    raise AssertionError("the network was asked for scores that nobody needs")


def simulated(
    targets: NDArray[np.float64], logits: NDArray[np.float32], negatives: Fraction, positives: Fraction, hard: bool
) -> dict[tuple[int, int], tuple[int, float]]:
    """One round, class by class, with sorted lists: what each place becomes, and its target."""
    labels, became = TABLE.to_dense(), {}
    for column in range(CLASSES):
        unknown = sum(labels[row, column] == UNKNOWN for row in range(IMAGES))
        free = [row for row in range(IMAGES) if labels[row, column] == UNKNOWN and math.isnan(targets[row, column])]
        free.sort(key=lambda row: logits[row, column])
        low = free[: math.floor(negatives * unknown / (EPOCHS - WARMUP))]
        rest = [row for row in reversed(free) if row not in low]
        high = rest[: math.floor(positives * unknown / (EPOCHS - WARMUP))]
        for rows, state in ((low, ABSENT), (high, PRESENT)):
            for row in rows:
                p = 1 / (1 + math.exp(-float(logits[row, column])))
                became[row, column] = state, float(state) if hard else p
    return became


SHARES = (("theta", 0.9), ("positive_share", 0.0))
ABLATIONS: list[dict[str, Any]] = [
    {},
    {"hard": True},
    {"theta": 0.0, "positive_share": 0.2},
    {"theta": 0.9, "positive_share": 0.1},
    {"theta": 0.7, "positive_share": 0.3, "hard": True},
]


@pytest.mark.parametrize("options", ABLATIONS)
def test_every_round_takes_what_sorted_lists_take(options: dict[str, Any]) -> None:
    made, expected = apl(**options), np.full((IMAGES, CLASSES), np.nan)
    negatives, positives = (Fraction(str(options.get(key, default))) for key, default in SHARES)
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        logits = logits_after(epoch)
        became, due = {}, WARMUP <= epoch < EPOCHS
        if due:
            became = simulated(expected, logits, negatives, positives, options.get("hard", False))
        for place, (_, target) in became.items():
            expected[place] = target
        revisions = made.end_epoch(scores_of(logits) if due else nobody)
        check_told(revisions, became, epoch, options.get("hard", False))
        np.testing.assert_allclose(made.targets.numpy(), expected, rtol=1e-6, equal_nan=True)
    labels = TABLE.to_dense()
    assert np.isnan(expected[labels != UNKNOWN]).all()
    taken, unknown = (~np.isnan(expected)).sum(axis=0), (labels == UNKNOWN).sum(axis=0)
    assert all(taken[c] <= (negatives + positives) * int(unknown[c]) for c in range(CLASSES))
    assert taken.sum() > 0


def check_told(revisions: Revisions, became: dict[tuple[int, int], tuple[int, float]], epoch: int, hard: bool) -> None:
    """The revisions say what became of which label, when, and who says so."""
    told = {(int(item.image), int(item.class_name)): item for item in revisions}
    assert set(told) == set(became) and len(told) == len(revisions)
    for place, (state, target) in became.items():
        said = told[place]
        assert (said.value, said.source, said.epoch) == (state, "em-apl", epoch)
        if hard:
            assert said.target is None
        else:
            assert said.target == pytest.approx(target, rel=1e-5)


def test_targets_are_frozen() -> None:
    made = apl()
    made.set_epoch(WARMUP)
    made.end_epoch(scores_of(logits_after(0)))
    first = made.targets.clone()
    for epoch in range(WARMUP + 1, EPOCHS):
        made.set_epoch(epoch)
        made.end_epoch(scores_of(logits_after(epoch)))
    kept = ~first.isnan()
    assert kept.any() and torch.equal(made.targets[kept], first[kept])
    assert (~made.targets.isnan()).sum() > kept.sum()


def test_a_round_changes_what_an_unknown_label_costs_and_nothing_else() -> None:
    made = apl(beta=0.4, alpha=0.1)
    made.set_epoch(WARMUP)
    made.end_epoch(scores_of(logits_after(WARMUP)))
    made.set_epoch(WARMUP + 1)
    logits, labels, index = torch.randn(IMAGES, CLASSES).double(), TABLE.batch(range(IMAGES)), torch.arange(IMAGES)
    made.reduction = "none"
    costs, em = made(logits, labels, index=index), loss("em", alpha=0.1, reduction="none")(logits, labels)
    chosen = made.modified(logits, labels, index)
    assert torch.equal(chosen, ~made.targets.isnan())
    assert torch.equal(costs[~chosen], em[~chosen])
    target = made.targets.double()
    cross = torch.nn.functional.binary_cross_entropy_with_logits(logits, target.nan_to_num(), reduction="none")
    torch.testing.assert_close(costs[chosen], 0.4 * cross[chosen])


@pytest.mark.parametrize("theta", [0.9, 0.7, 0.29, 0.57, 0.1, 1.0, 1 / 3])
@pytest.mark.parametrize("warmup", [1, 4, 6])
def test_counts_are_exact_for_the_decimal_that_was_written(theta: float, warmup: int) -> None:
    """A class of every unknown count up to 120."""
    table = LabelTable.from_dense(np.where(np.tri(120, 121), UNKNOWN, ABSENT))
    unknown = table.counts().unknown.tolist()
    assert sorted(unknown) == list(range(121))
    expected = [math.floor(Fraction(str(theta)) * count / (EPOCHS - warmup)) for count in unknown]
    made = apl(table, theta=theta, warmup=warmup)
    assert made.round_sizes(made.theta).tolist() == expected
    for dtype in (torch.float64, torch.float32):
        if theta != 1 / 3:
            several = apl(table, heads=(2,), theta=torch.tensor([theta, 0.5], dtype=dtype), warmup=warmup)
            assert several.round_sizes(several.theta)[0].tolist() == expected


def test_floating_point_would_have_counted_less() -> None:
    assert math.floor(0.29 * 100 / 1) == 28
    table = LabelTable.from_dense(np.full((100, 1), UNKNOWN))
    made = apl(table, theta=0.29, warmup=EPOCHS - 1)
    assert made.round_sizes(made.theta).tolist() == [29]


def test_every_head_has_its_own_rounds() -> None:
    options: dict[str, list[Any]] = {"theta": [0.9, 0.5, 0.3], "warmup": [1, 3, 6], "positive_share": [0.1, 0.0, 0.7]}
    heads: dict[str, Any] = {key: torch.tensor(values) for key, values in options.items()}
    together = apl(heads=(3,), **heads)
    alone = [apl(**{key: values[head] for key, values in options.items()}) for head in range(3)]
    for epoch in range(1, EPOCHS + 1):
        logits = np.stack([logits_after(epoch), logits_after(epoch + 50), -logits_after(epoch)])
        together.set_epoch(epoch)
        assert len(together.end_epoch(scores_of(logits) if epoch < EPOCHS else nobody)) == 0
        for head, made in enumerate(alone):
            made.set_epoch(epoch)
            made.end_epoch(scores_of(logits[head]))
            torch.testing.assert_close(together.targets[head], made.targets, rtol=1e-6, atol=0, equal_nan=True)
    assert (~together.targets.isnan()).any(dim=-1).any(dim=-1).all()


def test_scores_may_be_narrow_floats() -> None:
    made = apl()
    made.set_epoch(WARMUP)
    logits = torch.from_numpy(logits_after(1))
    made.end_epoch(lambda: iter([(torch.arange(IMAGES), logits.bfloat16())]))
    assert made.targets.dtype == torch.float32
    assert (~made.targets.isnan()).any()


def test_likelihoods_that_are_all_the_same_are_taken_from_the_top() -> None:
    made = apl()
    made.set_epoch(WARMUP)
    revisions = made.end_epoch(scores_of(np.zeros((IMAGES, CLASSES), dtype=np.float32)))
    labels = TABLE.to_dense()
    for column in range(CLASSES):
        unknown = np.flatnonzero(labels[:, column] == UNKNOWN)
        first = unknown[: math.floor(Fraction(9, 10) * len(unknown) / (EPOCHS - WARMUP))]
        assert [int(item.image) for item in revisions if item.class_name == str(column)] == first.tolist()


def test_a_round_begun_too_late_is_refused() -> None:
    for warmup in (EPOCHS, EPOCHS + 1, torch.tensor([1, EPOCHS])):
        with pytest.raises(InputError, match=rf"'em-apl' begins its rounds after .* epochs and {EPOCHS} are trained"):
            apl(warmup=warmup, heads=(2,) if isinstance(warmup, Tensor) else ())


def test_more_than_everything_is_refused() -> None:
    with pytest.raises(InputError, match="together they are at most 1"):
        apl(theta=0.9, positive_share=0.2)


def test_with_nothing_unknown_it_says_so_and_does_nothing() -> None:
    table = LabelTable.from_dense([[1, 0], [0, 1], [1, 1]])
    made = loss("em-apl")
    with pytest.warns(UserWarning, match="em-apl: nothing is unknown, so there is nothing to pseudo-label"):
        made.prepare(table)
    made.set_epoch(5)
    logits = torch.randn(3, 2)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, table.batch(range(3)).float())
    torch.testing.assert_close(made(logits, table.batch(range(3)), index=torch.arange(3)), bce)
    assert len(made.end_epoch(nobody)) == 0


def test_a_class_without_a_positive_takes_part() -> None:
    assert TABLE.counts().present[4] == 0
    made = apl()
    made.set_epoch(WARMUP)
    told = [item for item in made.end_epoch(scores_of(logits_after(1))) if item.class_name == "4"]
    assert len(told) == math.floor(Fraction(9, 10) * 36 / 4)


def test_the_lowest_of_each_class_are_marked_and_of_equal_ones_the_first() -> None:
    random = np.random.default_rng(1)
    values, allowed = random.integers(0, 6, (2, 9, 7)), random.random((2, 9, 7)) < 0.6
    counts = random.integers(0, 9, (2, 7))
    found = lowest_per_class(torch.from_numpy(values).double(), torch.from_numpy(allowed), torch.from_numpy(counts))
    for head in range(2):
        for column in range(7):
            rows = sorted(np.flatnonzero(allowed[head, :, column]), key=lambda row: values[head, row, column])
            chosen = sorted(rows[: counts[head, column]])
            assert found[head, :, column].nonzero().flatten().tolist() == chosen


@pytest.mark.parametrize("heads", [(), (2,)])
def test_a_large_table_has_the_same_rounds_in_half_precision(
    heads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = apl(heads=heads, theta=0.6, positive_share=0.3)
    monkeypatch.setattr("labelgap.losses.base.state.MAX_DENSE_ENTRIES", 1)
    monkeypatch.setattr(zhou2022, "ENTRIES_PER_SORT", 2 * IMAGES)
    large = apl(heads=heads, theta=0.6, positive_share=0.3)
    assert 2 * large.state_bytes == dense.state_bytes and "half precision" in large.state_form
    for epoch in (WARMUP, WARMUP + 1):
        logits = np.stack([logits_after(epoch + head) for head in range(2)]).astype(np.float16).astype(np.float32)
        told = []
        for made, limit in ((dense, 10**9), (large, 1)):
            monkeypatch.setattr("labelgap.losses.base.state.MAX_DENSE_ENTRIES", limit)
            made.set_epoch(epoch)
            found = made.end_epoch(scores_of(logits if heads else logits[0]))
            told.append(made.revisions_of((1,)) if heads else found)
        torch.testing.assert_close(large.targets, dense.targets.half(), equal_nan=True)
        places = [{(item.image, item.class_name) for item in items if item.value == PRESENT} for items in told]
        assert places[0] == places[1] and len(told[1]) == len(places[1]) > 0

"""`em-apl` and `curriculum`: which labels a round takes, how many, and what it makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.losses import batches
from tests.losses.batches import set_heads
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import entropy, loss
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.base.state import PseudoLabelRounds
from labelgap.losses.entropy import AsymmetricPseudoLabeling

IMAGES, CLASSES, EPOCHS, WARMUP = 37, 5, 7, 3
Places = dict[tuple[int, int], tuple[int, float]]
"""What each place becomes, and its soft target."""


def a_table() -> LabelTable:
    """Classes of which more and more is known; of the last one nothing but an absent."""
    random = np.random.default_rng(0)
    labels = random.choice([PRESENT, ABSENT], (IMAGES, CLASSES), p=[0.3, 0.7]).astype(np.int8)
    labels[random.random((IMAGES, CLASSES)) > np.array([0.05, 0.2, 0.5, 0.9, 0.0])] = UNKNOWN
    labels[0, 4] = ABSENT
    return LabelTable.from_dense(labels)


TABLE = a_table()
LABELS = TABLE.to_dense()
FREE = [(int(row), int(column)) for row, column in np.argwhere(LABELS == UNKNOWN)]


def method(name: str, table: LabelTable = TABLE, heads: tuple[int, ...] = (), **options: Any) -> PseudoLabelRounds:
    made = loss(name, **{"warmup": WARMUP, **options})
    assert isinstance(made, PseudoLabelRounds)
    set_heads(made, heads)
    made.prepare(table, epochs=EPOCHS)
    return made


def apl(*arguments: Any, **options: Any) -> AsymmetricPseudoLabeling:
    made = method("em-apl", *arguments, **options)
    assert isinstance(made, AsymmetricPseudoLabeling)
    return made


def logits_after(epoch: int) -> NDArray[np.float32]:
    return np.random.default_rng(epoch).normal(0, 3, (IMAGES, CLASSES)).astype(np.float32)


def scores_of(logits: NDArray[np.float32]) -> TrainingScores:
    """In any order, as a loop gives them."""
    return batches.scores_of(torch.from_numpy(logits), np.random.default_rng(0).permutation(IMAGES).tolist(), 8)


def nobody() -> Iterator[tuple[Tensor, Tensor]]:
    raise AssertionError("the network was asked for scores that nobody needs")


def apl_round(
    logits: dict[tuple[int, int], float], *, theta: float = 0.9, positive_share: float = 0.0, hard: bool = False
) -> Places:
    """A round of em-apl, class by class, with sorted lists."""
    became: Places = {}
    for column in range(CLASSES):
        unknown = int((LABELS[:, column] == UNKNOWN).sum())
        free = sorted((place for place in logits if place[1] == column), key=logits.__getitem__)
        low = free[: math.floor(Fraction(str(theta)) * unknown / (EPOCHS - WARMUP))]
        high = [place for place in reversed(free) if place not in low]
        high = high[: math.floor(Fraction(str(positive_share)) * unknown / (EPOCHS - WARMUP))]
        for places, state in ((low, ABSENT), (high, PRESENT)):
            became |= {place: (state, state if hard else 1 / (1 + math.exp(-logits[place]))) for place in places}
    return became


def curriculum_round(
    logits: dict[tuple[int, int], float], *, strategy: str = "threshold", tau: float = 0.95, theta: float = 0.1
) -> Places:
    """A round of curriculum, with a dictionary of what is still unknown."""
    if strategy == "proportion":
        surest = sorted(logits, key=lambda place: abs(logits[place]), reverse=True)
        chosen = surest[: math.floor(Fraction(str(theta)) * len(FREE))]
        return {place: (state, state) for place in chosen for state in [PRESENT if logits[place] > 0 else ABSENT]}
    probabilities = {place: 1 / (1 + math.exp(-x)) for place, x in logits.items()}
    added: Places = {place: (PRESENT, PRESENT) for place, p in probabilities.items() if p >= tau}
    if strategy == "threshold":
        added |= {place: (ABSENT, ABSENT) for place, p in probabilities.items() if p <= 1 - tau}
    return added


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("em-apl", {}),
        ("em-apl", {"theta": 0.0, "positive_share": 0.2}),
        ("em-apl", {"theta": 0.7, "positive_share": 0.3, "hard": True}),
        ("curriculum", {}),
        ("curriculum", {"strategy": "positives", "tau": 0.7}),
        ("curriculum", {"strategy": "positives", "tau": 1.0}),
        ("curriculum", {"strategy": "proportion", "theta": 0.29}),
        ("curriculum", {"strategy": "proportion", "theta": 1.0}),
    ],
)
def test_every_round_takes_what_lists_take_and_tells_it(name: str, options: dict[str, Any]) -> None:
    made, soft = method(name, **options), name == "em-apl" and not options.get("hard")
    (kept,) = (value for key, value in made.state_dict().items() if key in ("targets", "added"))
    expected = np.full((IMAGES, CLASSES), np.nan)
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        logits, due = logits_after(epoch), WARMUP <= epoch < EPOCHS
        free = {place: float(logits[place]) for place in FREE if math.isnan(expected[place])}
        became = (
            {} if not due else apl_round(free, **options) if name == "em-apl" else curriculum_round(free, **options)
        )
        for place, (_, target) in became.items():
            expected[place] = target
        revisions = made.end_epoch(scores_of(logits) if due else nobody)
        told = {(int(item.image), int(item.class_name)): (item.value, item.target) for item in revisions}
        assert {place: value for place, (value, _) in told.items()} == {place: s for place, (s, _) in became.items()}
        for place, (_, soft_target) in told.items():
            assert soft_target == (pytest.approx(became[place][1], rel=1e-5) if soft else None)
        assert {(item.source, item.epoch) for item in revisions} <= {(name, epoch)} and len(revisions) == len(told)
        values = kept.numpy() if name == "em-apl" else np.where(kept.numpy() == UNKNOWN, np.nan, kept.numpy())
        np.testing.assert_allclose(values, expected, rtol=1e-6, equal_nan=True)
    assert (~np.isnan(expected)).any() == (options.get("tau") != 1.0)
    chosen = made.modified(torch.zeros(IMAGES, CLASSES), TABLE.batch(range(IMAGES)), torch.arange(IMAGES))
    np.testing.assert_array_equal(chosen.numpy(), ~np.isnan(expected))


@pytest.mark.parametrize("theta", [0.9, 0.29, 0.57, 1 / 3])
@pytest.mark.parametrize("warmup", [1, 6])
def test_counts_are_exact_for_the_decimal_that_was_written(theta: float, warmup: int) -> None:
    """A class of every unknown count up to 120: in floating point 29 % of 100 are 28."""
    table = LabelTable.from_dense(np.where(np.tri(120, 121), UNKNOWN, ABSENT))
    expected = [math.floor(Fraction(str(theta)) * count / (EPOCHS - warmup)) for count in table.counts().unknown]
    made = apl(table, theta=theta, warmup=warmup)
    assert made.round_sizes(made.theta).tolist() == expected
    several = apl(table, heads=(2,), theta=torch.tensor([theta, 0.5], dtype=torch.float64), warmup=warmup)
    assert several.round_sizes(several.theta)[0].tolist() == expected
    table = LabelTable.from_dense([[PRESENT], [ABSENT], *[[UNKNOWN]] * 100])
    chosen = method("curriculum", table, strategy="proportion", theta=theta, warmup=1)
    found = chosen.end_epoch(partial(iter, [(torch.arange(102), torch.linspace(-3, 3, 102)[:, None])]))
    assert len(found) == math.floor(Fraction(str(theta)) * 100)


HEADS: dict[str, list[dict[str, Any]]] = {
    "em-apl": [{"theta": [0.9, 0.5, 0.3], "warmup": [1, 3, 6], "positive_share": [0.1, 0.0, 0.7]}],
    "curriculum": [
        {"strategy": kind, "tau": [0.9, 0.6, 0.7], "theta": [0.1, 0.3, 0.29], "warmup": [1, 2, 5]}
        for kind in ("threshold", "positives", "proportion")
    ],
}


@pytest.mark.parametrize(("name", "options"), [(name, each) for name, every in HEADS.items() for each in every])
def test_every_head_has_its_own_rounds(name: str, options: dict[str, Any]) -> None:
    stacked: dict[str, Any] = {
        key: torch.tensor(each) if isinstance(each, list) else each for key, each in options.items()
    }
    together = method(name, heads=(3,), **stacked)
    own = [{key: each[n] if isinstance(each, list) else each for key, each in options.items()} for n in range(3)]
    alone = [method(name, **each) for each in own]
    for epoch in range(1, EPOCHS + 1):
        logits = np.stack([logits_after(epoch), logits_after(epoch + 50), -logits_after(epoch)])
        together.set_epoch(epoch)
        assert len(together.end_epoch(scores_of(logits) if epoch < EPOCHS else nobody)) == 0
        for head, made in enumerate(alone):
            made.set_epoch(epoch)
            made.end_epoch(scores_of(logits[head]))
            for key in ("targets", "added"):
                if hasattr(made, key):
                    mine, theirs = getattr(together, key)[head], getattr(made, key)
                    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0, equal_nan=True)


def test_a_round_begun_too_late_is_refused_or_warned_of() -> None:
    with pytest.raises(InputError, match="em-apl"):
        apl(heads=(2,), warmup=torch.tensor([1, EPOCHS]))
    with pytest.raises(InputError, match="positive_share"):
        apl(theta=0.9, positive_share=0.2)
    with pytest.warns(UserWarning, match=f"curriculum.* {EPOCHS} "):
        made = method("curriculum", warmup=EPOCHS)
    made.set_epoch(EPOCHS)
    assert len(made.end_epoch(nobody)) == 0


@pytest.mark.parametrize("labels", [[[1, -1], [-1, 1]], [[0, -1], [-1, -1]]])
@pytest.mark.parametrize("name", ["curriculum", "imcl"])
def test_known_labels_of_one_state_alone_are_refused(name: str, labels: list[list[int]]) -> None:
    with pytest.raises(InputError, match=name):
        loss(name).prepare(LabelTable.from_dense(labels))


@pytest.mark.parametrize("name", ["em-apl", "curriculum"])
@pytest.mark.filterwarnings("ignore:em-apl. nothing is unknown")
def test_with_nothing_unknown_there_is_no_round(name: str) -> None:
    made = method(name, LabelTable.from_dense([[1, 0], [0, 1]]))
    made.set_epoch(WARMUP)
    assert len(made.end_epoch(nobody)) == 0


@pytest.mark.parametrize("heads", [(), (2,)])
def test_a_large_table_has_the_same_rounds_in_half_precision(
    heads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "labelgap.losses.base.state.MAX_DENSE_ENTRIES"
    dense = apl(heads=heads, theta=0.6, positive_share=0.3)
    monkeypatch.setattr(limit, 1)
    monkeypatch.setattr(entropy, "ENTRIES_PER_SORT", 2 * IMAGES)
    large = apl(heads=heads, theta=0.6, positive_share=0.3)
    assert 2 * large.state_bytes == dense.state_bytes
    for epoch in (WARMUP, WARMUP + 1):
        logits = np.stack([logits_after(epoch + head) for head in range(2)]).astype(np.float16).astype(np.float32)
        told = []
        for made, entries in ((dense, 10**9), (large, 1)):
            monkeypatch.setattr(limit, entries)
            made.set_epoch(epoch)
            found = made.end_epoch(scores_of(logits if heads else logits[0]))
            told.append(made.revisions_of((1,)) if heads else found)
        torch.testing.assert_close(large.targets, dense.targets.half(), equal_nan=True)
        places = [{(item.image, item.class_name) for item in items if item.value == PRESENT} for items in told]
        assert places[0] == places[1] and len(told[1]) == len(places[1]) > 0

"""`curriculum`: the weight of an image, and the three ways in which the network labels itself."""

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
from tests.losses.batches import set_heads
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import loss
from labelgap.losses.base.loss import TrainingScores
from labelgap.losses.curriculum import CurriculumLabeling, confidence_level, known_share_weight

IMAGES, CLASSES, EPOCHS = 21, 6, 6
Place = tuple[int, int]


def a_table() -> LabelTable:
    random = np.random.default_rng(0)
    return LabelTable.from_dense(random.choice([PRESENT, ABSENT, UNKNOWN], (IMAGES, CLASSES), p=[0.1, 0.2, 0.7]))


TABLE = a_table()


def curriculum(table: LabelTable = TABLE, heads: tuple[int, ...] = (), **options: Any) -> CurriculumLabeling:
    made = loss("curriculum", **options)
    assert isinstance(made, CurriculumLabeling)
    set_heads(made, heads)
    made.prepare(table, epochs=EPOCHS)
    return made


def logits_after(epoch: int) -> NDArray[np.float32]:
    return np.random.default_rng(epoch).normal(0, 2, (IMAGES, CLASSES)).astype(np.float32)


def scores_of(logits: NDArray[np.float32]) -> TrainingScores:
    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.split(torch.arange(IMAGES).flip(0), 8):
            yield index, torch.from_numpy(logits)[..., index, :]

    return scores


def nobody() -> Iterator[tuple[Tensor, Tensor]]:
    raise AssertionError("the network was asked for scores that nobody needs")


@pytest.mark.parametrize(("known", "weight"), [(10, 1.0), (1, 5.005), (5, 3.225), (0, 5.45)])
def test_an_image_weighs_the_more_the_less_of_it_is_known(known: int, weight: float) -> None:
    labels = torch.full((2, 10), UNKNOWN)
    labels[1, :known] = PRESENT
    labels[1, : known // 2] = ABSENT
    assert known_share_weight(labels, torch.zeros(1, dtype=torch.float64))[1].item() == pytest.approx(weight)


def test_the_labels_it_gave_itself_count_as_known() -> None:
    """One known of four labels, and one that the network gave: ρ = ½."""
    table = LabelTable.from_dense([[PRESENT, UNKNOWN, UNKNOWN, UNKNOWN], [ABSENT] * 4])
    made = curriculum(table)
    made.added[0, 2] = ABSENT
    logits = torch.tensor([[0.3, 5.0, -0.7, 9.0]], dtype=torch.float64)
    loss = made(logits, table.batch([0]), index=torch.tensor([0]))
    expected = (-4.45 * 0.5 + 5.45) / 4 * (math.log1p(math.exp(-0.3)) + math.log1p(math.exp(-0.7)))
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert made.modified(logits, table.batch([0]), torch.tensor([0])).tolist() == [[False, False, True, False]]


def simulated(strategy: str, free: dict[Place, float], *, tau: float, theta: float, unknown: int) -> dict[Place, int]:
    """One round with a dictionary of what is still unknown: what is added, and what it becomes."""
    if strategy == "proportion":
        surest = sorted(free, key=lambda place: abs(free[place]), reverse=True)
        chosen = surest[: math.floor(Fraction(str(theta)) * unknown)]
        return {place: PRESENT if free[place] > 0 else ABSENT for place in chosen}
    probabilities = {place: 1 / (1 + math.exp(-x)) for place, x in free.items()}
    added = {place: PRESENT for place, p in probabilities.items() if p >= tau}
    if strategy == "threshold":
        added |= {place: ABSENT for place, p in probabilities.items() if p <= 1 - tau}
    return added


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "threshold", "tau": 0.8, "warmup": 2},
        {"strategy": "positives", "tau": 0.7},
        {"strategy": "positives", "tau": 1.0},
        {"strategy": "proportion"},
        {"strategy": "proportion", "theta": 0.29, "warmup": 3},
        {"strategy": "proportion", "theta": 1.0},
    ],
)
def test_every_round_adds_what_the_strategy_says(options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"strategy": "threshold", "tau": 0.95, "theta": 0.1, "warmup": 1} | options
    made, labels, own = curriculum(**options), TABLE.to_dense(), np.full((IMAGES, CLASSES), UNKNOWN)
    unknown = int((labels == UNKNOWN).sum())
    for epoch in range(1, EPOCHS + 1):
        made.set_epoch(epoch)
        logits, added = logits_after(epoch), {}
        due = given["warmup"] <= epoch < EPOCHS
        if due:
            places = np.argwhere((labels == UNKNOWN) & (own == UNKNOWN)).tolist()
            free = {(row, column): float(logits[row, column]) for row, column in places}
            added = simulated(given["strategy"], free, tau=given["tau"], theta=given["theta"], unknown=unknown)
        revisions = made.end_epoch(scores_of(logits) if due else nobody)
        for place, value in added.items():
            own[place] = value
        np.testing.assert_array_equal(made.added.numpy(), own)
        assert {(int(item.image), int(item.class_name)): item.value for item in revisions} == added
        assert len(revisions) == len(added)
        assert {(item.source, item.epoch, item.target) for item in revisions} <= {("curriculum", epoch, None)}
    assert (own[labels != UNKNOWN] == UNKNOWN).all()
    assert (own != UNKNOWN).any() == (given["tau"] < 1)


def test_the_level_in_single_precision_adds_the_labels_of_the_exact_one() -> None:
    device, taus = torch.device("cpu"), torch.rand(200, generator=torch.Generator().manual_seed(0)).double() / 2 + 0.5
    level, exact = confidence_level(taus, device), torch.logit(taus)
    near = exact.float()
    assert level.dtype == torch.float32 and bool((level != near).any())
    for toward in (-torch.inf, torch.inf):
        logits = torch.cat([near, near.nextafter(torch.full_like(near, toward))]).view(2, -1)
        assert torch.equal(logits >= level, logits >= exact) and torch.equal(-logits <= -level, -logits <= -exact)
    assert confidence_level(1.0, device) == torch.inf


def test_a_proportion_is_exact_for_the_decimal_that_was_written() -> None:
    """29 % of 100 labels are 29, although 0.29 · 100 is a little less in floating point."""
    assert int(0.29 * 100) == 28
    table = LabelTable.from_dense([[PRESENT], [ABSENT], *[[UNKNOWN]] * 100])
    logits = torch.linspace(-3, 3, 102)[:, None]
    for heads, theta in (((), 0.29), ((2,), torch.tensor([0.29, 0.07]))):
        made = curriculum(table, heads, strategy="proportion", theta=theta)
        everyone = [(torch.arange(102), logits.expand(*heads, 102, 1))]
        made.end_epoch(partial(iter, everyone))
        counts = (made.added != UNKNOWN).sum(dim=(-2, -1)).tolist()
        assert counts == ([29, 7] if heads else 29)


def test_of_labels_equally_sure_the_first_are_added() -> None:
    made = curriculum(strategy="proportion", theta=0.1)
    revisions = made.end_epoch(scores_of(np.zeros((IMAGES, CLASSES), dtype=np.float32)))
    unknown = np.argwhere(TABLE.to_dense() == UNKNOWN)
    expected = unknown[: len(unknown) // 10].tolist()
    assert [[int(item.image), int(item.class_name)] for item in revisions] == expected


def test_every_head_has_its_own_rounds() -> None:
    options: dict[str, list[Any]] = {"tau": [0.9, 0.6, 0.7], "theta": [0.1, 0.3, 0.29], "warmup": [1, 2, 5]}
    for strategy in ("threshold", "positives", "proportion"):
        heads: dict[str, Any] = {key: torch.tensor(values) for key, values in options.items()}
        together = curriculum(heads=(3,), strategy=strategy, **heads)
        alone = [
            curriculum(strategy=strategy, **{key: values[head] for key, values in options.items()}) for head in range(3)
        ]
        for epoch in range(1, EPOCHS + 1):
            logits = np.stack([logits_after(epoch), logits_after(epoch + 50), -logits_after(epoch)])
            together.set_epoch(epoch)
            assert len(together.end_epoch(scores_of(logits))) == 0
            for head, made in enumerate(alone):
                made.set_epoch(epoch)
                made.end_epoch(scores_of(logits[head]))
                assert torch.equal(together.added[head], made.added)


def test_labels_of_one_state_alone_are_refused() -> None:
    with pytest.raises(InputError, match="none is known to be absent: it would predict everything as present"):
        curriculum(LabelTable.from_dense([[1, -1], [-1, 1]]))
    with pytest.raises(InputError, match="none is known to be present: it would predict everything as absent"):
        curriculum(LabelTable.from_dense([[0, -1], [-1, -1]]))


def test_a_first_round_after_the_last_epoch_is_said() -> None:
    for warmup in (EPOCHS, EPOCHS + 3):
        with pytest.warns(UserWarning, match=f"the first round is held after {warmup} epochs and {EPOCHS} are trained"):
            made = curriculum(warmup=warmup)
        made.set_epoch(EPOCHS)
        assert len(made.end_epoch(nobody)) == 0


def test_with_nothing_unknown_there_is_no_round() -> None:
    made = curriculum(LabelTable.from_dense([[1, 0], [0, 1]]))
    assert len(made.end_epoch(nobody)) == 0


def test_a_class_without_a_positive_takes_part() -> None:
    labels = TABLE.to_dense()
    labels[:, 0] = np.where(labels[:, 0] == PRESENT, UNKNOWN, labels[:, 0])
    made = curriculum(LabelTable.from_dense(labels), strategy="proportion", theta=1.0)
    revisions = made.end_epoch(scores_of(logits_after(1)))
    assert len(revisions) == int((labels == UNKNOWN).sum())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "all"}, "strategy='all': it is one of 'threshold', 'proportion', 'positives'"),
        ({"tau": 0.5}, r"tau=0.5: it lies between 0.5 \(not included\) and 1"),
        ({"theta": 1.1}, "theta=1.1: it lies between 0 and 1"),
        ({"warmup": 0}, "warmup=0: it must be at least 1"),
        ({"warmup": 1.5}, "warmup=1.5: a whole number is needed"),
    ],
)
def test_a_bad_option_says_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        loss("curriculum", **options)

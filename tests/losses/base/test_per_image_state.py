"""What every loss with per-image state does: it requires what it needs, finds it by row, and reports its memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import set_heads
from tests.losses.reference import reference_of
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import describe_method, loss, methods
from labelgap.losses.base import state
from labelgap.losses.base.loss import Loss, TrainingScores
from labelgap.losses.base.state import PerImageState

TABLE = LabelTable.from_dense([[1, -1, 0], [-1, -1, 1], [1, 1, -1], [-1, 0, -1], [1, -1, -1]])
OF_ONE_IMAGE = {"role": 16, "ll-cp": 2, "ll-cp-abs": 2, "em-apl": 4, "curriculum": 1}
"""Bytes for each image and class."""

REMEMBERING = [name for name in methods() if issubclass(describe_method(name).loss_class, PerImageState)]
SCORING = [name for name in REMEMBERING if "scores" in describe_method(name).loss_class.needs]


def plain(name: str) -> Loss:
    return loss(name, **reference_of(name).plain)


def scores_of(logits: Tensor, rows: list[int]) -> TrainingScores:
    def scores() -> Iterator[tuple[Tensor, Tensor]]:
        for index in torch.split(torch.tensor(rows), 2):
            yield index, logits[..., index, :]

    return scores


def test_these_methods_remember() -> None:
    assert set(OF_ONE_IMAGE) <= set(REMEMBERING)
    assert {"em-apl", "curriculum"} <= set(SCORING)


@pytest.mark.parametrize("name", REMEMBERING)
def test_prepare_comes_first(name: str) -> None:
    made = plain(name)
    made.set_epoch(2)
    with pytest.raises(InputError, match=rf"'{name}' keeps state per image: call prepare"):
        made(torch.zeros(2, 3), TABLE.batch([0, 1]), index=torch.arange(2), features=torch.zeros(2, 4))


@pytest.mark.parametrize("name", SCORING)
def test_scores_that_were_called_already_are_refused_with_the_way_out(name: str) -> None:
    made = plain(name)
    made.prepare(TABLE, epochs=20)
    made.set_epoch(12)
    with pytest.raises(InputError, match="pass the function itself"):
        made.end_epoch(scores_of(torch.zeros(5, 3), [0, 1, 2, 3, 4])())  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [5, -1, 2**40])
@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_a_row_that_is_not_in_the_table_is_refused(name: str, row: int) -> None:
    made = plain(name)
    made.prepare(TABLE)
    index = torch.tensor([0, row])
    with pytest.raises(InputError, match=rf"'{name}' was prepared with 5 images: there is no row {row}\."):
        made(torch.zeros(2, 3), TABLE.batch([0, 1]), index=index)
    with pytest.raises(InputError, match="pass the rows of the table, index="):
        made(torch.zeros(2, 3), TABLE.batch([0, 1]))
    if name != "role":
        with pytest.raises(InputError, match="pass the rows of the table, index="):
            made.modified(torch.zeros(2, 3), TABLE.batch([0, 1]))


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_row_numbers_may_be_narrow(name: str) -> None:
    made = plain(name)
    made.prepare(TABLE)
    made.set_epoch(2)
    losses = []
    for kind in (torch.int64, torch.int32):
        index = torch.tensor([3, 1], dtype=kind)
        losses.append(made(torch.ones(2, 3, requires_grad=True), TABLE.batch(index), index=index))
        made.after_step()
    assert all(loss.isfinite() for loss in losses)


@pytest.mark.parametrize("name", SCORING)
def test_scores_are_asked_for_and_must_be_of_every_image(name: str) -> None:
    made = plain(name)
    made.prepare(TABLE)
    made.set_epoch(2)
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=rf"'{name}' .*needs scores"):
        made.end_epoch()
    if name in OF_ONE_IMAGE:
        with pytest.raises(InputError, match=r"scores left out 2 of 5\."):
            made.end_epoch(scores_of(logits, [0, 4, 2]))
        with pytest.raises(InputError, match="Training has diverged"):
            made.end_epoch(scores_of(logits.index_fill(0, torch.tensor([3]), torch.nan), [0, 4, 2, 3, 1]))


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_memory_is_stated(name: str) -> None:
    made = plain(name)
    assert made.state_bytes == 0 and "not prepared" in repr(made)
    made.prepare(TABLE)
    assert made.state_bytes == 5 * 3 * OF_ONE_IMAGE[name]
    assert f"({name}, {made.state_bytes} bytes)" in repr(made)
    made.prepare(TABLE)
    assert made.state_bytes == 5 * 3 * OF_ONE_IMAGE[name]
    set_heads(made, (2, 4))
    made.prepare(TABLE)
    assert made.state_bytes == 8 * 5 * 3 * OF_ONE_IMAGE[name]
    kept = {key: value for key, value in made.state_dict().items() if value.shape == (2, 4, 5, 3)}
    assert len(kept) == len(made.state_dict()) == 1


def openimages() -> LabelTable:
    """3.4 million images of 5,000 classes, with next to no known label and without the images' names."""
    table = LabelTable.__new__(LabelTable)
    table.starts = np.full(3_400_001, 2)
    table.starts[0] = 0
    table.columns = np.array([0, 1], dtype=np.int32)
    table.values = np.array([PRESENT, ABSENT], dtype=np.int8)
    table.classes = tuple(map(str, range(5_000)))
    table.images = ()
    return table


@pytest.mark.parametrize(("name", "options"), [("role", {"storage": "dense"}), ("em-apl", {}), ("curriculum", {})])
def test_what_cannot_fit_is_refused_with_a_way_out(
    name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "available_memory", lambda: 32 * 10**9)
    made = loss(name, **{**reference_of(name).plain, **options})
    with pytest.raises(InputError) as refused:
        made.prepare(openimages())
    story = str(refused.value)
    assert f"'{name}' keeps state for each of 3,400,000 images × 5,000 classes: " in story
    assert "GB, and 32.0 GB are free. Take fewer images or classes, or a method without state" in story
    if name == "role":
        assert "272.0 GB" in story
    assert made.state_bytes == 0
    with pytest.raises(InputError, match="call prepare"):
        made(torch.zeros(1, 5), torch.zeros(1, 5), index=torch.tensor([0]))
    set_heads(made, (2, 3))
    with pytest.raises(InputError, match="× 5,000 classes × 6 heads: "):
        made.prepare(openimages())


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_where_the_system_does_not_say_nothing_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "available_memory", lambda: None)
    made = plain(name)
    made.prepare(TABLE)
    assert made.state_bytes


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_what_it_keeps_is_made_where_the_loss_is(name: str) -> None:
    made = plain(name).to("meta")
    made.prepare(TABLE)
    assert {value.device.type for value in made.state_dict().values()} == {"meta"}


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_two_losses_share_nothing(name: str) -> None:
    first, second = plain(name), plain(name)
    for made in (first, second):
        made.prepare(TABLE)
    before = copy.deepcopy(second.state_dict())
    with torch.no_grad():
        for value in first.state_dict().values():
            value.fill_(1)
    assert all(torch.equal(value.nan_to_num(), before[key].nan_to_num()) for key, value in second.state_dict().items())


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_many_heads_start_as_one_alone(name: str) -> None:
    alone, together = plain(name), plain(name)
    alone.prepare(TABLE, seed=4)
    set_heads(together, (2,))
    together.prepare(TABLE, seed=4)
    for key, value in alone.state_dict().items():
        for head in together.state_dict()[key]:
            torch.testing.assert_close(head, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_what_it_keeps_of_known_labels_is_never_used(name: str) -> None:
    """Whatever the state says of an observed label (here: rubbish), the observation counts."""
    if name == "role":
        pytest.skip("its estimate of a known label is learned as well")
    made = plain(name)
    made.prepare(TABLE)
    made.set_epoch(2)
    labels, logits = TABLE.batch(range(5)), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    arguments: Any = (logits, labels, torch.arange(5))
    loss = made(*arguments)
    rubbish = {"corrected_in": 1, "targets": 0.9, "added": PRESENT}
    ((key, value),) = made.state_dict().items()
    value.masked_fill_(labels != UNKNOWN, rubbish[key])
    assert torch.equal(made(*arguments), loss)
    assert not made.modified(*arguments)[labels != UNKNOWN].any()


@pytest.mark.parametrize("method", ["ll-cp", "role", "curriculum", "imcl"])
def test_logits_of_more_heads_than_the_state_has_are_refused(method: str) -> None:
    table = LabelTable.from_dense([[1, 0, -1], [0, 1, -1], [-1, 1, 0]])
    loss_fn = loss(method, **({"expected_positives": 1.5} if method == "role" else {}))
    loss_fn.prepare(table, epochs=3)
    with pytest.raises(InputError, match=r"heads \(\), and logits have shape \(2, 3, 3\): set its attribute heads"):
        loss_fn(torch.zeros(2, 3, 3), table.batch([0, 1, 2]), index=torch.arange(3), features=torch.zeros(3, 2))

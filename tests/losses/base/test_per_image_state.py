"""What every loss with per-image state does: it requires what it needs, finds it by row, and reports its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.losses.batches import scores_of, set_heads
from tests.losses.reference import reference_of

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import describe_method, loss, methods
from labelgap.losses.base import state
from labelgap.losses.base.loss import Loss
from labelgap.losses.base.state import PerImageState

TABLE = LabelTable.from_dense([[1, -1, 0], [-1, -1, 1], [1, 1, -1], [-1, 0, -1], [1, -1, -1]])
OF_ONE_IMAGE = {"role": 16, "ll-cp": 2, "ll-cp-abs": 2, "em-apl": 4, "curriculum": 1}
"""Bytes for each image and class."""

REMEMBERING = [name for name in methods() if issubclass(describe_method(name).loss_class, PerImageState)]
SCORING = [name for name in REMEMBERING if "scores" in describe_method(name).loss_class.needs]


def plain(name: str) -> Loss:
    return loss(name, **reference_of(name).plain)


@pytest.mark.parametrize("name", REMEMBERING)
def test_prepare_comes_first_and_tells_the_heads(name: str) -> None:
    made = plain(name)
    made.set_epoch(2)
    with pytest.raises(InputError, match=rf"'{name}' .*prepare"):
        made(torch.zeros(2, 3), TABLE.batch([0, 1]), index=torch.arange(2), features=torch.zeros(2, 4))
    made.prepare(TABLE)
    with pytest.raises(InputError, match=r"\(2, 5, 3\)"):
        made(torch.zeros(2, 5, 3), TABLE.batch(range(5)), index=torch.arange(5), features=torch.zeros(5, 2))


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
def test_rows_are_those_of_the_table_in_any_integer(name: str) -> None:
    made = plain(name)
    made.prepare(TABLE)
    for row in (5, -1, 2**40):
        with pytest.raises(InputError, match=rf"'{name}' .* no row {row}\."):
            made(torch.zeros(2, 3), TABLE.batch([0, 1]), index=torch.tensor([0, row]))
    calls: list[Any] = [made, *([] if name == "role" else [made.modified])]
    for refused in calls:
        with pytest.raises(InputError, match="index="):
            refused(torch.zeros(2, 3), TABLE.batch([0, 1]))
    made.set_epoch(2)
    for kind in (torch.int64, torch.int32):
        index = torch.tensor([3, 1], dtype=kind)
        assert made(torch.ones(2, 3, requires_grad=True), TABLE.batch(index), index=index).isfinite()
        made.after_step()


@pytest.mark.parametrize("name", SCORING)
def test_scores_are_asked_for_and_must_be_of_every_image(name: str) -> None:
    made = plain(name)
    made.prepare(TABLE)
    made.set_epoch(2)
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    broken = logits.index_fill(0, torch.tensor([3]), torch.nan)
    wrong: list[Any] = [None, scores_of(logits, [0, 1, 2, 3, 4])(), scores_of(logits, [0, 4, 2])]
    for scores in (*wrong, scores_of(broken, [0, 4, 2, 3, 1])):
        with pytest.raises(InputError, match=name):
            made.end_epoch(scores)


def openimages() -> LabelTable:
    """3.4 million images of 5,000 classes, with next to no known label and without the images' names."""
    table = LabelTable.__new__(LabelTable)
    table.starts = np.full(3_400_001, 2)
    table.starts[0] = 0
    table.columns = np.array([0, 1], dtype=np.int32)
    table.values = np.array([PRESENT, ABSENT], dtype=np.int8)
    table.classes = tuple(map(str, range(5_000)))
    table.images, table.soft = (), None
    return table


@pytest.mark.parametrize(("name", "options"), [("role", {"storage": "dense"}), ("em-apl", {}), ("curriculum", {})])
def test_what_cannot_fit_is_refused_with_a_way_out(
    name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "available_memory", lambda: 32 * 10**9)
    made = loss(name, **{**reference_of(name).plain, **options})
    with pytest.raises(InputError, match=rf"'{name}' .* 3,400,000 .* 5,000 .*32.0 GB"):
        made.prepare(openimages())
    assert made.state_bytes == 0
    with pytest.raises(InputError, match="prepare"):
        made(torch.zeros(1, 5), torch.zeros(1, 5), index=torch.tensor([0]))
    set_heads(made, (2, 3))
    with pytest.raises(InputError, match="× 6 heads: "):
        made.prepare(openimages())


@pytest.mark.parametrize("name", [name for name in OF_ONE_IMAGE if name != "role"])  # it learns estimates of known ones
def test_what_it_keeps_of_known_labels_is_never_used(name: str) -> None:
    """Whatever the state says of an observed label (here: rubbish), the observation counts."""
    made = plain(name)
    made.prepare(TABLE)
    made.set_epoch(2)
    labels, logits = TABLE.batch(range(5)), torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    arguments: Any = (logits, labels, torch.arange(5))
    loss = made(*arguments)
    rubbish = {"corrected_in": 1, "targets": 0.9, "added": PRESENT}
    ((key, value),) = [item for item in made.state_dict().items() if item[0] != "epoch_tensor"]
    value.masked_fill_(labels != UNKNOWN, rubbish[key])
    assert torch.equal(made(*arguments), loss)
    assert not made.modified(*arguments)[labels != UNKNOWN].any()

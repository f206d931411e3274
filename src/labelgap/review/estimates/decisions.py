"""Which answers count as random ones, and in which order they were asked.

A random slot of the feed holds the first label of the random draw of its class that is still open. Its answer counts
once all earlier labels of the draw are decided, in whatever way: so the sample does not depend on which of the labels
on a page a reviewer leaves out.

Decisions of older versions were made in lists that never changed. Such a list shows ranked candidates, with a random
one at a place of its own among every ten; a random label that the ranking has shown before is not shown again. A
candidate is reached once everything that its class's list shows before it is decided. Among those, a random one was
drawn from all labels that were open when the list came to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import WRONG, CandidateColumns
from labelgap.review.estimates.labels import ReviewedLabels
from labelgap.review.folder import ReviewFolder
from labelgap.review.progress import CurrentDecisions
from labelgap.review.store.events import ASKED, LabelKey

_NEVER: Final = np.iinfo(np.int64).max


class OrderedDecisions(NamedTuple):
    """Which of C candidates are decided, the answers, which count as random ones, and the order of the decisions."""

    decided: NDArray[np.bool_]
    value: NDArray[np.int8]
    random: NDArray[np.bool_]
    order: NDArray[np.int64]


def first_undecided(classes: ArrayLike, positions: ArrayLike, decided: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return the position of the first undecided of C candidates in the list of each class, ``(K,)``.

    It is the largest integer where everything is decided.

    Example:
        >>> first_undecided([0, 0, 0], [1, 3, 5], [True, False, True], 1)
        array([3])
    """
    first = np.full(count, _NEVER, dtype=np.int64)
    undecided = ~np.asarray(decided, dtype=np.bool_)
    np.minimum.at(first, np.asarray(classes)[undecided], np.asarray(positions)[undecided])
    return first


def order_fixed_list(
    class_number: NDArray[np.integer[Any]],
    sampled: NDArray[np.int64],
    ranked: NDArray[np.int64],
    decided: NDArray[np.bool_],
    classes: int,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which of C candidates were asked as random ones, and the order in which the list came to them.

    Args:
        class_number: of the candidates.
        sampled: position of each in the random sample; the largest integer for none.
        ranked: position among the ranked ones, likewise.
        decided: whether somebody answered.
        classes: K.

    What is decided and not reached comes after everything that is reached.
    """
    shown = np.minimum(sampled, ranked)
    reached = decided & (shown < first_undecided(class_number, shown, decided, classes)[class_number])
    return reached & (sampled < ranked), np.where(reached, shown, _NEVER)


def order_decisions(current: CurrentDecisions, shown: NDArray[np.bool_]) -> OrderedDecisions:
    """Return the decisions in force, and the order in which they were made.

    Args:
        current: the decisions in force.
        shown: ``(C,)`` which candidates are asked about; the others are copies.
    """
    candidates = current.candidates
    columns, positions, classes = candidates.columns, candidates.positions, len(candidates.classes)
    with current.lock:
        decided, value, order = current.decided.copy(), current.value.copy(), current.shown.copy()
        asked, in_fixed_list = current.asked == ASKED.index("random"), decided & (current.ranking == 0)
    listed, column = shown & (columns.kind != WRONG), columns.class_number
    drawn = np.flatnonzero(listed & (columns.random_rank > 0))
    first = first_undecided(column[drawn], columns.random_rank[drawn], decided[drawn], classes)
    random = decided & ~in_fixed_list & asked & (columns.random_rank < first[column])
    if in_fixed_list.any():
        rows = np.flatnonzero(listed)
        places = (positions.sampled[rows], positions.ranked[rows])
        in_list, place = order_fixed_list(column[rows], *places, in_fixed_list[rows], classes)
        random[rows] |= in_list
        order[rows] = np.where(place < _NEVER, place - _NEVER, order[rows])
    return OrderedDecisions(decided, value, random, order)


def join_labels(
    columns: CandidateColumns,
    numbers: NDArray[np.int64],
    decisions: OrderedDecisions,
    others: tuple[NDArray[np.int64], NDArray[np.int8]],
    unknown: NDArray[np.int64],
    expected: NDArray[np.float64] | None,
) -> ReviewedLabels:
    """Return what an estimate is made from: some candidates, then decided labels that are none.

    Args:
        columns: the candidates.
        numbers: of those that take part.
        decisions: on all candidates.
        others: class numbers and answers of the other labels.
        unknown: ``(K,)`` unknown labels of each class.
        expected: ``(K,)`` how many of them are present by the audit; None without a model.
    """
    group, answer = others
    decided, value, random, order = (values[numbers] for values in decisions)
    return ReviewedLabels(
        np.concatenate([columns.class_number[numbers], group]),
        np.concatenate([columns.score[numbers], np.full(len(group), np.nan)]),
        np.concatenate([decided, np.ones(len(group), dtype=np.bool_)]),
        np.concatenate([value, answer]),
        np.concatenate([random, np.zeros(len(group), dtype=np.bool_)]),
        np.concatenate([order, np.full(len(group), _NEVER)]),
        unknown,
        expected,
    )


def other_decisions(
    folder: ReviewFolder, others: Mapping[LabelKey, int], splits: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """Return class numbers and values of decided labels that are no candidates, and that the data do not know.

    Args:
        folder: of the review; its data are opened where there are such decisions.
        others: values of decided labels that are no candidates.
        splits: that were audited.
    """
    found: list[tuple[int, int]] = []
    classes = {name: number for number, name in enumerate(folder.classes)}
    for split in folder.data.splits if others else ():
        keys = [key for key in others if key.split == split.name and key.class_name in classes]
        if split.name not in splits or not keys:
            continue
        rows = {name: row for row, name in enumerate(split.labels.images)}
        keys = [key for key in keys if key.image in rows]
        columns = [classes[key.class_name] for key in keys]
        codes = split.labels.codes_at([rows[key.image] for key in keys], columns)
        pairs = zip(columns, [others[key] for key in keys], codes, strict=True)
        found += [(column, value) for column, value, code in pairs if code == UNKNOWN]
    made = np.array(found, dtype=np.int64).reshape(-1, 2)
    return made[:, 0], made[:, 1].astype(np.int8)

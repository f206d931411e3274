from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.metrics import RevisionQuality, revision_quality

IMAGES, CLASSES = ["a", "b", "c", "d"], ["cat", "dog", "owl"]


def table(labels: object) -> LabelTable:
    return LabelTable.from_dense(np.asarray(labels), classes=CLASSES, images=IMAGES)


def by_loops(observed: LabelTable, truth: LabelTable, revisions: Revisions) -> RevisionQuality:
    seen, true = observed.to_dense(), truth.to_dense()
    said = {(IMAGES.index(item.image), CLASSES.index(item.class_name)): item for item in revisions}
    comparable = [(place, item) for place, item in said.items() if true[place] != UNKNOWN and item.value != UNKNOWN]
    correct = sum(int(true[place] == item.value) for place, item in comparable)
    hidden = found = 0
    for row in range(len(IMAGES)):
        for column in range(len(CLASSES)):
            if true[row, column] == PRESENT and seen[row, column] == UNKNOWN:
                hidden += 1
                item = said.get((row, column))
                found += item is not None and item.value == PRESENT and item.target is None
    return RevisionQuality(
        revised=len(said),
        known_truth=len(comparable),
        correct=correct,
        precision=correct / len(comparable) if comparable else None,
        hidden_present=hidden,
        found=found,
        recall=found / hidden if hidden else None,
    )


@st.composite
def revision(draw: st.DrawFn) -> Revision:
    target = draw(st.one_of(st.none(), st.floats(0, 1, width=32)))
    value = draw(st.sampled_from([PRESENT, ABSENT] if target is not None else [PRESENT, ABSENT, UNKNOWN]))
    image, class_name = draw(st.sampled_from(IMAGES)), draw(st.sampled_from(CLASSES))
    return Revision(image, class_name, value, "some-method", target=target, epoch=1)


LABELS = st.lists(st.lists(st.sampled_from([PRESENT, ABSENT, UNKNOWN]), min_size=3, max_size=3), min_size=4, max_size=4)


@settings(max_examples=25)
@given(observed=LABELS, truth=LABELS, made=st.lists(revision(), max_size=12))
def test_quality_is_what_loops_find(observed: list[list[int]], truth: list[list[int]], made: list[Revision]) -> None:
    arguments = table(observed), table(truth), Revisions(made)
    assert revision_quality(*arguments) == by_loops(*arguments)


TRUTH = table([[1, 1, 0], [0, 1, 0], [1, 0, -1], [1, 0, 0]])
OBSERVED = table([[1, -1, -1], [-1, 1, -1], [-1, -1, -1], [1, -1, 0]])


@pytest.mark.parametrize(("image", "name", "rows"), [("e", "dog", 4), ("a", "cow", 4), ("a", "dog", 2)])
def test_strangers_are_refused(image: str, name: str, rows: int) -> None:
    with pytest.raises(InputError, match=r"'e'|'cow'|classes"):
        revision_quality(OBSERVED.select(range(rows)), TRUTH, Revisions([Revision(image, name, PRESENT, "m")]))

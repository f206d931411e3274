"""Labels left out as people do, against the formulas of the module written again, entry after entry."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.labels.masking import GAPS

Codes = NDArray[np.int8]
Sizes = NDArray[np.float64]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("random", {"share": 0.3}),
    ("rare-overlooked", {"share": 0.55}),
    ("small-overlooked", {"share": 0.4, "side": 7.5}),
    ("salient", {"per_image": 2}),
    ("annotators", {"annotators": 3, "known": 0.45}),
]


PINNED = {
    "labels": "03c40100122004003036",
    "random": "1102a018103100021007",
    "rare-overlooked": "1106a118003100021006",
    "small-overlooked": "11228118001900009007",
    "salient": "11208110020904009021",
    "annotators": "0044211012080000b031",
}
"""The present labels that stay of ``example(16, 5, 3)`` with the seed 7 and default options, as bits."""


def example(rows: int = 60, classes: int = 7, seed: int = 0) -> tuple[Codes, Sizes]:
    """Labels of all three states, common and rare classes, and sizes, some of them equal and some 0."""
    random = np.random.RandomState(seed)
    labels = (random.random_sample((rows, classes)) < np.linspace(0.1, 0.7, classes)).astype(np.int8)
    labels[random.random_sample(labels.shape) < 0.2] = UNKNOWN
    return labels, (random.randint(0, 12, labels.shape) ** 2).astype(np.float64)


def kept_by_weight(labels: Codes, weight: Any, share: float, seed: int) -> Codes:
    """The ``share`` of the present labels with the lowest u / w."""
    random, keys = np.random.RandomState(seed), {}
    present = [(row, column) for row, column in np.ndindex(*labels.shape) if labels[row, column] == PRESENT]
    for place in present:
        u = random.random_sample()
        if weight(*place) > 0:
            keys[place] = u / weight(*place)
    left = np.where(labels == PRESENT, UNKNOWN, labels).astype(np.int8)
    for place in sorted(keys, key=lambda place: keys[place])[: round(Fraction(str(share)) * len(present))]:
        left[place] = PRESENT
    return left


def reference(rule: str, labels: Codes, sizes: Sizes, seed: int, **options: Any) -> Codes:
    """What a rule leaves, absent labels included."""
    counts = (labels == PRESENT).sum(axis=0)
    if rule == "random":
        return kept_by_weight(labels, lambda row, column: 1.0, options["share"], seed)
    if rule == "rare-overlooked":
        return kept_by_weight(labels, lambda row, column: float(counts[column]), options["share"], seed)
    if rule == "small-overlooked":
        half = options["side"] ** 2
        return kept_by_weight(
            labels, lambda row, column: sizes[row, column] / (sizes[row, column] + half), options["share"], seed
        )
    random, left = np.random.RandomState(seed), labels.copy()
    if rule == "salient":
        for row in range(len(labels)):
            places = np.flatnonzero(labels[row] == PRESENT)
            drawn = {column: random.random_sample() for column in places}
            ranked = sorted(places, key=lambda column: (-sizes[row, column], drawn[column]))
            left[row, ranked[options["per_image"] :]] = UNKNOWN
        return left
    width, people = labels.shape[1], options["annotators"]
    order, count = random.permutation(width), max(1, round(Fraction(str(options["known"])) * width))
    knows = [{int(order[(width * j // people + i) % width]) for i in range(count)} for j in range(people)]
    for row, person in enumerate(random.randint(0, people, len(labels))):
        left[row, [column for column in range(width) if column not in knows[person]]] = UNKNOWN
    return left


def observed(labels: Codes, sizes: Sizes, *arguments: Any, **options: Any) -> LabelTable:
    table = LabelTable.from_dense(labels)
    return table.observe(*arguments, sizes=sizes[table.rows, table.columns], **options)


@pytest.mark.parametrize(("rule", "options"), CASES)
def test_a_rule_keeps_what_its_formula_says_for_every_seed(rule: str, options: dict[str, Any]) -> None:
    labels, sizes = example()
    for seed in (0, 1200):
        expected = reference(rule, labels, sizes, seed, **options)
        assert (observed(labels, sizes, rule, "all", seed, **options).to_dense() == expected).all()
        without = np.where(expected == PRESENT, PRESENT, UNKNOWN)
        assert (observed(labels, sizes, rule, 0, seed, **options).to_dense() == without).all()
        some = observed(labels, sizes, rule, 1, seed, **options).to_dense()
        known = (expected == ABSENT).sum(axis=1)
        assert ((some == ABSENT).sum(axis=1) == np.minimum(known, 1)).all() and (
            expected[some == ABSENT] == ABSENT
        ).all()
        assert ((some == PRESENT) == (expected == PRESENT)).all()


def test_the_draws_are_the_same_bits_everywhere() -> None:
    labels, sizes = example(rows=16, classes=5, seed=3)
    drawn = {rule: observed(labels, sizes, rule, 0, 7).to_dense() == PRESENT for rule in GAPS}
    packed = {rule: np.packbits(bits).tobytes().hex() for rule, bits in drawn.items()}
    assert packed == PINNED


def test_a_share_of_all_labels_is_what_drop_leaves_and_absent_ones_are_not_drawn_again() -> None:
    labels, _ = example()
    table = LabelTable.from_dense(labels)
    for seed, share, hidden in ((0, 0.3, 0.7), (1200, 0.9, 0.1), (7, 0.05, 0.95)):
        drawn = table.observe("labels", share=share, seed=seed)
        assert drawn == table.drop(hidden, seed) == table.observe("labels", "all", seed, share=share)
        assert len(drawn.values) == round(Fraction(str(share)) * int((labels != UNKNOWN).sum()))
        assert min(drawn.counts().total[:2]) > 0
    with pytest.raises(InputError, match="negatives=2"):
        table.observe("labels", 2, share=0.3)


def test_every_class_has_an_annotator_who_knows_it_and_images_are_shared_evenly() -> None:
    labels = np.ones((3000, 20), dtype=np.int8)
    left = LabelTable.from_dense(labels).observe("annotators", seed=4).to_dense()
    groups, sizes = np.unique(left, axis=0, return_counts=True)
    assert len(groups) == 5 and np.abs(sizes - 600).max() < 100
    assert ((groups == PRESENT).sum(axis=1) == 10).all()
    assert {2, 3} == set((groups == PRESENT).sum(axis=0).tolist())
    many = LabelTable.from_dense(labels[:9]).observe("annotators", annotators=2**31 - 1)  # memory is that of the images
    assert (many.counts().present.sum()) == 90


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("salint",), {}, "no rule for present labels called 'salint'. Did you mean 'salient'"),
        (("salient",), {"share": 0.5}, "no option of 'salient' called 'share'"),
        (("random",), {"share": 0}, "share=0: "),
        (("random",), {"share": float("nan")}, "share=nan"),
        (("annotators",), {"annotators": 0}, "annotators=0: "),
        (("salient",), {"per_image": 1.0}, "per_image=1.0"),
        (("small-overlooked",), {"side": -1}, "side=-1"),
        (("small-overlooked",), {"side": "large"}, "side='large': the side of an object is a number of pixels"),
        ((1,), {"side": 3}, "positives=1 takes no option 'side': it belongs to 'small-overlooked'"),
        (("salient",), {}, "'salient' draws by the sizes of the objects: give sizes"),
        (("salient",), {"sizes": [1.0]}, "sizes: 2 numbers from 0"),
        (("random", "some"), {}, "negatives='some'"),
    ],
)
def test_what_a_rule_cannot_use_is_refused(arguments: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LabelTable.from_dense([[1, 0]]).observe(*arguments, **options)


def test_nothing_known_leaves_nothing() -> None:
    empty = LabelTable.from_dense(np.full((2, 3), UNKNOWN))
    none = LabelTable.from_dense(np.zeros((0, 3)))
    assert all(table.observe(rule, sizes=[]) == table for table in (empty, none) for rule in GAPS)

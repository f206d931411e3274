from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable, masking, paper_split
from labelgap.labels.masking import GAPS

Codes = NDArray[np.int8]
FEW = settings(max_examples=25)


def reference(dense: Codes, positives: int, negatives: int, seed: int) -> Codes:
    """The papers' draw, written from its description."""
    random = np.random.RandomState(seed)
    observed = np.full_like(dense, UNKNOWN)
    for row in range(len(dense)):
        for state, amount in ((PRESENT, positives), (ABSENT, negatives)):
            numbers = np.array([column for column in range(dense.shape[1]) if dense[row, column] == state], dtype=int)
            random.shuffle(numbers)
            for column in numbers[:amount]:
                observed[row, column] = state
    return observed


def some_codes(rows: int = 40, classes: int = 12, seed: int = 0) -> Codes:
    return np.random.default_rng(seed).integers(UNKNOWN, PRESENT + 1, (rows, classes)).astype(np.int8)


@pytest.mark.parametrize(("positives", "negatives"), [(1, 0), (0, 0), (1, 1), (2, 3), (0, 1), (99, 99)])
@pytest.mark.parametrize(("seed", "block"), [(1200, 1 << 22), (0, 25), (7, 1)])
def test_observe_is_the_draw_that_the_papers_describe(
    positives: int, negatives: int, seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking, "BLOCK_LABELS", block)
    dense = np.pad(some_codes(), ((0, 1), (0, 300)), constant_values=UNKNOWN)
    dense[[0, 5, 6]], dense[7] = UNKNOWN, ABSENT  # nothing known; everything known, more than 256 draws
    observed = LabelTable.from_dense(dense).observe(positives, negatives, seed)
    assert (observed.to_dense() == reference(dense, positives, negatives, seed)).all()


def test_all_keeps_every_label_of_its_state_and_draws_the_other_as_before() -> None:
    dense = some_codes()
    table = LabelTable.from_dense(dense)
    assert table.observe("all", "all") == table
    assert (table.observe(1, "all").to_dense() == reference(dense, 1, 99, 1200)).all()
    assert (table.observe("all", 0).to_dense() == reference(dense, 99, 0, 1200)).all()
    assert (table.observe(np.int64(1), 0).to_dense() == reference(dense, 1, 0, 1200)).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        *((lambda table, amount=amount: table.observe(amount), "positives=") for amount in (-1, 1.0, None, True)),
        *((lambda table, amount=amount: table.observe(1, amount), "negatives=") for amount in (-1, 1.0, "some", True)),
        *((lambda table, seed=seed: table.observe(seed=seed), "seed") for seed in (-1, 2**32, "a")),
        (lambda table: paper_split(3, seed=-1), "seed"),
        *((lambda table, share=share: table.drop(share), "between 0 and 1") for share in (-0.1, 1.1, float("nan"))),
        *((lambda table, share=share: paper_split(10, share), "val fraction") for share in (-0.1, 1, float("nan"))),
        (lambda table: table.observe("salint"), "'salient'"),
        (lambda table: table.observe("salient", share=0.5), "'salient' called 'share'"),
        (lambda table: table.observe("random", share=0), "share=0: "),
        (lambda table: table.observe("random", share=float("nan")), "share=nan"),
        (lambda table: table.observe("annotators", annotators=0), "annotators=0: "),
        (lambda table: table.observe("salient", per_image=1.0), "per_image=1.0"),
        (lambda table: table.observe("small-overlooked", side=-1), "side=-1"),
        (lambda table: table.observe("small-overlooked", side="large"), "side='large'"),
        (lambda table: table.observe(1, side=3), "'side': .* 'small-overlooked'"),
        (lambda table: table.observe("salient"), "sizes"),
        (lambda table: table.observe("salient", sizes=[1.0]), "sizes: 2 numbers"),
        (lambda table: table.observe("random", "some"), "negatives='some'"),
        (lambda table: table.observe("labels", 2, share=0.3), "negatives=2"),
    ],
)
def test_what_no_draw_can_use_is_refused(draw: Callable[[LabelTable], object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        draw(LabelTable.from_dense([[1, 0]]))


FRACTIONS = st.sampled_from([0, 0.07, 0.1, 0.25, 0.29, 0.35, 0.5, 2 / 3, 0.9, 0.999, 1, 1.0])


@FEW
@given(FRACTIONS, st.integers(0, 30), st.integers(0, 3), st.booleans())
def test_drop_hides_the_rounded_share_of_each(fraction: float, rows: int, seed: int, per_class: bool) -> None:
    dense = some_codes(rows, 5, seed)
    dropped = LabelTable.from_dense(dense).drop(fraction, seed, per_class=per_class).to_dense()
    for known, left in [*zip(dense.T, dropped.T, strict=True)] if per_class else [(dense, dropped)]:
        count = int((known != UNKNOWN).sum())
        assert int((left != UNKNOWN).sum()) == count - round(Fraction(str(fraction)) * count)
    assert (dropped[dropped != UNKNOWN] == dense[dropped != UNKNOWN]).all()


@FEW
@given(st.integers(0, 60), st.sampled_from([0, 0.1, 0.2, 0.5, 0.99]), st.integers(0, 5))
def test_the_split_is_a_permutation_cut_in_two_and_sorted(count: int, fraction: float, seed: int) -> None:
    train, val = paper_split(count, fraction, seed)
    order = np.random.RandomState(seed).permutation(count).tolist()
    assert len(val) == round(fraction * count)
    assert train.tolist() == sorted(order[: count - len(val)])
    assert val.tolist() == sorted(order[count - len(val) :])
    assert train.dtype == val.dtype == np.int64


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


def rule_reference(rule: str, labels: Codes, sizes: Sizes, seed: int, **options: Any) -> Codes:
    """What a rule leaves, absent labels included."""
    counts = (labels == PRESENT).sum(axis=0)
    if rule == "random":
        return kept_by_weight(labels, lambda row, column: 1.0, options["share"], seed)
    if rule == "rare-overlooked":
        return kept_by_weight(labels, lambda row, column: float(counts[column]), options["share"], seed)
    if rule == "small-overlooked":
        visible = sizes / (sizes + options["side"] ** 2)
        return kept_by_weight(labels, lambda row, column: visible[row, column], options["share"], seed)
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
        expected = rule_reference(rule, labels, sizes, seed, **options)
        assert (observed(labels, sizes, rule, "all", seed, **options).to_dense() == expected).all()
        without = np.where(expected == PRESENT, PRESENT, UNKNOWN)
        assert (observed(labels, sizes, rule, 0, seed, **options).to_dense() == without).all()
        some = observed(labels, sizes, rule, 1, seed, **options).to_dense()
        known = (expected == ABSENT).sum(axis=1)
        assert ((some == ABSENT).sum(axis=1) == np.minimum(known, 1)).all()
        assert (expected[some == ABSENT] == ABSENT).all()
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


def test_nothing_known_leaves_nothing_and_annotators_take_no_memory() -> None:
    empty = LabelTable.from_dense(np.full((2, 3), UNKNOWN))
    none = LabelTable.from_dense(np.zeros((0, 3)))
    assert all(table.observe(rule, sizes=[]) == table for table in (empty, none) for rule in GAPS)
    many = LabelTable.from_dense(np.ones((9, 20))).observe("annotators", annotators=2**31 - 1)
    assert many.counts().present.sum() == 90

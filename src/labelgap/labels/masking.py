r"""Hiding labels of a full table: which known labels stay, at random or as people leave labels out (``LabelGap``).

The single-positive papers (Cole 2021, Kim 2022, Zhou 2022) share one draw and one split. Both are reproduced here bit
for bit: results can be compared with theirs only on the same labels.

Hiding present labels as people leave them out: not at random.

What an annotator names depends on the object (its size), on the class (how common it is) and on the annotator (Berg et
al., "Understanding and predicting importance in images", CVPR 2012; Misra et al., "Seeing through the human reporting
bias", CVPR 2016). Every rule here states which known labels of a table stay. Three of them keep a share s of all P
present labels, each with a weight w of its own. With u = ``RandomState(seed).random_sample(P)``, one number for each
present label in the order of the table (row after row, classes ascending),

.. math:: \text{kept} = \text{the } \operatorname{round}(sP) \text{ labels with the lowest } u / w

(sequential Poisson sampling, Ohlsson 1998). If t is the highest u / w that is kept, a label is kept with a probability
of about min(1, t w): labels of twice the weight are kept twice as often, up to all of them. Labels of weight 0, e.g. of
an object without a box, are never kept, even if fewer than round(sP) are left. Only additions, multiplications,
divisions and numpy's legacy generator are used, whose results are the same on every platform.

======================  ===================================================================================
rule                    weight w of a present label of class c
======================  ===================================================================================
``random``              1
``rare-overlooked``     n_c, the number of present labels of c in the table
``small-overlooked``    a / (a + side²), a = the size of the label: the area of the largest object of c, in pixels
======================  ===================================================================================

``salient`` keeps the ``per_image`` labels of every image with the largest sizes; u decides between equal ones.
``annotators`` gives every image to one of A annotators, who know m = round(known · K) of the K classes each, and at
least one: with π = ``permutation(K)`` annotator j knows π[(⌊jK / A⌋ + i) mod K] for i = 0 … m − 1, and then
``randint(0, A, N)`` is the annotator of every image, both of one ``RandomState(seed)``. What is known of classes that
the annotator does not know, present or absent, is hidden. ``labels`` keeps a share of all known labels, present and
absent alike: those that ``drop_mask`` leaves of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.seeds import numpy_generator
from labelgap.core.text import pluralize
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.labels.sparse import KnownLabels, starts_from_lengths

Amount = int | Literal["all"]
BLOCK_LABELS: Final = 1 << 22  # known labels whose draws are made at once


def observe_mask(
    starts: NDArray[np.int64],
    values: NDArray[np.int8],
    positives: Amount | str = 1,
    negatives: Amount | str = 0,
    seed: int = 1200,
) -> NDArray[np.bool_]:
    """Return which known labels stay when some positives and negatives of every image are kept.

    The draw of the papers: one ``RandomState(seed)``; per image the array of its positive class numbers is shuffled and
    the first ``positives`` are kept, then that of its negatives, which uses up random state even when nothing is kept.
    """
    amounts = _amount(positives, "positives"), _amount(negatives, "negatives")
    random = random_state(seed)
    kept = np.zeros(len(values), dtype=bool)
    first = 0
    while first < len(starts) - 1:  # blocks of rows: their numbers take 8 bytes a label
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + BLOCK_LABELS, side="right")) - 1)
        part = slice(starts[first], starts[last])
        kept[part] = _observe_block(starts[first : last + 1] - starts[first], values[part], amounts, random)
        first = last
    return kept


def _observe_block(
    starts: NDArray[np.int64],
    values: NDArray[np.int8],
    amounts: tuple[int | None, int | None],
    random: np.random.RandomState,
) -> NDArray[np.bool_]:
    """Return which known labels of some rows stay, and advance ``random`` as the shuffles of all of them would.

    ``RandomState.shuffle`` swaps the entries n − 1, …, 1 with one drawn from those up to itself; ``randint`` with an
    array of bounds makes the same draws in one call, and the swaps are made in all rows at once.
    """
    sizes = np.stack([np.diff(starts_from_lengths(values == state)[starts]) for state in (PRESENT, ABSENT)])
    draws = np.maximum(sizes.T.ravel() - 1, 0)
    ends = np.cumsum(draws)
    bounds = np.repeat(ends, draws) - np.arange(ends[-1])
    drawn = random.randint(0, bounds + 1, dtype=np.int64)
    kept = np.zeros(len(values), dtype=bool)
    for number, (state, amount) in enumerate(zip((PRESENT, ABSENT), amounts, strict=True)):
        entries = np.flatnonzero(values == state)
        if amount is None:
            kept[entries] = True
            continue
        if amount:
            kept[_shuffled_first(entries, sizes[number], drawn, (ends - draws)[number::2], amount)] = True
    return kept


def _shuffled_first(
    entries: NDArray[np.int64],
    sizes: NDArray[np.int64],
    drawn: NDArray[np.int64],
    first_draw: NDArray[np.int64],
    amount: int,
) -> NDArray[np.int64]:
    """Return the first ``amount`` of each group of entries after its shuffle; ``drawn`` has the partners of swaps."""
    order = np.argsort(-sizes, kind="stable")
    start, size, draw = (np.cumsum(sizes) - sizes)[order], sizes[order], first_draw[order]
    longer = len(sizes) - np.searchsorted(size[::-1], np.arange(1, (size[0] if len(size) else 0) + 1), side="left")
    for place in range(len(longer) - 1, 0, -1):
        rows = longer[place]  # those with more than ``place`` entries
        here, there = start[:rows] + place, start[:rows] + drawn[draw[:rows] + size[:rows] - 1 - place]
        entries[here], entries[there] = entries[there], entries[here]
    position = np.arange(len(entries)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return entries[position < amount]


def drop_mask(
    columns: NDArray[np.int32], fraction: float, seed: int = 0, *, per_class: bool = False
) -> NDArray[np.bool_]:
    """Return which known labels stay when a fraction of all, or ``per_class`` of each, is hidden, as written."""
    if not 0 <= fraction <= 1:
        raise InputError(f"drop({fraction}): the share of labels to hide must lie between 0 and 1.")
    random = numpy_generator(seed, "drop").random(len(columns))
    kept = np.empty(len(columns), dtype=bool)
    if not per_class:
        return ~lowest_mask(random, round(Fraction(str(fraction)) * len(random)))
    order = np.argsort(columns.astype(np.uint16) if columns.max(initial=0) < 1 << 16 else columns, kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(columns))[:-1]):
        kept[members] = ~lowest_mask(random[members], round(Fraction(str(fraction)) * len(members)))
    return kept


def lowest_mask(values: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Mark the ``count`` lowest values; of equal ones the first."""
    if not count:
        return np.zeros(len(values), dtype=bool)
    highest = np.partition(values, count - 1)[count - 1]
    marked: NDArray[np.bool_] = values < highest
    marked[np.flatnonzero(values == highest)[: count - int(marked.sum())]] = True
    return marked


def paper_split(count: int, fraction: float = 0.2, seed: int = 1200) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split ``count`` rows into sorted (train, val) as in the papers: the end of ``RandomState.permutation`` is val."""
    if not 0 <= fraction < 1:
        raise InputError(
            f"a val fraction of {fraction}: it must lie between 0 and 1, and 1 would leave nothing to train on."
        )
    order = random_state(seed).permutation(count).astype(np.int64)
    train = count - round(fraction * count)
    return np.sort(order[:train]), np.sort(order[train:])


def random_state(seed: int) -> np.random.RandomState:
    """Return numpy's legacy generator, whose numbers never change between versions or platforms."""
    try:
        return np.random.RandomState(seed)
    except (TypeError, ValueError):
        raise InputError(f"seed={seed!r}: a seed of the papers' draws is a whole number from 0 to 2³² - 1.") from None


def _amount(amount: Amount | str, name: str) -> int | None:
    """Return an upper end for a slice: None keeps all."""
    if amount == "all":
        return None
    if isinstance(amount, bool) or not isinstance(amount, int | np.integer) or amount < 0:
        raise InputError(f"{name}={amount!r}: give a number of labels per image, or 'all'.")
    return int(amount)


GAPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "labels": {"share": 0.5},
    "random": {"share": 0.5},
    "rare-overlooked": {"share": 0.5},
    "small-overlooked": {"share": 0.5, "side": 96.0},
    "salient": {"per_image": 1},
    "annotators": {"annotators": 5, "known": 0.5},
}
"""The options of every rule, with their defaults."""
_SHARE: Final = (0, 1.0, "a share is a number above 0, at most 1")
_COUNT: Final = (0, (1 << 31) - 1, "it must be a whole number from 1")
_LIMITS: Final[Mapping[str, tuple[int, float, str]]] = {
    "share": _SHARE,
    "known": _SHARE,
    "side": (0, 999_999.0, "the side of an object is a number of pixels, above 0 and below 1e6"),
    "per_image": _COUNT,
    "annotators": _COUNT,
}
SIZE_RULES: Final = ("small-overlooked", "salient")  # those that draw by the size of the labelled objects


@dataclass(frozen=True)
class LabelGap:
    """A rule that states which known labels of a table stay, and all of its options."""

    name: str
    options: dict[str, Any]

    @property
    def needs_sizes(self) -> bool:
        """Whether it draws by the size of the labelled objects."""
        return self.name in SIZE_RULES

    @property
    def draws_absents(self) -> bool:
        """Whether it says which absent labels stay, so that ``negatives`` does not."""
        return self.name == "labels"

    @property
    def description(self) -> str:
        """Which labels stay, in words: present ones, where the rule does not draw absent ones as well."""
        options = self.options
        if self.draws_absents:
            return f"{100 * options['share']:g} % of all labels, present and absent alike"
        if self.name == "annotators":
            people = f"{pluralize(options['annotators'], 'annotator')}, {100 * options['known']:g} % each"
            return f"those of the classes that the annotator of an image knows ({people})"
        if self.name == "salient":
            count = options["per_image"]
            which = "largest object" if count == 1 else f"{count:,} classes with the largest objects"
            return f"those of the {which} of every image"
        which = {
            "random": "all alike",
            "rare-overlooked": "fewer of rare classes",
            "small-overlooked": f"fewer of small objects (side {options.get('side', 0):g} px)",
        }[self.name]
        return f"{100 * options['share']:g} % of the present labels, {which}"

    def mask(self, table: KnownLabels, seed: int, sizes: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Return which known labels may stay; ``sizes``, which some rules need, are as ``table.values``."""
        if self.name == "annotators":
            return _known_to_annotators(table, seed, **self.options)
        if self.draws_absents:
            return drop_mask(table.columns, float(1 - Fraction(str(self.options["share"]))), seed)
        kept: NDArray[np.bool_] = table.values != PRESENT
        present = np.flatnonzero(~kept)
        drawn = random_state(seed).random_sample(len(present))
        areas = self._check_sizes(table, sizes)[present] if self.needs_sizes else np.ones(len(present))
        if self.name == "salient":
            rows = table.rows[present]
            order = np.lexsort((drawn, -areas, rows))
            first = np.searchsorted(rows, rows)  # rows ascend, before and after sorting
            kept[present[order[np.arange(len(rows)) - first < self.options["per_image"]]]] = True
            return kept
        weights = areas
        if self.name == "rare-overlooked":
            weights = table.counts().present[table.columns[present]].astype(np.float64)
        elif self.name == "small-overlooked":
            weights = areas / (areas + float(self.options["side"]) * float(self.options["side"]))
        with np.errstate(divide="ignore", invalid="ignore"):
            keys = drawn / weights
        keys[weights == 0] = np.inf
        count = min(round(Fraction(str(self.options["share"])) * len(present)), int((weights > 0).sum()))
        kept[present[lowest_mask(keys, count)]] = True
        return kept

    def _check_sizes(self, table: KnownLabels, sizes: ArrayLike | None) -> NDArray[np.float64]:
        if sizes is None:
            raise InputError(f"'{self.name}' draws by the sizes of the objects: give sizes, one for each known label.")
        checked = np.asarray(sizes, dtype=np.float64)
        if checked.shape != table.values.shape or not (np.isfinite(checked) & (checked >= 0)).all():
            raise InputError(f"sizes: {len(table.values):,} numbers from 0 are needed, one for each known label.")
        return checked


def _known_to_annotators(table: KnownLabels, seed: int, annotators: int, known: float) -> NDArray[np.bool_]:
    """Return the labels of classes that the annotator of the image knows."""
    images, classes = table.shape
    random = random_state(seed)
    order = random.permutation(classes)
    annotator = random.randint(0, annotators, images, dtype=np.int64)
    # class order[p] is the first that annotator j knows where p = ⌊jK / A⌋; he knows the next m - 1 as well
    place = np.empty(classes, dtype=np.int64)
    place[order] = np.arange(classes)
    first = annotator * classes // annotators
    count = max(1, round(Fraction(str(known)) * classes))
    return np.asarray((place[table.columns] - first[table.rows]) % max(classes, 1) < count)


def check_draw(positives: Amount | str, options: Mapping[str, Any], negatives: Amount = 0) -> LabelGap | None:
    """Return the rule that ``positives`` names, None for a number; an error for wrong names, options, ``negatives``."""
    if isinstance(positives, str) and positives != "all":
        if positives not in GAPS:
            hint = "Or give a number of labels per image."
            raise UnknownNameError("rule for present labels called", positives, ["all", *GAPS], hint)
        for name, value in options.items():
            if name not in GAPS[positives]:
                raise UnknownNameError(f"option of '{positives}' called", name, GAPS[positives])
            _check_option(name, value)
        gap = LabelGap(positives, {**GAPS[positives], **options})
        if gap.draws_absents and negatives not in (0, "all"):
            raise InputError(f"negatives={negatives!r}: '{positives}' draws absent labels, too. Leave negatives out.")
        return gap
    if options:
        option = next(iter(options))
        rules = [name for name, known in GAPS.items() if option in known]
        hint = f"it belongs to {' and '.join(map(repr, rules))}" if rules else f"rules are {', '.join(GAPS)}"
        raise InputError(f"positives={positives!r} takes no option '{option}': {hint}.")
    return None


def _check_option(name: str, value: Any) -> None:
    low, high, rule = _LIMITS[name]
    number = isinstance(value, type(high)) or (isinstance(high, float) and isinstance(value, int))
    if isinstance(value, bool) or not number or not low < value <= high:
        raise InputError(f"{name}={value!r}: {rule}.")

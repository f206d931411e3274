r"""Which labels of the machine may be accepted unseen: those of sets whose precision answers have shown.

The candidates of a class that are probably present by the audit are ordered by their scores, which no answer changes.
Sets are tried: all of them, the first two thirds, two thirds of these, and so on, as far as answers about half of a set
can be enough. The N labels of a set, W of them wrong, are asked in a random order of the review's own: by a hash of the
label and of the id of its store. So the first n decided labels of that order are a random sample without replacement,
*whatever they were decided for*: another order of asking decides only which n this is, and the bound holds at all n.

With the prior :math:`\pi_0` of W and its posterior :math:`\pi_n` after n answers, the numbers with
:math:`\pi_0(W) / \pi_n(W) < 1 / \alpha` hold the true one at all n with probability :math:`1 - \alpha` or more: the
ratio is a martingale under the true W (Waudby-Smith & Ramdas, NeurIPS 2020). So one may look after every answer, and
stop when the bound is good enough, which an interval for a fixed n (Clopper & Pearson) does not allow. The J sets of a
class share an error of 5 %, each with :math:`\alpha = 0.05 / J`.

The bound is about the labels that are accepted: wrong ones that people found in the set are known, and at most the
others are left among its open labels. "Can't tell" counts as wrong. Labels of val and test are never accepted: they
would measure the machine by itself.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from labelgap.labels import Revision
from labelgap.labels.codes import PRESENT
from labelgap.review.candidates import MISSING, combine_hashes, hash_names
from labelgap.review.folder import ReviewFolder
from labelgap.review.session import Review

MACHINE: Final = "machine"  # the source of accepted labels
LIKELY: Final = 0.5  # the score that a label needs
_ERROR: Final = 0.05  # how often the bounds of a class may fail
_PRIOR: Final = 5.0  # the prior mean of the share of wrong labels is about 1 / _PRIOR of what is allowed
_WEIGHT: Final = 60  # right answers that are added to those so far, when later ones are foreseen
_STEPS: Final = 24

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
_NONE: Final[Numbers] = np.empty(0, dtype=np.int64)


class AcceptedLabels(NamedTuple):
    """What may be accepted of a class, by its largest set that is sure enough; and what to ask for more."""

    class_name: str
    likely: int  # labels that are probably present; the sets are of these
    size: int = 0  # labels of the set: that which is accepted, else the one to ask about; 0 where all are too small
    answers: int = 0  # random answers about the set
    wrong: int = 0  # of these, labels that are not present
    bound: float = 0.0  # at least this share of the set's open labels is present, with a probability of 95 %
    accepted: Numbers = _NONE  # the candidates that may be accepted
    asked: Numbers = _NONE  # open candidates, in order, after which more can probably be accepted; may be none
    gain: int = 0  # how many more these would be


def most_wrong(size: int, answers: Numbers, wrong: Numbers, precision: float, error: float = _ERROR) -> Numbers:
    """Return how many labels of a set may be wrong, by several counts of random answers, with ``error`` at most,
    ``(M,)``.

    The ``precision`` that is demanded shapes the prior: where the bound is tightest.
    """
    total, rest = np.arange(size + 1), _PRIOR / (1 - precision)
    prior = gammaln(size - total + rest) - gammaln(size - total + 1)  # beta-binomial, the parameters 1 and `rest`
    some = slice(round(4 * (1 - precision) * size) + 1)
    prior, total = (prior - np.logaddexp.reduce(prior))[some], total[some]
    factorial = np.append(gammaln(np.arange(1, size + 2)), np.full(size, np.inf))  # of n from 0; negative: infinite
    likelihood = factorial[total] - factorial[total - wrong[:, None]]
    likelihood = likelihood + factorial[size - total] - factorial[size - total - (answers - wrong)[:, None]]
    evidence = np.logaddexp.reduce(likelihood + prior, axis=1, keepdims=True)  # of some: smaller than that of all
    most = total[-1] - (likelihood > evidence + np.log(error))[:, ::-1].argmax(axis=1)
    return np.asarray(np.where(most == total[-1], size, most), dtype=np.int64)  # larger ones were not looked at


class LikelyLabels(NamedTuple):
    """The labels of a class that are probably present, the most probable first, ``(N,)`` each."""

    numbers: Numbers  # of the candidates
    draw: NDArray[np.unsignedinteger[Any]]  # random numbers: labels are asked in the order of these
    decided: Mask
    present: Mask  # whether somebody answered that they are

    def select(self, part: slice | Numbers) -> LikelyLabels:
        """Return some of the labels."""
        return LikelyLabels._make(values[part] for values in self)


def accept_class(about: AcceptedLabels, labels: LikelyLabels, precision: float) -> AcceptedLabels:
    """Return what may be accepted of the labels of a class."""
    sizes, size = list[int](), len(labels.numbers)
    while size and _is_enough(size, precision):
        sizes.append(size)
        size = 2 * size // 3
    best, waiting = about, list[AcceptedLabels]()
    for size in sizes:
        measured = _measure(about, labels.select(slice(size)), precision, _ERROR / len(sizes))
        if len(measured.accepted):
            best = measured
            break  # the others are parts of it
        waiting.append(measured)
    more = [each._replace(gain=each.gain - len(best.accepted)) for each in waiting]
    more = [each for each in more if each.gain > 0]
    if not more:
        return best if best.size or not waiting else waiting[-1]
    following = max(more, key=lambda each: each.gain / len(each.asked))
    return (best if best.size else following)._replace(asked=following.asked, gain=following.gain)


def _is_enough(size: int, precision: float) -> bool:
    """Return whether answers about half of a set would be enough, if all were right."""
    half = size // 2
    return bool(most_wrong(size, np.array([half]), np.array([0]), precision)[0] <= (1 - precision) * (size - half))


def _measure(about: AcceptedLabels, labels: LikelyLabels, precision: float, error: float) -> AcceptedLabels:
    labels = labels.select(np.argsort(labels.draw, kind="stable"))
    size, is_open, refuted = len(labels.numbers), ~labels.decided, labels.decided & ~labels.present
    answers = int(is_open.argmax()) if is_open.any() else size
    wrong = int(refuted[:answers].sum())
    # now, and after more answers, of which as many are wrong as among those so far
    ends = np.unique(np.linspace(answers, size, _STEPS).astype(np.int64))
    asked = np.concatenate([[0], np.cumsum(is_open)])[ends]
    share = wrong / (answers + _WEIGHT)
    expected, found = (np.round(share * more).astype(np.int64) for more in (ends - answers, asked))
    most, left = most_wrong(size, ends, wrong + expected, precision, error), int(is_open.sum()) - asked
    refutes = int(refuted.sum()) + found
    bounds = np.where((most < refutes) | (left < 1), 0.0, 1 - (most - refutes) / np.maximum(left, 1))
    about = about._replace(size=size, answers=answers, wrong=wrong, bound=float(bounds[0]))
    if bounds[0] >= precision:
        return about._replace(accepted=labels.numbers[is_open])
    if not (bounds >= precision).any():
        return about
    at = int((bounds >= precision).argmax())
    first = np.arange(size) < ends[at]
    return about._replace(asked=labels.numbers[first & is_open], gain=int(left[at]))


def measure_machine(review: Review) -> list[AcceptedLabels]:
    """Return what may be accepted of each class of train; those where answers bring most come first."""
    candidates, current = review.candidates, review.current
    columns, found = candidates.columns, list[AcceptedLabels]()
    train = np.array([split == "train" for split, _ in columns.images], dtype=np.bool_)
    likely = (columns.kind == MISSING) & (columns.score >= LIKELY) & train[columns.image]
    rows = np.flatnonzero(likely & review.copies.shown)
    rows = rows[np.lexsort((columns.class_rank[rows], columns.class_number[rows]))]
    draw = combine_hashes(columns.ids[rows], np.array([hash_names(review.store.id)], dtype=np.uint64))
    with current.lock:
        answers = current.decided[rows], current.value[rows] == PRESENT
    labels = LikelyLabels(rows, draw, *answers)
    starts = np.searchsorted(columns.class_number[rows], np.arange(len(review.folder.classes) + 1))
    for name, first, last in zip(review.folder.classes, starts, starts[1:], strict=False):
        about = AcceptedLabels(name, int(last - first))
        found.append(accept_class(about, labels.select(slice(first, last)), review.precision))
    return sorted(found, key=lambda each: -each.gain / max(len(each.asked), 1))


def accept_labels(folder: ReviewFolder, precision: float) -> tuple[list[AcceptedLabels], list[Revision]]:
    """Return what ``measure_machine`` does of a folder, and the labels that are accepted."""
    with closing(Review(folder, read_only=True, precision=precision)) as review:
        found = measure_machine(review)
        numbers = np.concatenate([each.accepted for each in found]).tolist()
        keys = [key for each in numbers for key in (review.candidates.key(each), *review.copies_of(each))]
    return found, [Revision(key.image, key.class_name, PRESENT, MACHINE) for key in keys]

"""Every method a second time, as loops over numbers: what the tests of all losses compare with.

To add a method's reference, write ``reference_<paper>.py`` beside this file::

    @reference("wan", options=[{}, {"weight": 0.3}], heads={"weight": [0.1, 0.5, 1.0]})
    def weak_assume_negative(batch: Batch, *, weight: float | None = None, eps: float = 0.0) -> Answer:
        '''The equation, entry by entry, with Python's own floats; defaults as the paper has them.'''

It is found by its file name, and every test of this folder that loops over ``methods()`` uses it. A reference takes
nothing from the code that it checks: neither a function nor a default.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelgap.labels import LabelTable

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """What a loss is given, in numpy."""

    logits: Matrix  # (B, K)
    labels: NDArray[np.int8]  # (B, K) of PRESENT, ABSENT, UNKNOWN
    index: NDArray[np.int64]  # (B,) rows of the table
    features: Matrix  # (B, D)
    table: LabelTable  # N > B images, of which these are B; the loss was prepared with it
    epoch: int = 1
    epochs: int = 10
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # the loss's ``state_dict``


@dataclass(frozen=True)
class Answer:
    """What a reference says about a batch.

    Attributes:
        loss: with ``reduction="mean"``.
        gradient: ``(B, K)``, of the loss in the logits, derived by hand.
        entries: ``(B, K)``, what ``reduction="none"`` gives; None where the method has no such matrix. Where there is
            one its mean is the loss, and its sum is what ``reduction="sum"`` gives.
        learned: gradients of what the loss itself learns, by parameter name.
    """

    loss: float
    gradient: Matrix
    entries: Matrix | None = None
    learned: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A method's reference, and how it wants to be tried.

    Attributes:
        answer: ``answer(batch, **options)``.
        options: the sets of options to try; the first is the plain one, enough to run the method.
        heads: number options and the value of each of three heads, for the test of leading axes.
        gradcheck: whether the gradient is the derivative of the value (not where a stop-gradient cuts it).
        memory: what the loss has learned and decided before the batch, by key of its ``state_dict``, of one
            head; nothing when not given.
    """

    answer: Callable[..., Answer]
    options: Sequence[Mapping[str, Any]] = ({},)
    heads: Mapping[str, Sequence[float]] = field(default_factory=dict)
    gradcheck: bool = True
    memory: Callable[[LabelTable, np.random.Generator], Mapping[str, NDArray[Any]]] | None = None

    @property
    def plain(self) -> Mapping[str, Any]:
        """The first set of options."""
        return self.options[0]


_REFERENCES: dict[str, Reference] = {}


def reference(*names: str, **wishes: Any) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Enter a function as the reference of one or more methods; ``wishes`` are the fields of ``Reference``."""

    def decorate(answer: Callable[..., Answer]) -> Callable[..., Answer]:
        for name in names:
            assert name not in _REFERENCES, f"'{name}' has a reference already"
            _REFERENCES[name] = Reference(answer, **wishes)
        return answer

    return decorate


@cache
def references() -> dict[str, Reference]:
    """Every reference of this folder, by method."""
    for path in sorted(Path(__file__).parent.glob("reference_*.py")):
        importlib.import_module(f"tests.losses.{path.stem}")
    return _REFERENCES


def reference_of(name: str) -> Reference:
    """The reference of a method; without one a method is not tested, and that is an error."""
    known = references()
    assert name in known, f"'{name}' has no reference: write reference_<paper>.py in {Path(__file__).parent}"
    return known[name]


class Cost(NamedTuple):
    """What an entry costs, and the derivative of that in its logit."""

    value: float
    slope: float

    def plus(self, other: Cost) -> Cost:
        """The sum of two costs."""
        return Cost(self.value + other.value, self.slope + other.slope)

    def times(self, weight: float) -> Cost:
        """A multiple of a cost."""
        return Cost(weight * self.value, weight * self.slope)


NOTHING = Cost(0.0, 0.0)


def sigma(x: float) -> float:
    """The probability of a logit, without overflow on either side."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def present(x: float, eps: float = 0.0) -> Cost:
    """−ln(p + ε), and −p(1 − p)/(p + ε)."""
    if eps:
        return Cost(-math.log(sigma(x) + eps), -sigma(x) * sigma(-x) / (sigma(x) + eps))
    return Cost(max(-x, 0.0) + math.log1p(math.exp(-abs(x))), -sigma(-x))


def absent(x: float, eps: float = 0.0) -> Cost:
    """−ln(1 − p + ε), and p(1 − p)/(1 − p + ε)."""
    value, slope = present(-x, eps)
    return Cost(value, -slope)


def entry_by_entry(costs: Iterable[Iterable[Cost]]) -> Answer:
    """The answer of a method whose entries do not look at each other's logits: B rows of K costs."""
    rows = [list(row) for row in costs]
    values = np.array([[cost.value for cost in row] for row in rows])
    slopes = np.array([[cost.slope for cost in row] for row in rows])
    return Answer(float(values.mean()), slopes / slopes.size, values)

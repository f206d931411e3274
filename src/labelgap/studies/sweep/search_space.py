"""What a sweep searches: by default the space of the method's paper.

- Cole et al. (CVPR 2021), and every method whose paper states no other: rates 1e-2 to 1e-5, batches of 8 and 16;
- Kim et al. (CVPR 2022), `ll-…`: the ranges between those rates cut into quarters, and the options of the method;
- Zhou et al. (ECCV 2022), `em`, `dw`, `asl` …: the rates and batches of Cole, and the options of the method.

The options are those of the grid of ``compare``. Where a whole network is trained, the rates of the papers are those of
the backbone, and the head keeps its proportion to it.

For linear heads the weight decay and the standardization of the features are searched as well. Where the optimizer is
"newton", which needs no learning rate and takes all images at once, they are searched instead of rates and batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.text import parse_scalar
from labelgap.losses import loss, method_options
from labelgap.studies.compare.grid import option_grid
from labelgap.training.settings import KEYWORDS

Value = bool | int | float | str

COLE_RATES: Final = (1e-2, 1e-3, 1e-4, 1e-5)
COLE_BATCHES: Final = (8, 16)
KIM_RATES: Final = (
    *(1e-5, 2.5e-5, 5e-5, 7.5e-5, 1e-4, 2.5e-4, 5e-4, 7.5e-4),
    *(1e-3, 2.5e-3, 5e-3, 7.5e-3, 1e-2),
)
_KIM: Final = "ll-"
_WEAKEST: Final = 5e-4
_DECADES: Final = 1e4
"""The range of the weight decay, relative to the features: it has the penalties that ``candidates`` compares inside."""
_FIXED: Final = ("folds", "precision", "reviewed_absents")
"""Settings that are not searched: they do not change the model, or what val is."""
_SYNTAX: Final = "write 1e-5..1e-2:log (a range, logarithmic), 0..1 (a range) or 8,16,32 (values)"


@dataclass(frozen=True)
class Parameter:
    """A setting of training or an option of the method that is searched.

    Attributes:
        name: of the setting or option.
        choices: its values; empty for a range.
        low: the lower end of a range.
        high: its upper end, included. The range is of whole numbers where both ends are.
        log: whether values are drawn from it by their logarithm.
    """

    name: str
    choices: tuple[Value, ...] = ()
    low: int | float = 0
    high: int | float = 0
    log: bool = False

    @property
    def integer(self) -> bool:
        """Whether it is a range of whole numbers."""
        return not self.choices and isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Value, ...]:
        """The values that stand for all: the choices, or both ends."""
        return self.choices or (self.low, self.high)

    @property
    def size(self) -> float:
        """The number of values; infinite for a range that is not of whole numbers."""
        return len(self.choices) or (int(self.high) - int(self.low) + 1 if self.integer else math.inf)

    def values(self) -> Sequence[Value]:
        """Return the values of a finite parameter."""
        return self.choices or range(int(self.low), int(self.high) + 1)

    def distance(self, first: Value, second: Value) -> float:
        """Return how far two values of a finite parameter are apart, from 0 to 1: by their ranks, where they have some.

        Example:
            >>> rate = Parameter("lr", (1e-2, 1e-3, 1e-4))
            >>> rate.distance(1e-2, 1e-3), rate.distance(1e-2, 1e-4)
            (0.5, 1.0)
        """
        values = list(self.values())
        if first == second or any(isinstance(value, bool | str) for value in values):
            return float(first != second)
        ranks = sorted(values, key=float)
        return abs(ranks.index(first) - ranks.index(second)) / (len(ranks) - 1)

    def __contains__(self, value: object) -> bool:
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        """Return it as ``--search`` takes it.

        Example:
            >>> str(parse_parameter("lr", "1e-5..1e-2:log")), str(parse_parameter("batch_size", "8,16"))
            ('lr=1e-05..0.01:log', 'batch_size=8,16')
        """
        text = ",".join(map(str, self.choices)) or f"{self.low}..{self.high}{':log' if self.log else ''}"
        return f"{self.name}={text}"


def is_option(name: str, method: str) -> bool:
    """Return whether a name is an option of the method; else it is a setting of training."""
    return name in method_options(method)


def paper_space(method: str, head_factor: float | None = None) -> tuple[Parameter, ...]:
    """Return the search space of a method's paper.

    Args:
        method: one of ``methods()``.
        head_factor: where a network is trained, the learning rate of its head relative to the backbone's.

    Example:
        >>> [str(parameter) for parameter in paper_space("em")]
        ['lr=0.01,0.001,0.0001,1e-05', 'batch_size=8,16', 'alpha=0.01,0.02,0.1,0.2,0.4,0.9']
    """
    rates = KIM_RATES if method.startswith(_KIM) else COLE_RATES
    scaled = tuple(float(f"{rate * (head_factor or 1.0):.12g}") for rate in rates)
    batches = () if method.startswith(_KIM) else (Parameter("batch_size", COLE_BATCHES),)
    options = (Parameter(name, values) for name, values in option_grid(method).items())
    return (Parameter("lr", scaled), *batches, *options)


def head_space(method: str, unit: float, *, newton: bool) -> tuple[Parameter, ...]:
    """Return the search space of a linear head.

    Args:
        method: one of ``methods()``.
        unit: number of features for each label of train, to which the weight decay is relative.
        newton: whether the optimizer is "newton".

    Example:
        >>> [str(parameter) for parameter in head_space("an", 0.02, newton=True)]
        ['weight_decay=1e-05..0.1:log', 'standardize=True,False']
    """
    low = float(f"{_WEAKEST * unit:.1g}")
    decay = Parameter("weight_decay", (), low, float(f"{_DECADES * low:.1g}"), log=True)
    paper = [each for each in paper_space(method) if not (newton and each.name in ("lr", "batch_size"))]
    return (*paper, decay, Parameter("standardize", (True, False)))


def search_space(
    given: Sequence[Parameter], fixed: Collection[str], default: Sequence[Parameter]
) -> tuple[Parameter, ...]:
    """Return what is searched: the default space, with the user's ranges instead of its own, without what is fixed.

    Args:
        given: what the user searches.
        fixed: names of the settings and options that the user set.
        default: what is searched otherwise.

    Raises:
        InputError: nothing is left to search.
    """
    names = {*(each.name for each in given), *fixed}
    space = [*given, *(each for each in default if each.name not in names)]
    if math.prod(each.size for each in space) == 1:
        raise InputError(
            f"nothing is left to search: {', '.join(sorted(names))} have one value each. Leave one of them out, or "
            "give its range, e.g. --search lr=1e-5..1e-2:log"
        )
    return tuple(space)


def parse_search(method: str, search: Mapping[str, str | Sequence[Value]], fixed: Mapping[str, Any]) -> list[Parameter]:
    """Parse what a user searches.

    Args:
        method: one of ``methods()``.
        search: name → values, or a text as ``parse_parameter`` takes it.
        fixed: settings and options that the user set.

    Raises:
        InputError: a name or a range is wrong, or it is fixed too.
    """
    own = [parse_parameter(name, values) for name, values in search.items()]
    for parameter in own:
        _check(method, parameter, fixed)
    return own


def parse_parameter(name: str, values: str | Sequence[Value]) -> Parameter:
    """Parse a range or a list of values.

    Example:
        >>> parse_parameter("lr", "1e-5..1e-2:log")
        Parameter(name='lr', choices=(), low=1e-05, high=0.01, log=True)
        >>> parse_parameter("unknown", "negative,ignore").choices
        ('negative', 'ignore')
    """
    where = f"--search {name}={values if isinstance(values, str) else list(values)}"
    if not isinstance(values, str):
        return _choices(name, list(values), where)
    text, colon, scale = values.partition(":")
    low, dots, high = text.partition("..")
    if not dots:
        if colon:
            raise InputError(f"{where}: {_SYNTAX}.")
        return _choices(name, [parse_scalar(part.strip()) for part in text.split(",") if part.strip()], where)
    ends = [parse_scalar(end) for end in (low, high)]
    if any(isinstance(end, str | bool) for end in ends) or (colon and scale != "log"):
        raise InputError(f"{where}: {_SYNTAX}.")
    first, last = ends
    assert isinstance(first, int | float) and isinstance(last, int | float)
    if not (math.isfinite(first) and math.isfinite(last)) or first >= last:
        raise InputError(f"{where} is empty: the first number must be the smaller one.")
    if scale == "log" and first <= 0:
        raise InputError(f"{where}: a logarithmic range begins above 0.")
    return Parameter(name, (), first, last, scale == "log")


def grid_points(space: Sequence[Parameter], most: int) -> Iterator[dict[str, Value]] | None:
    """Return all points of a finite space of at most ``most`` points; None for any other."""
    if math.prod(parameter.size for parameter in space) > most:
        return None
    names = [parameter.name for parameter in space]
    points = itertools.product(*(parameter.values() for parameter in space))
    return (dict(zip(names, point, strict=True)) for point in points)


def _choices(name: str, values: list[Any], where: str) -> Parameter:
    if not values:
        raise InputError(f"{where} is empty: {_SYNTAX}.")
    if any(not isinstance(value, bool | int | float | str) for value in values):
        raise InputError(f"{where}: values are numbers, texts, true or false.")
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        raise InputError(f"{where}: numbers must be finite.")
    return Parameter(name, tuple(dict.fromkeys(values)))


def _check(method: str, parameter: Parameter, fixed: Mapping[str, Any]) -> None:
    """Refuse a name that the method and training do not have, one that is fixed too, and values that cannot be."""
    name = parameter.name
    settings = [each for each in KEYWORDS if each not in _FIXED]
    known = [*method_options(method), *settings]
    if name not in known:
        raise UnknownNameError(f"option of '{method}' or setting of training called", name, known)
    if name in fixed:
        raise InputError(f"{name} is given as {fixed[name]} and searched as well: leave one of them out.")
    if is_option(name, method):
        for value in parameter.ends:
            loss(method, **{name: value})

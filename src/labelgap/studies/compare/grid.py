"""The hyperparameter grids of a comparison: those of the papers, beside "auto", which ``search`` makes.

- small: learning rates 1e-3 and 1e-4 at batch size 16, with the options that the papers state for the data set, or the
  method's defaults. Most methods do best at one of the two.
- full: the grid of Cole et al. (CVPR 2021), batch sizes 8 and 16, learning rates 1e-2 to 1e-5, and the options that the
  method's own paper searched.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from labelgap.training.config import RunConfig

GRIDS: Final = ("auto", "small", "full")
"""By default, and where there is no val, settings are searched as ``fit`` searches them."""

_Values = dict[str, tuple[float, ...]]

_LEARNING_RATES: Final = {"small": (1e-3, 1e-4), "full": (1e-2, 1e-3, 1e-4, 1e-5)}
_BATCH_SIZES: Final = {"small": (16,), "full": (8, 16)}
_PERCENTS: Final[_Values] = {"delta_rel": (0.1, 0.2, 0.3, 0.4, 0.5)}
_ABSOLUTE: Final[_Values] = {"r0": (1.0, 1.5, 2.0), "delta_abs": (0.1, 0.15, 0.2)}
_SHARES: Final = (0.01, 0.02, 0.1, 0.2, 0.4, 0.9)
_PENALTIES: Final[_Values] = {"weight": (1e-9, 1e-8, 1e-7, 1e-6, 1e-5)}

_OPTIONS: Final[dict[str, _Values]] = {
    "ll-r": _PERCENTS,
    "ll-ct": _PERCENTS,
    "ll-cp": _PERCENTS,
    "ll-r-abs": _ABSOLUTE,
    "ll-ct-abs": _ABSOLUTE,
    "ll-cp-abs": _ABSOLUTE,
    "em": {"alpha": _SHARES},
    "em-apl": {"alpha": _SHARES, "beta": _SHARES},
    "dw": {"weight": _SHARES},
    "entmin": {"weight": _SHARES},
    "l1r": _PENALTIES,
    "l2r": _PENALTIES,
    "n-ls": {"smoothing": (0.1, 0.2, 0.3)},
    "focal": {"alpha": (0.25, 0.5, 0.75)},
    "asl": {"gamma_neg": (1.0, 2.0), "margin": (0.0, 0.05, 0.2)},
}
"""Kim 2022 for `ll-…`, Zhou 2022 for the rest."""


@dataclass(frozen=True)
class Hyperparameters:
    """One point of the grid of a method.

    Attributes:
        options: of the method.
        lr: learning rate.
        batch_size: images per batch.
        weight_decay: times the weights, added to their gradient.
        optimizer: "adam", or "newton", which steps on all images at once.
        standardize: whether the head is trained on standardized features.
    """

    options: Mapping[str, Any]
    lr: float
    batch_size: int
    weight_decay: float = 0.0
    optimizer: str = "adam"
    standardize: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> Hyperparameters:
        """Return those of a configuration."""
        return cls(**{each.name: getattr(config, each.name) for each in fields(cls)})


def option_grid(method: str) -> dict[str, tuple[float, ...]]:
    """Return the options that a method's paper searched, with their values; empty for most methods.

    Example:
        >>> option_grid("n-ls")
        {'smoothing': (0.1, 0.2, 0.3)}
    """
    return dict(_OPTIONS.get(method, {}))


def option_combinations(method: str, grid: str, fixed: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the options to compare: under "full" those that the paper searched, without those in ``fixed``.

    Example:
        >>> option_combinations("an", "full"), option_combinations("n-ls", "small")
        ([{}], [{}])
    """
    searched = option_grid(method) if grid == "full" else {}
    searched = {name: values for name, values in searched.items() if name not in set(fixed)}
    return [dict(zip(searched, values, strict=True)) for values in itertools.product(*searched.values())]


def hyperparameter_grid(
    method: str,
    options: Mapping[str, Any],
    grid: str = "small",
    *,
    fixed: Iterable[str] = (),
    learning_rates: Sequence[float] | None = None,
    batch_sizes: Sequence[int] | None = None,
    weight_decays: Sequence[float] | None = None,
    standardize: bool = False,
) -> list[Hyperparameters]:
    """Return the grid of a method, without the options in ``fixed``, which the user set.

    Example:
        >>> [(setting.lr, setting.batch_size) for setting in hyperparameter_grid("an", {})]
        [(0.001, 16), (0.0001, 16)]
        >>> len(hyperparameter_grid("an", {}, "full")), len(hyperparameter_grid("ll-r", {}, "full"))
        (8, 40)
    """
    return [
        Hyperparameters({**options, **combination}, float(lr), int(batch_size), decay, standardize=standardize)
        for combination in option_combinations(method, grid, fixed)
        for decay in weight_decays or (0.0,)
        for batch_size in batch_sizes or _BATCH_SIZES[grid]
        for lr in learning_rates or _LEARNING_RATES[grid]
    ]

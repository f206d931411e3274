"""Variants of a method in a comparison: rows of their own, which differ in one or several values.

What a user varies has a row for each value, each with its own learning rate and epoch by val, and its own result on
test: the effect of a hyperparameter. What a grid searches has one row, at the value that val chooses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.losses import loss, method_options

GRID_SETTINGS: Final = {"lr": "learning_rates", "batch_size": "batch_sizes", "weight_decay": "weight_decays"}
"""Settings of training that can vary, and the settings of a comparison that hold their values."""

Variation = Mapping[str, Sequence[Any]]
"""``NAME`` of an option or setting, or ``METHOD.NAME``, → its values."""


def variant_name(method: str, variant: Mapping[str, Any]) -> str:
    """Return the name of a variant in tables.

    Example:
        >>> variant_name("ll-ct", {"delta_rel": 0.2}), variant_name("an", {})
        ('ll-ct delta_rel=0.2', 'an')
    """
    return " ".join([method, *(f"{name}={value}" for name, value in variant.items())])


def method_variants(method: str, vary: Variation) -> list[dict[str, Any]]:
    """Return the variants of a method: every combination of what it varies; a single one without values for others.

    Example:
        >>> vary = {"alpha": [0.1, 0.2], "ll-r.delta_rel": [1, 2]}
        >>> method_variants("em", vary), method_variants("an", vary)
        ([{'alpha': 0.1}, {'alpha': 0.2}], [{}])
    """
    varied = {}
    for key, values in vary.items():
        owner, _, name = key.rpartition(".")
        if owner == method or (not owner and (name in GRID_SETTINGS or name in method_options(method))):
            varied[name] = values
    return [dict(zip(varied, combination, strict=True)) for combination in itertools.product(*varied.values())]


def check_variation(methods: Iterable[str], vary: Variation, options: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an error for a name that no method has, and for values that cannot be."""
    names = list(methods)
    for key, values in vary.items():
        owner, _, name = key.rpartition(".")
        if owner and owner not in names:
            raise InputError(f"--vary {key}: '{owner}' is not among the methods to compare.")
        having = [each for each in ([owner] if owner else names) if name in method_options(each)]
        if not having and name not in GRID_SETTINGS:
            known = {*GRID_SETTINGS, *(option for each in names for option in method_options(each))}
            raise UnknownNameError(f"option of {owner or ', '.join(names)} or setting called", name, sorted(known))
        if len(set(map(str, values))) < max(len(values), 2):
            raise InputError(f"--vary {key}: give two or more different values, e.g. --vary delta_rel=0.1,0.2,0.5")
        if name in GRID_SETTINGS and any(not isinstance(value, int | float) or not value >= 0 for value in values):
            raise InputError(f"--vary {key}: {', '.join(map(str, values))} are not all numbers from 0.")
        for each in having:
            if name in options.get(each, {}):
                raise InputError(f"--vary {key}: --option {each}.{name} gives it one value: leave one of them out.")
            for value in values:
                loss(each, **{**options.get(each, {}), name: value})
    most = math.prod(len(values) for values in vary.values())
    if most > 200:
        raise InputError(f"--vary: {most:,} combinations; vary fewer values at a time.")

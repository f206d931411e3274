"""Losses by name. To add one here: a file in this folder with ``@method(…)`` over its class, and its test.

A package of your own calls ``labelgap.register_method``, or names its classes in the entry point group
"labelgap.methods": then the commands know them too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from labelgap.core.class_path import find_class, is_class_path
from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.registry import Registry, load_plugins
from labelgap.losses.base.loss import Loss
from labelgap.losses.base.papers import Paper

ENTRY_POINTS = "labelgap.methods"
"""The entry point group in which an installed package names its losses."""

LossClass = TypeVar("LossClass", bound=type[Loss])


@dataclass(frozen=True)
class Method:
    """A method that can be asked for by name.

    Attributes:
        name: what users write.
        loss_class: its class.
        summary: a line for ``labelgap methods``.
        paper: who proposed it; None for a method of somebody's own.
    """

    name: str
    loss_class: type[Loss]
    summary: str
    paper: Paper | None = None

    @property
    def reference(self) -> str:
        """First author and year of the paper; empty where there is none."""
        return "" if self.paper is None else self.paper.short

    @property
    def citation(self) -> str:
        """The paper in full; empty where there is none."""
        return "" if self.paper is None else self.paper.citation


_METHODS: Registry[Method] = Registry("method", hint="`labelgap methods` lists all {count}.")


def method(name: str, *, summary: str, paper: Paper) -> Callable[[LossClass], LossClass]:
    """Register a class of this package; may stand several times over a class that papers know by several names."""

    def decorate(loss_class: LossClass) -> LossClass:
        _METHODS.add(name, Method(name, loss_class, summary, paper), summary=summary)
        return loss_class

    return decorate


def register_method(name: str, loss_class: type[Loss], *, summary: str = "", paper: Paper | None = None) -> None:
    """Make a loss of your own known by name to ``loss``, ``fit`` and, in the same process, the commands.

    Args:
        name: what users write; not one that is taken.
        loss_class: a subclass of ``Loss``; the parameters of its ``__init__`` are the method's options.
        summary: a line for ``labelgap methods``; the first line of the class's docstring when not given.
        paper: who proposed it.
    """
    if not (isinstance(loss_class, type) and issubclass(loss_class, Loss)):
        raise InputError(f"the method '{name}' needs a subclass of labelgap.Loss, not {loss_class!r}.")
    if name in _METHODS:
        raise InputError(f"there is a method '{name}' already: choose another name.")
    summary = summary or _first_line(loss_class)
    _METHODS.add(name, Method(name, loss_class, summary, paper), summary=summary)


def methods() -> list[str]:
    """Return the name of every method: those of this package, then those of plug-ins.

    Example:
        >>> "an" in methods()
        True
    """
    return _registry().names()


def describe_method(name: str) -> Method:
    """Return the class, the summary and the paper of a method; ``package.module:Class`` is a class of your own."""
    if is_class_path(name):
        loss_class = find_class(name, Loss)
        return Method(name, loss_class, _first_line(loss_class))
    return _registry().get(name).value


def loss(name: str, **options: Any) -> Loss:
    """Create a loss by name.

    Args:
        name: one of ``methods()``.
        **options: of the method; an unknown one is an error that names the nearest.

    Example:
        >>> loss("an-ls", smoothing=0.2)
        SmoothedAssumeNegative(an-ls)
    """
    known = method_options(name)
    for option in options:
        if option not in known:
            hint = "" if known else f"'{name}' has no options."
            raise UnknownNameError(f"option of '{name}' called", option, known, hint)
    try:
        loss_fn = describe_method(name).loss_class(**options)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    loss_fn.name = name
    return loss_fn


def method_options(name: str) -> dict[str, Any]:
    """Return the options a user may give to a method, with their defaults."""
    return _options(describe_method(name).loss_class)


def option_meanings(name: str) -> dict[str, str]:
    """Return what the docstrings of a method's class and its bases say about each option.

    Example:
        >>> option_meanings("gr")["q2"]
        'robustness of the positive side, above 0.'
    """
    found: dict[str, str] = {}
    for each in reversed(describe_method(name).loss_class.__mro__):
        match = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.getdoc(each) or "", re.MULTILINE)
        for entry in re.split(r"\n(?=    \S)", match[1].rstrip()) if match else []:
            option, _, meaning = entry.strip().partition(":")
            if not meaning.strip().startswith("see ``"):
                found[option] = " ".join(meaning.split())
    return found


def loss_options(loss_fn: Loss) -> dict[str, Any]:
    """Return the options that a loss was created with, read from its attributes of the same names.

    Example:
        >>> loss_options(loss("an-ls", smoothing=0.2))
        {'smoothing': 0.2, 'eps': 0.0, 'reduction': 'mean'}
    """
    missing = [name for name in _options(type(loss_fn)) if not hasattr(loss_fn, name)]
    if missing:
        raise InputError(
            f"the options of {type(loss_fn).__name__} cannot be recorded: __init__ takes {missing[0]!r}, and the "
            f"object has no attribute of that name. Set self.{missing[0]} = {missing[0]}."
        )
    return {name: getattr(loss_fn, name) for name in _options(type(loss_fn))}


def _first_line(loss_class: type[Loss]) -> str:
    return (inspect.getdoc(loss_class) or loss_class.__name__).splitlines()[0]


def _options(loss_class: type[Loss]) -> dict[str, Any]:
    parameters = inspect.signature(loss_class).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    defaults = {item.name: item.default for item in parameters if item.kind in named}
    return {name: None if value is inspect.Parameter.empty else value for name, value in defaults.items()}


@cache
def _registry() -> Registry[Method]:
    """Register what installed packages bring along, once."""
    for name, value in load_plugins(ENTRY_POINTS):
        register_method(name, value)
    return _METHODS

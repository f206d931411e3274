"""Objectives by name. To add one: write a file in this folder with ``@method(…)`` over its class, and its test."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from labelgap.core.errors import InputError, UnknownNameError
from labelgap.core.registry import Registry, RegistryEntry
from labelgap.losses.base import Loss

__all__ = ["describe_method", "loss", "method", "method_options", "methods"]

LossClass = TypeVar("LossClass", bound=type[Loss])


_METHODS: Registry[type[Loss]] = Registry("method", hint="`labelgap methods` lists all.")


def method(name: str, *, summary: str, paper: str) -> Callable[[LossClass], LossClass]:
    """Enter a class under a name; may stand several times over a class that papers know by several names.

    Args:
        name: what users write.
        summary: a line for ``labelgap methods``.
        paper: who proposed it.
    """

    def decorate(kind: LossClass) -> LossClass:
        _METHODS.add(name, kind, summary=summary, reference=paper)
        return kind

    return decorate


def methods() -> list[str]:
    """Return the name of every method, file by file, whatever was imported first.

    Example:
        >>> "an" in methods()
        True
    """
    return [entry.name for entry in sorted(_found(), key=lambda entry: entry.value.__module__)]


def describe_method(name: str) -> RegistryEntry[type[Loss]]:
    """Return what is known of a method: its class, a line about it, its paper."""
    return _found().get(name)


def loss(name: str, **options: Any) -> Loss:
    """Make an objective by name.

    Args:
        name: one of ``methods()``.
        **options: of the method; an unknown one is an error that names the nearest.

    Example:
        >>> loss("an-ls", smoothing=0.2)
        SmoothedAssumeNegative(an-ls)
    """
    entry = describe_method(name)
    known = method_options(name)
    for option in options:
        if option not in known:
            hint = "" if known else f"'{name}' has no options."
            raise UnknownNameError(f"option of '{name}' called", option, known, hint)
    try:
        made = entry.value(**options)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    made.name = name
    return made


def method_options(name: str) -> dict[str, Any]:
    """Return the options a user may give to a method, with their defaults."""
    parameters = inspect.signature(describe_method(name).value.__init__).parameters
    return {key: parameter.default for key, parameter in parameters.items() if key != "self"}


@cache
def _found() -> Registry[type[Loss]]:
    """Import every file of this folder once, so that their methods are entered."""
    package = importlib.import_module("labelgap.losses")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _METHODS

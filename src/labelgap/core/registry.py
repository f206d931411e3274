"""Registries: methods, data sets, backbones by name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from labelgap.core.errors import UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True)
class RegistryEntry(Generic[T]):
    """One entry of a registry: a value, its one-line summary and its reference."""

    name: str
    value: T
    summary: str
    reference: str = ""


class Registry(Generic[T]):
    """A dictionary by name of a ``kind``; the error for an unknown name suggests the nearest, and ends in ``hint``."""

    def __init__(self, kind: str, hint: str = "") -> None:
        self.kind, self.hint = kind, hint
        self._entries: dict[str, RegistryEntry[T]] = {}

    def add(self, name: str, value: T, *, summary: str, reference: str = "") -> T:
        """Add a value under a new name, and return it."""
        if name in self._entries:
            raise ValueError(f"the {self.kind} '{name}' is registered already")
        self._entries[name] = RegistryEntry(name, value, summary, reference)
        return value

    def get(self, name: str) -> RegistryEntry[T]:
        """Return the entry of a name, or raise ``UnknownNameError`` with the nearest one."""
        try:
            return self._entries[name]
        except KeyError:
            about = {entry.name: entry.summary for entry in self}
            hint = self.hint.replace("{count}", str(len(self)))
            raise UnknownNameError(self.kind, str(name), about, hint, about=about) from None

    def names(self) -> list[str]:
        """Return every name, in the order of registration."""
        return list(self._entries)

    def __iter__(self) -> Iterator[RegistryEntry[T]]:
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)


def load_plugins(group: str) -> Iterator[tuple[str, Any]]:
    """Yield name and object of every entry point of a group; one that cannot be loaded is skipped with a warning."""
    for entry_point in entry_points(group=group):
        try:
            value = entry_point.load()
        except Exception as error:  # whatever somebody's module raises when it is imported
            package = entry_point.dist.name if entry_point.dist is not None else entry_point.value
            warnings.warn(
                f"'{entry_point.name}' of the package {package} is left out, it cannot be loaded "
                f"({type(error).__name__}: {error}).",
                stacklevel=2,
            )
            continue
        yield entry_point.name, value

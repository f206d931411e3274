"""Decisions about classes that the data do not have, and the data with these classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.labels import LabelTable, Revision
from labelgap.review.new_classes.names import check_class_name, folded_name, taken_names
from labelgap.review.store import read_classes


class ClassSpellings:
    """The names that decisions of several reviews have in one table.

    A class that a review added is that of the table where the names differ in case, blanks or Unicode's forms; of two
    reviews that added it, the first one's spelling counts.

    Args:
        data: whose classes the table has.
    """

    def __init__(self, data: Dataset) -> None:
        self._data, self._taken = data, taken_names(data)
        self._spelling = {folded_name(name): name for name in data.classes}
        self._known = {*data.classes}

    def rename(self, path: Path, decided: Iterable[tuple[str, Revision]]) -> list[tuple[str, Revision]]:
        """Return the decisions of the review in a folder with the names of the table.

        Raises:
            InputError: neither the data nor the people of the review have the class.
        """
        decided = list(decided)
        other = {revision.class_name for _, revision in decided} - self._known
        added = {each.name for each in read_classes(path)} if other else set()
        names = {name: self._name(name, name in added, path) for name in sorted(other)}
        return [
            (split, replace(each, class_name=names.get(each.class_name, each.class_name))) for split, each in decided
        ]

    def _name(self, name: str, added: bool, path: Path) -> str:
        if not added:
            raise InputError(
                f"{path} has a decision about the class {truncate_text(name)!r}, which {self._data.name} does not have."
            )
        key = folded_name(name)
        if key not in self._spelling:
            self._spelling[key] = check_class_name(name, (), taken=self._taken)
        return self._spelling[key]


def with_classes(data: Dataset, names: Sequence[str]) -> Dataset:
    """Return data with more classes, whose labels are unknown."""
    if not names:
        return data
    classes = (*data.classes, *names)

    def extended(table: LabelTable) -> LabelTable:
        return table.with_classes(classes)

    splits = {
        split.name: replace(
            split, labels=extended(split.labels), truth=None if split.truth is None else extended(split.truth)
        )
        for split in data.splits
    }
    return replace(data, **splits)  # type: ignore[arg-type]

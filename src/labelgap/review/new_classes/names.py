"""Which names a new class may have: those that every table of labels can hold, and that nothing else has."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from labelgap.core.errors import InputError
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.labels.io.classes import resolve_class_names
from labelgap.labels.io.parse import CellParser, is_reserved_name
from labelgap.labels.io.table_file import TableOptions
from labelgap.review.schemas import printable_name
from labelgap.review.store.schema import MAX_CLASSES

MAX_NAME: Final = 80
"""Characters of a name."""
_SEPARATORS: Final = ";,|[]"
"""What tables write between and around the names of a list."""


def check_class_name(name: str, classes: Iterable[str], added: int = 0, taken: Iterable[str] = ()) -> str:
    """Return the name under which a class joins a review: without surplus blanks, composed Unicode.

    Args:
        name: as a person typed it.
        classes: that there are.
        added: how many of them were added.
        taken: other names that the data use; see ``taken_names``.

    Raises:
        InputError: the name cannot be used; the message says why.

    Example:
        >>> check_class_name("  traffic   light ", ["cat", "dog"])
        'traffic light'
    """
    try:
        name = printable_name(unicodedata.normalize("NFC", name))
    except ValueError:
        raise InputError("the name of a class consists of printable characters.") from None
    shown = truncate_text(name)
    if len(name) > MAX_NAME:
        raise InputError(f"the name of a class has at most {MAX_NAME} characters; this one has {len(name):,}.")
    if found := next((mark for mark in _SEPARATORS if mark in name), ""):
        raise InputError(f"'{shown}' has a '{found}', which tables write between names. Leave it out.")
    if is_reserved_name(name) or CellParser().code(name) is not None:
        raise InputError(f"'{shown}' has a meaning of its own in tables of labels. Choose another name.")
    key = folded_name(name)
    for other in classes:
        if folded_name(other) == key:
            raise InputError(f"there is a class '{truncate_text(other)}' already.")
    if key in map(folded_name, taken):
        raise InputError(f"'{shown}' is a name that the data use for something else. Choose another one.")
    if added >= MAX_CLASSES:
        raise InputError(f"{MAX_CLASSES} classes were added already, which is the most. Apply them, and train again.")
    return name


def folded_name(name: str) -> str:
    """Return what two spellings of one name have in common: they differ in case, blanks or Unicode's forms.

    Example:
        >>> folded_name("Straße  7") == folded_name("STRASSE 7")
        True
    """
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def taken_names(data: Dataset) -> set[str]:
    """Return names that the reader of a table takes for something else than a class of that name."""
    if data.recipe.get("name") not in ("csv", "parquet"):
        return set()
    options = TableOptions.of(data.recipe["options"])
    return {*options.ignore_columns, *resolve_class_names(options)}

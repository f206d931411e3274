"""The header of a table of labels: which column holds images, splits, groups, lists or a class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError, nearest
from labelgap.core.text import format_option, truncate_text
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.table_file import TableOptions

__all__ = ["HeaderColumns", "LIST_COLUMNS", "RESERVED_COLUMNS", "is_header", "parse_header"]

RESERVED_COLUMNS: Final = ("image", "split", "group")
LIST_COLUMNS: Final = ("present", "absent")


@dataclass(frozen=True)
class HeaderColumns:
    """The header, its line, the indices of the columns of each kind, and the names of those that are ignored.

    ``present`` and ``absent`` are the columns of lists; ``class_columns``, with a class each, are none beside them.
    """

    line: int
    header: Sequence[str]
    image: int
    split: int | None
    group: int | None
    present: int | None
    absent: int | None
    class_columns: tuple[int, ...]
    ignored: tuple[str, ...]

    @property
    def lists(self) -> bool:
        """Whether the table has lists of classes, rather than a column per class."""
        return self.present is not None


def is_header(header: Iterable[str], options: TableOptions) -> bool:
    """Return whether one of these columns holds the names of the images."""
    return "image" in {_column_role(name, options) for name in header}


def parse_header(
    line: int, header: Sequence[str], options: TableOptions, names: Mapping[str, str], problems: ProblemList
) -> HeaderColumns:
    """Find the reserved columns, those of classes (``names``: their final names), and those to ignore.

    ``line`` is 0 in files without lines. Problems that do not prevent reading the rows are added to ``problems``.
    """
    path, names_found, ignored_names = problems.path, {*header}, {*options.ignore_columns}
    if not header:
        raise InputError(f"{path} is empty: it needs a header line such as image,cat,dog and a row per image.")
    for name in options.ignore_columns:
        if name not in names_found:
            raise UnknownNameError("column", truncate_text(name), map(truncate_text, header))
    used = [number for number, name in enumerate(header) if name not in ignored_names]
    lists = any(_column_role(header[number], options) == "present" for number in used)
    special = (*RESERVED_COLUMNS, *(LIST_COLUMNS if lists else ()))
    position: dict[str, int] = {}
    for number in used:
        role = _column_role(header[number], options)
        if role in special:
            position.setdefault(role, number)
    if "image" not in position:
        where = f"{path}, line {line}" if line else path
        raise InputError(f"{where}: no column is called 'image'. {_hint(header)}")
    rest = [number for number in used if _column_role(header[number], options) not in special]
    chosen = _select_columns(header, rest, options, names) if not lists else []
    for message in _problems(header, used, rest if lists else (), special, options):
        problems.add(line, message)
    if not chosen and not lists:
        raise InputError(f"{path}: no class: after 'image' comes a column per class, or 'present'.")
    kept = {*position.values(), *chosen, *(rest if lists else ())}
    ignored = tuple(name for number, name in enumerate(header) if number not in kept)
    split, group, present, absent = (position.get(name) for name in ("split", "group", *LIST_COLUMNS))
    return HeaderColumns(line, header, position["image"], split, group, present, absent, tuple(chosen), ignored)


def _column_role(name: str, options: TableOptions) -> str:
    """Return the name of a column after renaming, in lower case if it is a reserved one."""
    target = options.rename.get(name, name).lower()
    return target if target in (*RESERVED_COLUMNS, *LIST_COLUMNS) else options.rename.get(name, name)


def _select_columns(
    header: Sequence[str], rest: Sequence[int], options: TableOptions, names: Mapping[str, str]
) -> list[int]:
    """Return the columns of classes; with ``options.classes`` only those, by their own or their final name."""
    if options.classes is None:
        return list(rest)
    selected = {names.get(name, name) for name in options.classes}
    found = [number for number in rest if names.get(header[number], header[number]) in selected]
    missing = selected - {names.get(header[number], header[number]) for number in found}
    if missing:
        raise UnknownNameError(
            "tag", truncate_text(min(missing)), [truncate_text(header[number]) for number in rest], "(--classes)"
        )
    return found


def _problems(
    header: Sequence[str],
    used: Sequence[int],
    beside_lists: Sequence[int],
    special: Sequence[str],
    options: TableOptions,
) -> Iterable[str]:
    """Yield the problems of the column names."""
    seen, refused = set[str](), {*beside_lists}
    for number in used:
        name = header[number]
        role = _column_role(name, options)
        key = role if role in special else name
        if not name:
            yield f"column {number + 1} has no name"
        elif key in seen:
            yield f"the column '{truncate_text(name)}' is there twice"
        elif number in refused:
            yield (
                f"'{truncate_text(name)}' beside present: lists have image, split, group, present and absent; "
                f"{format_option('ignore-columns', name)} leaves it out"
            )
        seen.add(key)


def _hint(header: Sequence[str]) -> str:
    close = nearest("image", header)
    hint = f"Is '{truncate_text(close)}' it? {format_option('rename', f'{close}=image')}. " if close else ""
    other = "" if close else "Say which it is with --rename NAME=image. "
    return f"{hint}{other}The header reads {truncate_text(','.join(header), 200)}"

"""What the columns of a table of labels mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, Problem, UnknownNameError, nearest
from labelgap.core.text import format_option, truncate_text
from labelgap.labels.io.table_file import TableOptions

__all__ = ["HeaderColumns", "LIST_COLUMNS", "RESERVED_COLUMNS", "is_header", "parse_header"]

RESERVED_COLUMNS: Final = ("image", "split", "group")
LIST_COLUMNS: Final = ("present", "absent")


@dataclass(frozen=True)
class HeaderColumns:
    """Where everything is in a row.

    Attributes:
        line: where the header stands.
        header: the name of every column.
        image: number of the column of image names; the next four are None where there is no such column.
        split: of train, val, test.
        group: of the groups.
        present: of the lists of present tags.
        absent: of the lists of absent tags.
        tags: the columns with a tag each, in the order of the classes; none in a table of lists.
        ignored: names of the columns that are left out.
    """

    line: int
    header: Sequence[str]
    image: int
    split: int | None
    group: int | None
    present: int | None
    absent: int | None
    tags: tuple[int, ...]
    ignored: tuple[str, ...]

    @property
    def lists(self) -> bool:
        """Whether the table has lists of tags, rather than a column per tag."""
        return self.present is not None


def is_header(header: Iterable[str], options: TableOptions) -> bool:
    """Whether one of these columns holds the names of the images."""
    return "image" in {_meaning(name, options) for name in header}


def parse_header(
    path: Path,
    line: int,
    header: Sequence[str],
    options: TableOptions,
    names: Mapping[str, str],
    problems: list[Problem],
) -> HeaderColumns:
    """Find the columns with a meaning of their own, those of tags, and those to leave out.

    Args:
        path: the file, for messages.
        line: where the header stands; 0 in files without lines.
        header: the name of every column.
        options: ``rename``, ``ignore_columns`` and ``classes`` count here.
        names: the final name of every tag that has another.
        problems: takes what is wrong with the header, when the rows can be read all the same.
    """
    if not header:
        raise InputError(f"{path} is empty: it needs a header line such as image,cat,dog and a row per image.")
    for name in options.ignore_columns:
        if name not in header:
            raise UnknownNameError("column", truncate_text(name), map(truncate_text, header))
    used = [number for number, name in enumerate(header) if name not in options.ignore_columns]
    lists = any(_meaning(header[number], options) == "present" for number in used)
    special = (*RESERVED_COLUMNS, *(LIST_COLUMNS if lists else ()))
    position: dict[str, int] = {}
    for number in used:
        meaning = _meaning(header[number], options)
        if meaning in special:
            position.setdefault(meaning, number)
    if "image" not in position:
        where = f"{path}, line {line}" if line else path
        raise InputError(f"{where}: no column is called 'image'. {_hint(header)}")
    rest = [number for number in used if _meaning(header[number], options) not in special]
    chosen = _chosen(header, rest, options, names) if not lists else []
    for message in _wrong(header, used, rest, special, options, lists):
        problems.append(Problem(line, message))
    if not chosen and not lists:
        raise InputError(f"{path}: no class: after 'image' comes a column per class, or 'present'.")
    kept = {*position.values(), *chosen, *(rest if lists else ())}
    ignored = tuple(name for number, name in enumerate(header) if number not in kept)
    split, group, present, absent = (position.get(name) for name in ("split", "group", *LIST_COLUMNS))
    return HeaderColumns(line, header, position["image"], split, group, present, absent, tuple(chosen), ignored)


def _meaning(name: str, options: TableOptions) -> str:
    """Return what a column is called after renaming, in small letters where that is all that counts."""
    target = options.rename.get(name, name).lower()
    return target if target in (*RESERVED_COLUMNS, *LIST_COLUMNS) else options.rename.get(name, name)


def _chosen(header: Sequence[str], rest: Sequence[int], options: TableOptions, names: Mapping[str, str]) -> list[int]:
    """Return the columns of tags; with ``classes`` those that are asked for, by their own or by their final name."""
    if options.classes is None:
        return list(rest)
    wanted = {names.get(name, name) for name in options.classes}
    found = [number for number in rest if names.get(header[number], header[number]) in wanted]
    missing = wanted - {names.get(header[number], header[number]) for number in found}
    if missing:
        raise UnknownNameError(
            "tag", truncate_text(min(missing)), [truncate_text(header[number]) for number in rest], "(--classes)"
        )
    return found


def _wrong(
    header: Sequence[str],
    used: Sequence[int],
    rest: Sequence[int],
    special: Sequence[str],
    options: TableOptions,
    lists: bool,
) -> Iterable[str]:
    """Say what is wrong with the names of the columns."""
    seen: set[str] = set()
    for number in used:
        name = header[number]
        meaning = _meaning(name, options)
        key = meaning if meaning in special else name
        if not name:
            yield f"column {number + 1} has no name"
        elif key in seen:
            yield f"the column '{truncate_text(name)}' is there twice"
        elif lists and number in rest:
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

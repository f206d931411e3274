"""The header of a table of labels: which column holds images, splits, groups, lists or a class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from labelgap.core.errors import InputError, UnknownNameError, nearest
from labelgap.core.text import format_option, truncate_text
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.labels.io.cells import Cell, CellParser
from labelgap.labels.io.problems import ProblemList
from labelgap.labels.io.table_file import TableOptions

RESERVED_COLUMNS: Final = ("image", "split", "group")
LIST_COLUMNS: Final = ("present", "absent")
COLUMN_SYNONYMS: Final[Mapping[str, frozenset[str]]] = {
    "image": frozenset(
        {
            "file",
            "filename",
            "filepath",
            "imagefile",
            "imageid",
            "imagename",
            "imagepath",
            "img",
            "imgpath",
            "path",
            "photo",
            "picture",
        }
    ),
    "split": frozenset({"datasplit", "partition", "subset"}),
}
"""Other names of reserved columns, in lower case and without blanks and marks. One of them counts where no column has
the name itself."""
LIST_SYNONYMS: Final = frozenset(
    {"categories", "category", "class", "classes", "keyword", "keywords", "label", "labels", "tag", "tags"}
)
"""Other names of ``present``. One counts where its cells are no states, and those of no other column are."""
SAMPLE_ROWS: Final = 1000
"""Rows whose cells decide that."""
UNSURE_COLUMN: Final = "unsure"
"""Beside lists: classes that a prediction did not decide. They are unknown, so the column is ignored."""


_FILE_NAME: Final = re.compile(r"[^.\s]\.[A-Za-z][A-Za-z0-9]{2,3}$")
_MAX_END: Final = 100
_PHOTO_NAME: Final = re.compile(r"[^.\s]\.(?:jpe?g|png|webp|gif|bmp|tiff?|heic|avif)$", re.IGNORECASE)


@dataclass(frozen=True)
class HeaderColumns:
    """The header, its line, the indices of the columns of each kind, and the names of those that are ignored.

    ``image`` is None where no column is called so, which is among the problems; ``probable_image`` is then the only one
    that holds names of files, if there is one. ``present`` and ``absent`` are the
    columns of lists; ``class_columns``, with a class each, are none beside them.
    """

    line: int
    header: Sequence[str]
    image: int | None
    probable_image: int | None
    split: int | None
    group: int | None
    present: int | None
    absent: int | None
    class_columns: tuple[int, ...]
    ignored: tuple[str, ...]

    @property
    def image_names(self) -> int | None:
        """The column to check the names of images in."""
        return self.probable_image if self.image is None else self.image

    @property
    def lists(self) -> bool:
        """Whether the table has lists of classes, rather than a column per class."""
        return self.present is not None

    @property
    def synonyms(self) -> list[tuple[str, str]]:
        """The columns that were recognized by another name: that name, and the reserved one."""
        numbers = {"image": self.image, "split": self.split}
        named = [(self.header[number], role) for role, number in numbers.items() if number is not None]
        found = [(name, role) for name, role in named if _plain(name) in COLUMN_SYNONYMS[role]]
        if self.present is not None and _plain(self.header[self.present]) in LIST_SYNONYMS:
            found.append((self.header[self.present], "present"))
        return found


def is_reserved_name(name: str) -> bool:
    """Return whether a column of this name may be read as something else than a class.

    Example:
        >>> [is_reserved_name(name) for name in ("Image", "file name", "tags", "zebra")]
        [True, True, True, False]
    """
    reserved = {*RESERVED_COLUMNS, *LIST_COLUMNS, UNSURE_COLUMN, *LIST_SYNONYMS}
    return _plain(name) in reserved.union(*COLUMN_SYNONYMS.values())


def is_list_name(name: str) -> bool:
    """Return whether a column of this name may list classes.

    Example:
        >>> is_list_name("Label"), is_list_name("value")
        (True, False)
    """
    return _plain(name) in LIST_SYNONYMS


def is_header(header: Iterable[str], options: TableOptions) -> bool:
    """Return whether one of these columns holds the names of the images."""
    return "image" in _column_roles([*header], options)


def parse_header(
    line: int,
    header: Sequence[str],
    options: TableOptions,
    names: Mapping[str, str],
    problems: ProblemList,
    sample: Sequence[Sequence[Cell]],
) -> HeaderColumns:
    """Find the reserved columns, those of classes (``names``: their final names), and those to ignore.

    ``line`` is 0 in files without lines; ``sample`` are the cells of the first ``SAMPLE_ROWS`` rows. Problems that do
    not prevent reading the rows are added to ``problems``.
    """
    path, names_found, ignored_names = problems.path, {*header}, {*options.ignore_columns}
    if not header:
        raise InputError(f"{path} is empty: it needs a header line such as image,cat,dog and a row per image.")
    for name in options.ignore_columns:
        if name not in names_found:
            raise UnknownNameError("column", truncate_text(name), map(truncate_text, header))
    roles = _column_roles(header, options)
    if "image" not in roles and (photo := next((name for name in header if _PHOTO_NAME.search(name)), None)):
        place = f", line {line}" if line else ""
        raise InputError(
            f"{path}{place}: there is no header, since '{truncate_text(photo)}' is an image. Put a line before it that "
            "names the columns: 'image' for this one, and for the others a tag each, or 'present' for lists of tags."
        )
    unnamed = {number for number, name in enumerate(header) if not name and _holds_no_states(number, sample)}
    used = [number for number, name in enumerate(header) if name not in ignored_names and number not in unnamed]
    _recognize_lists(header, roles, used, sample)
    lists = any(roles[number] == "present" for number in used)
    special = (*RESERVED_COLUMNS, *(LIST_COLUMNS if lists else ()))
    position: dict[str, int] = {}
    for number in used:
        if roles[number] in special:
            position.setdefault(roles[number], number)
    left_out = (*special, UNSURE_COLUMN) if lists else special
    rest = [number for number in used if roles[number] not in left_out]
    beside_lists = rest if lists else []
    probable = None
    if "image" not in position:
        probable = _column_of_files(rest, sample)
        if probable is None and len(beside_lists) == 1:
            probable = beside_lists[0]
        candidates = [header[probable]] if probable is not None else header
        problems.add(line, f"no column is called 'image'. {_hint(header, candidates)}")
        rest = [number for number in rest if number != probable]
        beside_lists = [number for number in beside_lists if number != probable]
    chosen = _select_columns(header, rest, options, names) if not lists else []
    problems.fixable &= "image" in position and bool(chosen or lists)
    for message in _problems(header, roles, used, beside_lists, special):
        problems.add(line, message)
    if not chosen and not lists:
        problems.add(line, "no class: after 'image' comes a column per class, or 'present'")
    kept = {*position.values(), *chosen, *(rest if lists else ())}
    ignored = tuple(name or f"column {number + 1}" for number, name in enumerate(header) if number not in kept)
    image, split, group, present, absent = (position.get(name) for name in (*RESERVED_COLUMNS, *LIST_COLUMNS))
    return HeaderColumns(line, header, image, probable, split, group, present, absent, tuple(chosen), ignored)


def _column_roles(header: Sequence[str], options: TableOptions) -> list[str]:
    """Return the name of every column after renaming, in lower case if it is a reserved one.

    A reserved name that no column has goes to the only column that has a synonym of it.
    """
    renamed = [options.rename.get(name, name) for name in header]
    roles = [name.lower() if name.lower() in (*RESERVED_COLUMNS, *LIST_COLUMNS) else name for name in renamed]
    for role, synonyms in COLUMN_SYNONYMS.items():
        found = [number for number, name in enumerate(header) if _plain(name) in synonyms and name == roles[number]]
        found = [number for number in found if header[number] not in options.ignore_columns]
        if role not in roles and len(found) == 1:
            roles[found[0]] = role
    return roles


def _recognize_lists(
    header: Sequence[str], roles: list[str], used: Sequence[int], sample: Sequence[Sequence[Cell]]
) -> None:
    """Make the only column with a synonym of ``present`` that one, if it holds names and no other column states."""
    open_columns = [number for number in used if roles[number] not in (*RESERVED_COLUMNS, *LIST_COLUMNS)]
    candidates = [number for number in open_columns if _plain(header[number]) in LIST_SYNONYMS]
    if "present" in roles or len(candidates) != 1 or roles[candidates[0]] != header[candidates[0]]:
        return
    parser = CellParser()
    for number in open_columns:
        cells = [row[number] for row in sample if number < len(row) and row[number]]
        codes = [parser.code(cell) if isinstance(cell, str) else None for cell in cells]
        states, others = sum(code in (PRESENT, ABSENT) for code in codes), codes.count(None)
        if (others <= states) if number in candidates else (states > others):
            return
    roles[candidates[0]] = "present"


def _holds_no_states(number: int, sample: Sequence[Sequence[Cell]]) -> bool:
    """Return whether a column is blank, or most of its cells are no states, e.g. the numbers of the rows."""
    parser = CellParser()
    cells = [row[number] for row in sample if number < len(row) and row[number]]
    states = sum(isinstance(cell, str) and parser.code(cell) is not None for cell in cells)
    return not cells or 2 * states < len(cells)


def holds_file_names(cells: Sequence[Cell]) -> bool:
    """Return whether most of these cells are names of files; of a long text its end decides."""
    names = sum(isinstance(cell, str) and _FILE_NAME.search(cell[-_MAX_END:]) is not None for cell in cells)
    return 2 * names > len(cells)


def _column_of_files(columns: Sequence[int], sample: Sequence[Sequence[Cell]]) -> int | None:
    """Return the only column of which most cells are names of files; None where there is none, or several."""
    found = []
    for number in columns:
        if holds_file_names([row[number] for row in sample if number < len(row) and row[number]]):
            found.append(number)
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    """Return the name of a column in lower case, without blanks and marks."""
    return re.sub(r"[\W_]+", "", name).lower()


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
    roles: Sequence[str],
    used: Sequence[int],
    beside_lists: Sequence[int],
    special: Sequence[str],
) -> Iterable[str]:
    """Yield the problems of the column names."""
    seen, refused = set[str](), {*beside_lists}
    for number in used:
        name, role = header[number], roles[number]
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


def _hint(header: Sequence[str], candidates: Sequence[str]) -> str:
    several = [name for name in candidates if _plain(name) in COLUMN_SYNONYMS["image"]]
    close = candidates[0] if len(candidates) == 1 else nearest("image", candidates)
    if len(several) > 1:
        names = " and ".join(f"'{truncate_text(name)}'" for name in several[:2])
        hint = f"{names} could both be it: {format_option('rename', f'{several[0]}=image')} says which. "
    elif close:
        hint = f"Is '{truncate_text(close)}' it? {format_option('rename', f'{close}=image')}. "
    else:
        hint = "Say which it is with --rename NAME=image. "
    return f"{hint}The header reads {truncate_text(','.join(header), 200)}"

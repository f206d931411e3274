"""The files of a result's folder: a JSON document, tables beside it, and the manifest."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from labelgap.core.errors import RunError
from labelgap.core.files import remove_file
from labelgap.core.manifest import MANIFEST_FILE, check_files, write_manifest
from labelgap.core.stored import read_json
from labelgap.core.text import quote_formulas

Model = TypeVar("Model", bound=BaseModel)


def read_result(file: Path, model: type[Model], *, format: int, what: str, remedy: str) -> Model:
    """Read the JSON document of a folder, as ``model``; its digest is compared with the manifest.

    Args:
        file: the document.
        model: its content, with ``format``.
        format: the version that is read.
        what: the folder should be, for the error where the document is missing.
        remedy: where it cannot be read.
    """
    if not file.is_file():
        raise RunError(f"{file.parent} is not {what}: it has no {file.name}.")
    check_files(file.parent, [file.name])
    return read_json(file, model, format=format, remedy=remedy)


@contextmanager
def writing_results(folder: Path, names: Iterable[str], *, finished: bool = True) -> Iterator[None]:
    """Write the files of a folder in this block; the manifest that lists them is written after it, if ``finished``.

    Killed in the middle, the files have no digests, not wrong ones.
    """
    remove_file(folder / MANIFEST_FILE)
    yield
    if finished:
        write_manifest(folder, names)


def csv_text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    r"""Return a table as CSV, in which a spreadsheet calculates nothing.

    Example:
        >>> csv_text(["name", "score"], [["=1+1", 2]])
        "name,score\n'=1+1,2\n"
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(quote_formulas(row) for row in (header, *rows))
    return text.getvalue()

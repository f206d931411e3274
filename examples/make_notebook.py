"""Make ``quickstart.ipynb`` from ``quickstart.py``: comments become text, the rest code. Run it after a change.

A notebook holds no results, so that it is the same on every machine.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("quickstart.py")


def notebook(script: str) -> str:
    """Return a script as a notebook. A block of lines that begin with ``#`` is text; the docstring is left out."""
    body = script.partition('"""\n')[2].replace("from __future__ import annotations\n", "")
    cells: list[tuple[str, str]] = []
    for is_text, group in groupby(body.splitlines(), key=lambda line: line.startswith("#")):
        lines = [line[1:].removeprefix(" ") if is_text else line for line in group]
        if source := "\n".join(lines).strip("\n"):
            cells.append(("markdown" if is_text else "code", source))
    if [kind for kind, _ in cells[:3]] == ["code", "markdown", "code"]:  # the title stands above the imports
        (_, imports), title, (_, first) = cells[:3]
        cells[:3] = [title, ("code", f"{imports}\n\n{first}")]
    made = {
        "cells": [_cell(number, kind, source) for number, (kind, source) in enumerate(cells, start=1)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return {**cell, "source": source.splitlines(keepends=True)}


if __name__ == "__main__":
    path = SCRIPT.with_suffix(".ipynb")
    path.write_text(notebook(SCRIPT.read_text(encoding="utf-8")), encoding="utf-8")
    print(path)

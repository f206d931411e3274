"""``labelgap verify``: whether the files of a folder are as they were written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labelgap.cli.options import AsJson
from labelgap.core.text import pluralize

if TYPE_CHECKING:
    from labelgap.verification import Verification

_DAMAGED = 2


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY|REVIEW", help="Folder of a run, a study, a sweep, a review …")
    ],
    accept: Annotated[
        bool, typer.Option("--accept", help="Files were changed on purpose: write manifest.json again.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Somebody else made it: show what it names, and use that from now on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every file of a folder with its digest, and read it. Exits with 2 where something is wrong."""
    from labelgap.cli.printing import print_json
    from labelgap.verification import accept_changes, foreign_names, trust_folder
    from labelgap.verification import verify as verify_files

    named = trust_folder(folder) if trust else []
    if accept:
        accept_changes(folder)
    result, foreign = verify_files(folder), foreign_names(folder)
    if as_json:
        files = [{"name": file.name, "problem": file.problem or None} for file in result.files]
        about = {"path": folder, "kind": result.kind, "intact": result.intact, "files": files}
        print_json(about | ({"trusted": named} if trust else {}) | ({"foreign": foreign} if foreign else {}))
    else:
        if trust:
            print("\n".join([*(f"trusted   {each}" for each in named), f"signed    {folder}"]))
        for each in foreign:
            print(f"names     {each}, which is not used: somebody else made or changed the folder (--trust signs it)")
        print("\n".join(_lines(result)))
    if not result.intact:
        raise typer.Exit(_DAMAGED)


def _lines(result: Verification) -> list[str]:
    lines = [f"{file.name}: {file.problem}" for file in result.problems]
    count = f"{result.path}: {pluralize(len(result.files), 'file')}"
    if lines:
        return [*lines, f"{count}, {len(lines):,} with a problem"]
    if result.finished:
        return [f"{count}, all intact"]
    return [f"{count}, all readable; there are no digests to compare with"]

"""``labelgap verify``: whether the files of a folder are as they were written."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit

from labelgap.cli.options import AsJson, option
from labelgap.cli.printing import print_fields, print_json
from labelgap.core.text import pluralize

_UNFINISHED = "all readable; there are no digests to compare with"


def verify(
    folder: Annotated[
        str, Argument(metavar="RUN|STUDY|REVIEW|PARTS", help="Folder of a run, a study …, or folder or URL of parts.")
    ],
    accept: Annotated[bool, option("Files were changed on purpose: write manifest.json again.")] = False,
    trust: Annotated[bool, option("Somebody else made it: show what it names, and use that from now on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare every file of a folder with its digest, and read it. Exits with 2 where something is wrong."""
    from labelgap import verification

    named = verification.trust_folder(folder) if trust else []
    if accept:
        verification.accept_changes(folder)
    result = verification.verify_run(folder)
    foreign = [] if result.kind == "parts" else verification.foreign_names(folder)
    if as_json:
        files = [{"name": file.name, "problem": file.problem or None} for file in result.files]
        about = {"path": folder, "kind": result.kind, "intact": result.intact, "files": files}
        print_json(about | ({"trusted": named} if trust else {}) | ({"foreign": foreign} if foreign else {}))
    else:
        unused = "which is not used: somebody else made or changed the folder (--trust signs it)"
        print_fields(*(("trusted", each) for each in named), ("signed", folder if trust else None))
        print_fields(*(("names", f"{each}, {unused}") for each in foreign))
        problems = [f"{file.name}: {file.problem}" for file in result.problems]
        unfinished = "all intact; not all shards are done" if result.kind == "parts" else _UNFINISHED
        outcome = "all intact" if result.finished else unfinished
        outcome = f"{len(problems):,} with a problem" if problems else outcome
        print("\n".join([*problems, f"{result.path}: {pluralize(len(result.files), 'file')}, {outcome}"]))
    if not result.intact:
        raise Exit(2)

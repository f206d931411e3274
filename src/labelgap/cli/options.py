"""Options that several commands have, and what they do with them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from labelgap.data import Dataset

__all__ = ["Data", "DataOptions", "Device", "LabelSeed", "Observe", "open_dataset", "with_data_options", "with_options"]

Data = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A CSV, a folder, a VOC devkit …, name=path, or digits: `labelgap datasets`."),
]
Observe = Annotated[
    str | None, typer.Option(help="Hide training labels as the papers do, e.g. positives=1,negatives=0 (or all).")
]
LabelSeed = Annotated[int, typer.Option(help="Seed of --observe; the papers' is 1200.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


@dataclass(frozen=True)
class DataOptions:
    """How DATA is to be read, as it was typed; None where nothing was said. A new option of an importer is a line here.

    ``with_data_options`` gives all of them to a command, ``given`` turns them into the importers' own words.
    """

    images: Annotated[
        Path | None, typer.Option(help="Folder that the image names start from. [default: the table's own]")
    ] = None
    zeros: Annotated[
        str | None, typer.Option(help="What a 0 in a wide table says: absent or unknown. [default: absent]")
    ] = None
    unlisted: Annotated[
        str | None, typer.Option(help="What a tag not in the lists is: unknown or absent. [default: unknown]")
    ] = None
    delimiter: Annotated[str | None, typer.Option(help="Between the cells of a CSV. [default: guessed]")] = None
    separator: Annotated[str | None, typer.Option(help="Between the tags of a list. [default: guessed]")] = None
    encoding: Annotated[str | None, typer.Option(help="Of a CSV. [default: guessed]")] = None
    classes: Annotated[list[str] | None, typer.Option(help="The tags to use, e.g. cat,dog; may be repeated.")] = None
    ignore_columns: Annotated[
        list[str] | None, typer.Option(help="Columns that are no tags, e.g. width,height; may be repeated.")
    ] = None
    rename: Annotated[
        list[str] | None, typer.Option(help="A tag or column, e.g. dog=Dog or file=image; may be repeated.")
    ] = None
    aliases: Annotated[Path | None, typer.Option(help="CSV of two columns: synonym, tag.")] = None
    parents: Annotated[Path | None, typer.Option(help="CSV of two columns: child, parent; one implies the other.")] = (
        None
    )
    on_bad_image: Annotated[
        str | None,
        typer.Option(help="Images that cannot be read: error (all are named) or skip. [default: error; predict: skip]"),
    ] = None
    duplicates: Annotated[
        str | None, typer.Option(help="Images that are there twice: near, exact or off. [default: near]")
    ] = None
    allow_leaks: Annotated[
        bool, typer.Option("--allow-leaks", help="Let images of one split be in another as well.")
    ] = False

    def given(self) -> dict[str, Any]:
        """Return what was said, as ``labelgap.data.open_data`` takes it."""
        from labelgap.cli.parsing import parse_names, parse_pairs

        parsed = {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "classes": parse_names(self.classes, "--classes"),
            "ignore_columns": parse_names(self.ignore_columns, "--ignore-columns"),
            "rename": parse_pairs(self.rename, "--rename"),
            "allow_leaks": self.allow_leaks or None,
        }
        return {name: value for name, value in parsed.items() if value is not None}


def with_data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of ``DataOptions``; it gets them in one object, as ``data_options``."""
    return with_options(DataOptions, "data_options", command)


def with_options(kind: type[Any], argument: str, command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every field of a dataclass; it gets them in one object, as ``argument``."""
    signature = inspect.signature(command, eval_str=True)
    hints = get_type_hints(kind, include_extras=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != argument]
    added = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(kind)
    ]

    @functools.wraps(command)
    def called(*arguments: Any, **named: Any) -> None:
        chosen = {field.name: named.pop(field.name) for field in fields(kind) if field.name in named}
        command(*arguments, **{argument: kind(**chosen)}, **named)

    parameters = sorted([*own, *added], key=lambda parameter: parameter.kind)
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def open_dataset(data: str, options: DataOptions, observe: str | None = None, label_seed: int = 1200) -> Dataset:
    """Open DATA, and hide labels when told to."""
    from labelgap.cli.parsing import parse_observe
    from labelgap.data import open_data

    opened = open_data(data, **options.given())
    return opened if observe is None else opened.observe(**parse_observe(observe), seed=label_seed)

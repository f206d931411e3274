"""``labelgap``: the commands, and how their errors are told."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from labelgap import __version__
from labelgap.cli.demo import demo
from labelgap.cli.evaluate import evaluate, report
from labelgap.cli.lists import backbones, datasets, methods
from labelgap.cli.train import train
from labelgap.core.errors import LabelGapError

__all__ = ["app", "main"]

app = typer.Typer(
    name="labelgap",
    help="Train multi-label image classifiers when most labels are missing, and find the labels that are missing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, train, evaluate, report, methods, datasets, backbones):
    app.command()(command)


def _version(asked: bool) -> None:
    if asked:
        print(f"labelgap {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Train multi-label image classifiers when most labels are missing, and find the labels that are missing."""


def main() -> None:
    """Run a command; an error that labelgap raises on purpose is one message and exit code 2, not a traceback."""
    try:
        app()
    except LabelGapError as error:
        print(f"labelgap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("labelgap: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)

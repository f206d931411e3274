"""``labelgap``: the commands, and how their errors are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from labelgap import __version__
from labelgap.cli.apply import apply
from labelgap.cli.audit import audit
from labelgap.cli.cache import cache
from labelgap.cli.compare import compare
from labelgap.cli.convert import convert
from labelgap.cli.demo import demo
from labelgap.cli.evaluate import evaluate, report
from labelgap.cli.export import export
from labelgap.cli.inspect import inspect
from labelgap.cli.methods import backbones, datasets, methods
from labelgap.cli.predict import predict
from labelgap.cli.review import review
from labelgap.cli.revisions import revisions
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
command: Callable[..., None]
for command in (
    demo,
    inspect,
    train,
    compare,
    evaluate,
    predict,
    export,
    report,
    convert,
    methods,
    datasets,
    backbones,
):
    app.command()(command)
app.add_typer(cache, name="cache")
for command in (audit, review, apply, revisions):
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
    """Run a command; an error that labelgap raises on purpose is one message and exit code 2, not a traceback.

    Threads that wait for each other sleep instead of spinning: on a machine that is busy with other things, spinning
    makes a training step of a small network ten times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
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

"""``labelgap``: the commands, and how their errors are reported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Final

import typer

from labelgap import __version__
from labelgap.cli.apply import apply
from labelgap.cli.audit import audit
from labelgap.cli.backbones import backbones
from labelgap.cli.cache import cache
from labelgap.cli.compare import compare
from labelgap.cli.convert import convert
from labelgap.cli.datasets import datasets
from labelgap.cli.demo import demo
from labelgap.cli.evaluate import evaluate
from labelgap.cli.export import export
from labelgap.cli.inspect import inspect
from labelgap.cli.methods import methods
from labelgap.cli.predict import predict
from labelgap.cli.report import report
from labelgap.cli.review import review
from labelgap.cli.revisions import revisions
from labelgap.cli.train import train
from labelgap.core.errors import LabelGapError

__all__ = ["app", "main"]

_PANELS: Final[dict[str, tuple[Callable[..., None], ...]]] = {
    "Train and evaluate": (demo, train, compare, evaluate, predict, export, report),
    "Find missing labels": (audit, review, apply, revisions),
    "Data": (inspect, convert),
    "Lists": (methods, datasets, backbones),
}

app = typer.Typer(
    name="labelgap",
    help="Train multi-label image classifiers when most labels are missing, and find the labels that are missing.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(cache, name="cache", rich_help_panel="Lists")


def _print_version(requested: bool) -> None:
    if requested:
        print(f"labelgap {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train multi-label image classifiers when most labels are missing, and find the labels that are missing."""


def main() -> None:
    """Run a command; a ``LabelGapError`` is printed as one message with exit code 2, without a traceback.

    OpenMP threads sleep while they wait instead of spinning: on a busy machine, spinning makes a training step of a
    small network ten times as long.
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

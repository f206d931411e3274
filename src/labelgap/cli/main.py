"""``labelgap``: the commands, and how their errors are reported."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, get_args

import typer
from typer.core import TyperCommand

from labelgap import __version__
from labelgap.cli.failures import DEBUG_VARIABLE, check_system, describe_failure, report_bug
from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.terminal import protect_streams

_PANELS: Final = {
    "Train and evaluate": "demo train compare linear-eval evaluate predict export report verify",
    "Studies": "reproduce sweep",
    "Find missing labels": "audit review label-studio apply revisions",
    "Data": "inspect convert features shard",
    "Lists": "methods datasets backbones cache",
}
"""The commands; each is a function, or a group, of its name in the module of its name."""
_DIVISIBLE: Final = ("train", "predict", "audit", "evaluate")
"""The commands that ``torchrun`` may start in several processes."""
_PATIENCE: Final = 2.0
"""Seconds that a process waits before it ends because of an error that another one prints: torchrun ends that one."""
_INTERRUPTED: Final = 130
_USAGE_ERROR: Final[Any] = typer.BadParameter.__mro__[2]
"""``ClickException``, whether of click or of typer's own copy of it."""
_HELP: Final = {"help_option_names": ["--help"]}


@functools.cache
def make_app(name: str | None = None) -> typer.Typer:
    """Return the command line with all commands or one; for an empty name the list alone, read from the source."""
    app = typer.Typer(
        name="labelgap",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": []} if name else {},
    )
    app.callback()(_root)
    for panel, names in _PANELS.items():
        for each in names.split():
            module = each.replace("-", "_")
            if name == "":
                app.command(each, help=_read_help(module), rich_help_panel=panel)(lambda: None)
            elif name in (None, each):
                command = getattr(importlib.import_module(f"labelgap.cli.{module}"), module)
                if isinstance(command, typer.Typer):
                    app.add_typer(command, name=each, rich_help_panel=panel, context_settings=_HELP)
                else:
                    made = app.command(cls=_Command, rich_help_panel=panel, context_settings=_HELP)
                    made(_with_flags(command))
    return app


class _Command(TyperCommand):
    """A command that does not import pandas, and refuses a second ``--prior``; of other options the last counts."""

    def invoke(self, ctx: Any) -> Any:
        if not any(group.startswith("labelgap.") for group in entry_points().groups):  # a plugin may use pandas
            with _without_pandas():
                import pyarrow as pa

                pa.array([])
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        if [param.name for param in given].count("prior") > 1:
            raise InputError("--prior is given twice: put the files into a folder of their own, and name the folder.")
        return super().parse_args(ctx, args)


@contextmanager
def _without_pandas() -> Iterator[None]:
    """Let pandas seem missing: PyArrow would import it, half a second, to ask if its first array is one of pandas'."""

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "pandas":
                raise ModuleNotFoundError(name)

    sys.meta_path.insert(0, finder := Finder())
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _with_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command, whose options that are a bool have no ``--no-`` form."""
    parameters = inspect.signature(command, eval_str=True).parameters
    command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    for name, annotation in command.__annotations__.items():
        kind, *about = get_args(annotation) or (None,)
        if kind is bool and about[0].default is ...:  # typer keeps a name there that was given
            about[0].default = f"--{name.replace('_', '-')}"
    return command


def _read_help(module: str) -> str | None:
    """Return the help of a command: the docstring of the first public function in the source of its module."""
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return next(ast.get_docstring(each) for each in functions if not each.name.startswith("_"))


def _print_version(requested: bool) -> None:
    if requested:
        print(f"labelgap {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train multi-label image classifiers when most labels are missing, and find the labels that are missing."""
    command = context.invoked_subcommand
    if _processes() > 1 and command is not None and command not in _DIVISIBLE:
        raise InputError(
            f"`labelgap {command}` runs in one process: start it without torchrun. "
            f"{', '.join(_DIVISIBLE[:-1])} and {_DIVISIBLE[-1]} divide their work over several."
        )


def main() -> None:
    """Run a command and exit; every error is one message.

    The exit code is 0, 2 for an error of the input or of the system, 1 for a bug of labelgap, 130 after Ctrl-C, 143
    after SIGTERM, 129 after SIGHUP, and 141 where the reader of the output is gone.
    """
    # On a busy machine, threads that spin while they wait make a step of a small network ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # What NumPy and SciPy compute here is small, and the threads of their BLAS wait in loops; PyTorch has its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(100_000)  # by default it looks at the half million objects of PyTorch again and again
    with protect_streams(), _signals_as_exit():
        code = _run()
    gc.freeze()  # nor are they looked at when the interpreter ends
    sys.exit(code)


def _run() -> int:
    if _rank() > 0:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open as long as the process)
        warnings.simplefilter("ignore")
    try:
        check_system()
        commands = " ".join(_PANELS.values()).split()
        name = next((each for each in sys.argv[1:2] if each in commands), "")
        result = make_app(name)(prog_name="labelgap", standalone_mode=False)
        sys.stdout.flush()
        code = result if isinstance(result, int) else 0
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        message, code = _describe(error)
        if message and _is_reported(error):
            time.sleep(_PATIENCE)
        elif message:
            name = f" (process {_rank()} of {_processes()}, on {socket.gethostname()})" if _rank() > 0 else ""
            print(f"labelgap{name}: {message}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    if code == _INTERRUPTED:
        print("labelgap: stopped", file=sys.stderr)
    return code


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, LabelGapError):
        return "\n".join([str(error), *getattr(error, "__notes__", ())]), error.exit_code
    if isinstance(error, _USAGE_ERROR):
        command = getattr(getattr(error, "ctx", None), "command_path", "labelgap")
        if not (message := error.format_message()):  # the help was printed instead
            return "", error.exit_code
        about = getattr(getattr(error, "param", None), "help", None)
        if about and message.startswith("Missing"):
            message = f"{message.rstrip('.')}: {about}"
        end = "" if message.endswith((".", "?")) else "."
        return f"{message}{end} `{command} --help` lists the options.", error.exit_code
    if (message := describe_failure(error)) is not None:
        return message, LabelGapError.exit_code
    return report_bug(error), 1


def _is_reported(error: Exception) -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():  # an error of the arguments, which all have
        return _processes() > 1 and int(os.environ.get("LOCAL_RANK", "0")) > 0
    from labelgap.training.loop.processes import ReportedError

    return isinstance(error, ReportedError)


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0")) if _processes() > 1 else 0


@contextmanager
def _signals_as_exit() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the process, not a fork of it, like an exception: temporary files are removed."""
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise SystemExit(128 + number)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    in_main = threading.current_thread() is threading.main_thread()
    replaced = [number for number in numbers if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)

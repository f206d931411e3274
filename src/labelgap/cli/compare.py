"""``labelgap compare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labelgap.cli.options import (
    Data,
    DataOptions,
    Device,
    LabelSeed,
    Observe,
    open_dataset,
    with_data_options,
    with_options,
)

if TYPE_CHECKING:
    from labelgap.studies.compare import Comparison

__all__ = ["CompareOptions", "compare"]


@dataclass(frozen=True)
class CompareOptions:
    """What is tried and how, as it was typed."""

    seeds: Annotated[int, typer.Option(help="How many. One is quick, and nothing is claimed from it.")] = 3
    grid: Annotated[
        str,
        typer.Option(help="small: lr 1e-3 and 1e-4, batch 16. full: lr 1e-2…1e-5, batch 8 and 16, options as well."),
    ] = "small"
    option: Annotated[
        list[str] | None,
        typer.Option(help="Of a method, not searched then, e.g. role.expected_positives=1.5; may be repeated."),
    ] = None
    lr: Annotated[str | None, typer.Option(help="Learning rates instead of the grid's, e.g. 1e-3,1e-4.")] = None
    batch_size: Annotated[str | None, typer.Option(help="Batch sizes instead of the grid's, e.g. 8,16.")] = None
    epochs: Annotated[int, typer.Option(help="Of every head.")] = 25
    backbone: Annotated[str | None, typer.Option(help="See `labelgap backbones`. [default: suits the data]")] = None
    weights: Annotated[Path | None, typer.Option(help="File of the backbone's weights.")] = None
    protocol: Annotated[str, typer.Option(help="linear; there is no other here.")] = "linear"
    select: Annotated[str, typer.Option(help="How epochs and settings are chosen: auto, clean, known or observed.")] = (
        "auto"
    )

    def settings(self) -> dict[str, Any]:
        """Return them as ``labelgap.studies.compare.runner`` takes them."""
        from labelgap.core.errors import InputError

        if self.protocol != "linear":
            raise InputError(
                f"--protocol {self.protocol}: compare trains linear heads on features that are computed once, so that "
                "all methods fit into minutes. For whole networks: `labelgap train --protocol end-to-end`, one by one."
            )
        return {
            **{name: getattr(self, name) for name in ("seeds", "grid", "epochs", "backbone", "select")},
            "options": _options(self.option or ()),
            "learning_rates": _numbers(self.lr, "--lr", float),
            "batch_sizes": _numbers(self.batch_size, "--batch-size", int),
            "weights": None if self.weights is None else str(self.weights),
        }


def _with_compare_options(command: Callable[..., None]) -> Callable[..., None]:
    return with_options(CompareOptions, "tried", command)


@with_data_options
@_with_compare_options
def compare(
    data: Data,
    data_options: DataOptions,
    tried: CompareOptions,
    methods: Annotated[
        str, typer.Option(help="all, or names with commas: an,em,role. See `labelgap methods`.")
    ] = "all",
    observe: Observe = None,
    label_seed: LabelSeed = 1200,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that decode images. [default: what is of use]")] = None,
    out: Annotated[Path, typer.Option(help="Folder; what was trained in it before is not trained again.")] = Path(
        "runs/compare"
    ),
) -> None:
    """Train a linear head by every method on the same features, and say which is best, if any is."""
    from labelgap.cli.parsing import parse_names, parse_observe
    from labelgap.cli.printing import print_data
    from labelgap.reporting import write_report
    from labelgap.studies.compare import compare as run_compare

    names = methods if methods == "all" else parse_names([methods], "--methods") or []
    settings = tried.settings()
    hidden = None if observe is None else parse_observe(observe)
    opened = open_dataset(data, data_options)
    print_data(opened)
    made = run_compare(
        opened, names, observe=hidden, label_seed=label_seed, device=device, workers=workers, out=out, **settings
    )
    _print(made, write_report(made))


def _print(made: Comparison, report: Path) -> None:
    """Print the table, what it says, what could not run, and where the rest is."""
    from rich.console import Console

    from labelgap.reporting import comparison_table
    from labelgap.reporting.comparison_summary import method_command, missing_label_cost, ranking_summary
    from labelgap.studies.compare.comparison import TABLE

    console = Console(highlight=False, soft_wrap=False)
    console.print()
    console.print(comparison_table(made))
    console.print()
    for text in (ranking_summary(made), missing_label_cost(made)):
        if text:
            console.print(text.replace("`", ""), markup=False)
    for row in made.skipped:
        console.print(f"skipped   {row.method}: {row.reason}", markup=False)
    measured = [row for row in made.competitors if row.mean is not None]
    plain = Console(highlight=False, soft_wrap=True)
    plain.print(f"report    {report}", markup=False)
    plain.print(f"table     {made.path / TABLE}", markup=False)
    if measured:
        plain.print(f"next      {method_command(made, measured[0])}", markup=False)


def _options(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read ``METHOD.name=value``.

    Example:
        >>> _options(["role.expected_positives=1.5"])
        {'role': {'expected_positives': 1.5}}
    """
    from labelgap.cli.parsing import parse_options
    from labelgap.core.errors import InputError

    found: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        method, dot, rest = pair.partition(".")
        if not dot or "=" in method:
            raise InputError(f"--option {pair}: say whose it is, e.g. --option role.expected_positives=1.5")
        found.setdefault(method, {}).update(parse_options([rest]))
    return found


def _numbers(text: str | None, name: str, kind: type[int] | type[float]) -> list[float] | None:
    from labelgap.core.errors import InputError

    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{name} {text}: numbers with commas between them, e.g. {name} 16") from None

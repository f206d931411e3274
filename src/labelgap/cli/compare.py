"""``labelgap compare``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument

import labelgap as lg
from labelgap.cli import options
from labelgap.cli.options import DataSource, option, parse_numbers, parse_pairs, setting_options, with_options
from labelgap.cli.printing import print_data, print_fields, print_rich
from labelgap.core.errors import InputError
from labelgap.core.text import parse_scalar

if TYPE_CHECKING:
    from labelgap.studies.compare import Comparison
    from labelgap.studies.datasets import DatasetComparison
    from labelgap.studies.shares import ShareComparison

_PANEL: Final = "Methods and settings"
_grid = partial(option, rich_help_panel=_PANEL)
_TRAINING: Final = setting_options(
    *("standardize", "epochs", "backbone", "weights"),
    **{"group": _PANEL, "standardize": "not small, full", "epochs": "25; newton: 15"},
)
_GRIDS = (
    "auto: weight decays and learning rates around the best ones. The papers': small (lr 1e-3 and 1e-4, batch 16) and "
    "full (lr 1e-2…1e-5, batch 8 and 16, options as well)."
)
_VARY = "A row for each value of an option: delta_rel=0.1,0.2,0.5 or ll-ct.delta_rel=…; repeatable."


@dataclass(frozen=True)
class CompareOptions:
    """What to compare."""

    methods: Annotated[str, _grid("short (eight or nine), all, or names: an,em,role; see `labelgap methods`")] = "short"
    seeds: Annotated[int, _grid("Number of seeds. One is quick and supports no conclusion.")] = 3
    grid: Annotated[str, _grid(_GRIDS)] = "auto"
    option: Annotated[list[str] | None, _grid("Fix an option: role.expected_positives=1.5; repeatable.")] = None
    vary: Annotated[list[str] | None, _grid(_VARY)] = None
    train_share: Annotated[str | None, _grid("Shares of the training images, e.g. 0.1,0.2,0.5,1.")] = None
    lr: Annotated[str | None, _grid("Learning rates instead of the grid's, e.g. 1e-3,1e-4.")] = None
    batch_size: Annotated[str | None, _grid("Batch sizes instead of the grid's, e.g. 8,16.")] = None
    weight_decay: Annotated[str | None, _grid("Weight decays, e.g. 0,1e-3.", "searched; small, full: 0")] = None
    select: Annotated[str, _grid("How to select epochs and settings: auto, clean, known or observed.")] = "auto"

    def method_names(self) -> str | list[str]:
        """Return the methods: "short", "all", or their names."""
        names = self.methods
        return names if names in ("short", "all") else options.parse_names([names], "--methods")

    def settings(self) -> dict[str, Any]:
        """Return the other options as settings of ``labelgap.studies.compare``."""
        return {
            **{name: getattr(self, name) for name in ("seeds", "grid", "select")},
            "options": _parse_method_options(self.option or ()),
            "vary": _parse_variation(self.vary),
            "learning_rates": parse_numbers(self.lr, "--lr", float),
            "batch_sizes": parse_numbers(self.batch_size, "--batch-size", int),
            "weight_decays": parse_numbers(self.weight_decay, "--weight-decay", float),
        }


@with_options(source=DataSource, compared=CompareOptions, training=_TRAINING)
def compare(
    data: Annotated[list[str], Argument(metavar="DATA...", help="As for train; several give one table and ranks.")],
    source: DataSource,
    compared: CompareOptions,
    training: Any,
    device: options.Device = "auto",
    workers: options.Workers = None,
    out: Annotated[Path, option("Folder; heads that it already has are not trained again.")] = Path("runs/compare"),
) -> None:
    """Train a linear head with each of several methods on the same features, and rank the methods.

    Plain logistic regression, with unknown labels as absent, stands beside them.
    """
    from labelgap.studies.compare.settings import check_settings
    from labelgap.studies.datasets import compare_datasets
    from labelgap.studies.shares import check_shares, compare_shares

    shares = parse_numbers(compared.train_share, "--train-share", float)
    if shares is not None:
        check_shares(shares)
        if len(data) > 1:
            raise InputError(f"--train-share {compared.train_share} takes one DATA, and {len(data)} are given.")
    names, hidden = compared.method_names(), source.hidden
    settings = {**compared.settings(), **vars(training), "observe": hidden, "label_seed": source.seed}
    check_settings(names, settings)  # before the images are read
    opened = [options.open_dataset(each, source) for each in data]
    for each in opened:
        print_data(each if hidden is None else each.observe(**hidden, seed=source.seed))
    if hidden is not None and compared.seeds > 1:
        print(f"these are the labels of the first seed; each of the {compared.seeds} seeds draws its own")
    where: dict[str, Any] = {"device": device, "workers": workers, "out": out}
    if shares is not None:
        _print_shares(compare_shares(opened[0], names, shares=shares, **where, **settings))
    elif len(opened) > 1:
        _print_datasets(compare_datasets(opened, names, **where, **settings))
    else:
        _print(lg.compare(opened[0], names, **where, **settings))


def _print(comparison: Comparison) -> None:
    from labelgap.reporting.pages import comparison as page
    from labelgap.studies.compare.results import TABLE

    report = lg.write_report(comparison)
    texts = (page.ranking_summary(comparison), page.missing_label_cost(comparison))
    print_rich("", page.comparison_table(comparison), "", *(text.replace("`", "") for text in texts if text))
    best = next((row for row in comparison.competitors if row.mean is not None), None)
    commands = page.review_commands(comparison)
    accuracy = ["not measured: label a few hundred random images in full, and compare again:", *commands]
    print_fields(
        *(("skipped", f"{row.method}: {row.reason}") for row in comparison.skipped),
        ("report", report),
        ("table", comparison.path / TABLE),
        ("next", None if best is None else page.method_command(comparison, best)),
        ("accuracy", accuracy if commands else None),
    )


def _print_datasets(found: DatasetComparison) -> None:
    from labelgap.reporting.method_table import FOLDER
    from labelgap.reporting.pages import datasets as page

    for comparison in found.comparisons.values():
        lg.write_report(comparison)
    report, tables = lg.write_report(found), found.path / FOLDER / page.TABLE
    findings = [text.replace("`", "") for text in page.ranking_findings(found.ranking)]
    print_rich("", page.dataset_table(found), "", *findings)
    print_fields(("report", report), ("tables", f"{tables}.csv, .md, .tex"))


def _print_shares(found: ShareComparison) -> None:
    from labelgap.reporting import share_table
    from labelgap.studies.shares import FILES

    skipped, report = (("skipped", f"{row.method}: {row.reason}") for row in found.skipped), lg.write_report(found)
    print_rich("", share_table(found), "")
    print_fields(*skipped, ("report", report), ("table", found.path / FILES[1]))


def _parse_variation(pairs: Sequence[str] | None) -> dict[str, list[Any]]:
    """Parse ``NAME=VALUE,VALUE`` and ``METHOD.NAME=VALUE,VALUE``."""
    found = {}
    for key, text in parse_pairs(pairs, "--vary", "delta_rel=0.1,0.2,0.5").items():
        owner, dot, name = key.rpartition(".")
        name = name.replace("-", "_")
        found[f"{owner}{dot}{name}"] = [parse_scalar(part) for part in text.split(",") if part.strip()]
    return found


def _parse_method_options(pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``METHOD.name=value``."""
    found: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        method, dot, rest = pair.partition(".")
        if not dot or "=" in method:
            raise InputError(f"--option {pair}: name the method, e.g. --option role.expected_positives=1.5")
        found.setdefault(method, {}).update(options.parse_options([rest]))
    return found

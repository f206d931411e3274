"""``labelgap methods``, ``datasets`` and ``backbones``: what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

__all__ = ["backbones", "datasets", "methods"]


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Tell all of one method.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As the page docs/methods.md.")] = False,
) -> None:
    """List every method, or tell all of one."""
    from labelgap.losses import describe_method
    from labelgap.losses import methods as names
    from labelgap.reporting import methods_markdown

    if markdown:
        print(methods_markdown(), end="")
    elif name is not None:
        _one_method(name)
    else:
        entries = [describe_method(known) for known in names()]
        _print(("method", "paper", "what it does"), [(e.name, e.reference, e.summary) for e in entries])
        print("\nlabelgap methods NAME    its equation, options and defaults")


def _one_method(name: str) -> None:
    import inspect

    from labelgap.losses import describe_method, method_options, published_options
    from labelgap.losses.base.published_settings import PAPER_DATASETS

    entry = describe_method(name)
    print(f"{name} ({entry.reference}): {entry.summary}\n\n{inspect.getdoc(entry.loss_class)}\n")
    for option, default in method_options(name).items():
        print(f"  --option {option}={'…' if default is None else default}")
    for dataset in PAPER_DATASETS:
        if settings := published_options(name, dataset):
            told = ", ".join(f"{option}={value:g}" for option, value in settings.items())
            print(f"  on {dataset}, as its paper has it: {told}")


def datasets() -> None:
    """List the data that can be read."""
    from labelgap.data import describe_datasets

    rows = [(row.name, row.path_to or "–", row.summary) for row in describe_datasets()]
    _print(("data set", "path to", "what it is"), rows)


def backbones(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Tell all of one, e.g. timm:resnet18.")] = None,
) -> None:
    """List the networks, with where their weights come from, or tell all of one."""
    from labelgap.models import count_timm_models
    from labelgap.models import list_backbones as describe_backbones

    if name is not None:
        return _one_backbone(name)
    rows = [
        (row.name, f"{row.parameters:,}", f"{row.input_spec.size} px", row.source, row.license)
        for row in describe_backbones()
    ]
    _print(("backbone", "parameters", "input", "weights", "license"), rows)
    count = count_timm_models()
    any_model = f"any of timm's {count:,} models" if count else "any model of timm: pip install 'labelgap[timm]'"
    print(f"\ntimm:MODEL                {any_model}")
    print("labelgap backbones NAME   all of one, also of timm:MODEL")
    print("--weights FILE            weights of your own for any of them (.pth, .pt, .safetensors)")


def _one_backbone(name: str) -> None:
    from labelgap.models import backbone_info

    row = backbone_info(name)
    spec = row.input_spec
    kind = "color" if spec.channels > 1 else "gray"
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (spec.mean, spec.std))
    print(f"{row.name}: {row.summary}\n")
    print(f"parameters  {row.parameters:,}")
    print(f"features    {row.num_features:,} per image")
    print(f"input       {spec.size} × {spec.size} px, {kind}, {spec.interpolation}")
    print(f"            mean {mean}, standard deviation {std}")
    print(f"weights     {row.source}")
    print(f"license     {row.license}")


def _print(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in header:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table, markup=False)

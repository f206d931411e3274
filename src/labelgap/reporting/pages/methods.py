"""The Markdown page of all methods: name, paper, options, and the papers' settings per data set."""

from __future__ import annotations

from labelgap.losses import describe_method, method_options, methods, published_options
from labelgap.losses.base.registry import PAPER_DATASETS

_NAMES = {"voc2012": "VOC 2012", "coco2014": "COCO 2014", "nuswide": "NUS-WIDE", "cub": "CUB"}


def methods_markdown() -> str:
    """Return the page in Markdown, as ``labelgap methods --markdown`` prints it."""
    lines = [
        "# Methods",
        "",
        "Made by `labelgap methods --markdown`; do not edit. A method is used as `--method NAME --option KEY=VALUE` on",
        'the command line, `lg.loss("NAME", KEY=VALUE)` in Python. Options without a value have no default.',
        "`eps` (added inside the logarithm, 0) and `reduction` are common to nearly all and left out here.",
        "[gallery.md](gallery.md) shows what each method does to a logit.",
        "",
        "| method | paper | what it does | options and defaults |",
        "|---|---|---|---|",
    ]
    for name in methods():
        entry = describe_method(name)
        lines.append(f"| `{name}` | {entry.reference} | {entry.summary} | {_options(name)} |")
    lines += [
        "",
        "## The papers' settings per data set",
        "",
        f"`lg.defaults(method, dataset)` returns these; `train` starts from them on data of that name "
        f"({', '.join(PAPER_DATASETS)}).",
        "",
        "| method | option | " + " | ".join(_NAMES[name] for name in PAPER_DATASETS) + " |",
        "|---|---|" + "---|" * len(PAPER_DATASETS),
    ]
    for name in methods():
        for option in published_options(name, PAPER_DATASETS[0]):
            values = " | ".join(f"{published_options(name, dataset)[option]:g}" for dataset in PAPER_DATASETS)
            lines.append(f"| `{name}` | `{option}` | {values} |")
    return "\n".join(lines) + "\n"


def _options(name: str) -> str:
    shown = {key: value for key, value in method_options(name).items() if key not in ("eps", "reduction")}
    return " ".join(f"`{key}`" if value is None else f"`{key}={value}`" for key, value in shown.items()) or "–"

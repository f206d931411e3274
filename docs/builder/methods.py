"""A page for each method, from the registry: equation, gradient, settings, results, and how it is used."""

from __future__ import annotations

import csv
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from labelgap import functional
from labelgap.core.text import join_numbers
from labelgap.losses import describe_method, method_options, methods, published_options
from labelgap.losses.base.registry import PAPER_DATASETS, option_meanings
from labelgap.studies.sweep.search_space import paper_space

__all__ = ["families", "method_pages"]

DOCS = Path(__file__).resolve().parents[1]
FOLDER = "methods"
DATASETS = {"voc2012": "VOC 2012", "coco2014": "COCO 2014", "nuswide": "NUS-WIDE", "cub": "CUB", "digits": "digits"}
COMMON = {"eps", "reduction"}
SECTION = re.compile(r"^(Args|Attributes|Example|Raises|Returns):$", re.MULTILINE)
DENOMINATOR = re.compile(r"^Denominator: (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
EQUATION = re.compile(r"^\.\. math::.*(?:\n +\S.*)*", re.MULTILINE)
NAMED = re.compile(r"``([a-z]\w+)``")


def families() -> dict[str, list[str]]:
    """Return the names of the methods under the headings of the gallery, those of plug-ins left out."""
    found: dict[str, list[str]] = {}
    for line in (DOCS / "gallery.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            found[line[3:]] = []
        elif match := re.match(r"### `([\w-]+)`", line):
            found[list(found)[-1]].append(match[1])
    return {heading: names for heading, names in found.items() if names}


def method_pages() -> dict[str, str]:
    """Return the Markdown of a page for each method of the package, by its path."""
    results = _results()
    return {f"{FOLDER}/{name}.md": _page(name, results.get(name, [])) for name in methods() if _is_ours(name)}


def _is_ours(name: str) -> bool:
    return describe_method(name).loss_class.__module__.startswith("labelgap.")


def _page(name: str, results: list[dict[str, str]]) -> str:
    method = describe_method(name)
    loss_class = method.loss_class
    module = sys.modules[loss_class.__module__]
    lines = [f"# {name}", "", f"*{method.summary[:1].upper()}{method.summary[1:]}.*", ""]
    family = "\n".join(_prose(inspect.getdoc(module) or "")).partition("\n\n")[2]
    lines += [f"Proposed by {method.citation}.", "", family, ""]
    lines += ["## Equation", "", *_equations(loss_class), ""]
    lines += [f"The mean divides by {_denominator(loss_class)}", ""]
    lines += ["## Gradient", "", *_gradient(name), ""]
    lines += ["## Settings", "", *_settings(name), ""]
    lines += ["## Results", "", *_result_table(name, results), ""]
    lines += ["## Use", "", *_use(name)]
    return "\n".join(lines) + "\n"


def _prose(docstring: str) -> list[str]:
    """Return the lines of a docstring before its first section."""
    return SECTION.split(docstring)[0].rstrip().splitlines()


def _equations(loss_class: type) -> Iterator[str]:
    """Yield what the class says, and the equations of the functions that it names."""
    yield from _without_references(loss_class)
    for function in _named_functions(loss_class):
        text = "\n".join(_prose(inspect.getdoc(function) or ""))
        if EQUATION.search(text):
            text = re.sub(r"Arguments and result: see ``\w+``\.\s*", "", text)
            yield from ("", f"`{function.__name__}`: {_lower(text)}")


def _denominator(loss_class: type) -> str:
    """Return what the mean divides by: of the class, else of the nearest base that says it."""
    found = (DENOMINATOR.search(inspect.getdoc(each) or "") for each in loss_class.__mro__)
    return next(" ".join(match[1].split()) for match in found if match)


def _without_references(loss_class: type) -> list[str]:
    text = DENOMINATOR.sub("", "\n".join(_prose(inspect.getdoc(loss_class) or "")))
    text = re.sub(r"\s*(Options: see|See) ``\w+``\.", "", text)
    return text.replace("; final.", ".").splitlines()


def _named_functions(loss_class: type) -> list[Any]:
    """Return the functions that the docstrings of a class and of its bases in the same file name, each once."""
    module = sys.modules[loss_class.__module__]
    texts = [inspect.getdoc(each) or "" for each in loss_class.__mro__ if each.__module__ == module.__name__]
    names = dict.fromkeys(NAMED.findall("\n".join("\n".join(_prose(text)) for text in texts)))
    found = (getattr(module, name, None) or getattr(functional, name, None) for name in names)
    return [each for each in found if inspect.isfunction(each)]


def _gradient(name: str) -> list[str]:
    gallery = (DOCS / "gallery.md").read_text(encoding="utf-8")
    match = re.search(rf"^### `{re.escape(name)}`.*\n\n(.*)\n\n!\[(.*)\]\((.*)\)", gallery, re.MULTILINE)
    if match is None:
        return ["Not in the [gallery](../gallery.md)."]
    about = "How it was computed, and all methods side by side: [gallery](../gallery.md)."
    return [match[1], "", f"![{match[2]}](../{match[3]})", "", about]


def _settings(name: str) -> list[str]:
    options = {key: value for key, value in method_options(name).items() if key not in COMMON}
    meanings = {option: text.replace("|", "\\|") for option, text in option_meanings(name).items()}
    published = {data: published_options(name, data) for data in (*PAPER_DATASETS, "digits")}
    shown = [data for data, values in published.items() if values]
    space = {parameter.name: parameter for parameter in paper_space(name)}
    if not options:
        return ["The method has no options of its own.", "", *_searched(space, options)]
    header = ["option", "meaning", "default", *(DATASETS[data] for data in shown), "searched by `sweep`"]
    rows = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for option, default in options.items():
        cells = [f"`{option}`", meanings.get(option, ""), "" if default is None else f"`{join_numbers(default)}`"]
        cells += [f"`{join_numbers(published[data][option])}`" if option in published[data] else "" for data in shown]
        cells.append(", ".join(f"`{value}`" for value in space[option].ends) if option in space else "")
        rows.append(f"| {' | '.join(cells)} |")
    about = (
        ["", f"The columns of data sets are {_source(name)}; `digits` are ours, chosen on its val split."]
        if shown
        else []
    )
    return [*rows, *about, "", *_searched(space, options)]


def _source(name: str) -> str:
    """Return whose settings those of the data sets are."""
    if not name.startswith("ll-"):
        return "the papers' settings"
    return "not in the paper: the first author gave them on 2022-11-21 in issue #4 of snucml/LargeLossMatters"


def _searched(space: dict[str, Any], options: dict[str, Any]) -> list[str]:
    rest = [f"`{parameter}`" for name, parameter in space.items() if name not in options]
    head = "of a linear head also its weight decay and standardization; one that newton trains has no rates and batches"
    return [f"[`labelgap sweep`](../sweep.md) also searches {' and '.join(rest)}, {head}."]


def _results() -> dict[str, list[dict[str, str]]]:
    """Return the rows of ``results.csv`` by method."""
    found: dict[str, list[dict[str, str]]] = {}
    with (DOCS / "results" / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["row"].split("/")[0], []).append(row)
    return found


def _result_table(name: str, results: list[dict[str, str]]) -> list[str]:
    digits = "[Digits](../digits.md) and [VOC 2012](../voc2012.md) compare methods where they were measured."
    if not results:
        return ["No table of a paper was made again with this method yet.", "", digits]
    rows = ["| table | data | protocol | metric | ours | ± | seeds | paper | difference |", "|" + "---|" * 9]
    for row in results:
        link = f"[{row['table']}](../results/{row['page']})"
        cells = [link, row["data"], row["protocol"], row["metric"], f"**{row['ours']}**", row["std"], row["seeds"]]
        rows.append(f"| {' | '.join([*cells, row['paper'], row['difference']])} |")
    return [*rows, "", digits]


def _use(name: str) -> list[str]:
    loss_class = describe_method(name).loss_class
    required = {
        option for option, value in method_options(name).items() if value is None and _is_required(loss_class, option)
    }
    values = dict.fromkeys(required, 1.5)
    given = "".join(f" --option {option}={value}" for option, value in values.items())
    keywords = "".join(f", {option}={value}" for option, value in values.items())
    needs = ", ".join(f"`{each}`" for each in sorted(describe_needs(name, values)))
    return [
        *("```bash", f"labelgap train tags.csv --images photos/ --method {name}{given} --out runs/{name}", "```", ""),
        *("```python", f'loss_fn = lg.loss("{name}"{keywords})', "```", ""),
        f"The class is [`{loss_class.__name__}`][labelgap.losses.{loss_class.__name__}]. In your own loop it needs "
        + (
            f"{needs} besides logits and labels: see "
            "[methods with a state](../own-loop.md#methods-with-a-state-per-image)."
            if needs
            else "nothing but logits and labels: see [your own loop](../own-loop.md)."
        ),
    ]


def describe_needs(name: str, options: dict[str, Any]) -> frozenset[str]:
    """Return what the training loop must supply to a method."""
    return frozenset(describe_method(name).loss_class(**options).needs)


def _is_required(loss_class: type, option: str) -> bool:
    return inspect.signature(loss_class).parameters[option].default is inspect.Parameter.empty


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]

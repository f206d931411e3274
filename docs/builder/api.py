"""Pages of the Python API: every public name, by the package it comes from."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import labelgap

__all__ = ["PACKAGES", "api_pages", "public_names"]

FOLDER = "reference"
PACKAGES = {
    "labels": "Labels: present, absent, unknown",
    "data": "Data",
    "losses": "Losses",
    "functional": "Losses as pure functions",
    "training": "Training and runs",
    "metrics": "Metrics and thresholds",
    "models": "Backbones and heads",
    "audit": "Missing labels",
    "review": "Reviews",
    "inference": "Prediction and export",
    "studies": "Studies",
    "studies.compare": "Comparisons of methods",
    "studies.sweep": "Sweeps",
    "studies.linear_eval": "Linear evaluation",
    "studies.reproduce": "Tables of papers",
    "reporting": "Reports, figures and tables",
    "verification": "Verification of folders",
    "core.errors": "Errors",
}


def public_names() -> dict[str, list[str]]:
    """Return the dotted names of every page by its package; a name of ``labelgap`` itself goes by that, once."""
    homes = {name: getattr(labelgap, name).__module__ for name in labelgap.__all__ if _has_module(name)}
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        module = importlib.import_module(f"labelgap.{package}")
        names = getattr(module, "__all__", None) or _defined(module)
        found[package] = [
            f"labelgap.{name}" if name in labelgap.__all__ else f"labelgap.{package}.{name}" for name in names
        ]
        for name, home in homes.items():
            if home.startswith(f"labelgap.{package}.") and not any(
                f"labelgap.{name}" in each for each in found.values()
            ):
                found[package].append(f"labelgap.{name}")
    seen: set[str] = set()
    for package, dotted in found.items():
        ordered = sorted(dotted, key=lambda name: (name.count(".") > 1, name))
        found[package] = [name for name in ordered if name not in seen]
        seen.update(dotted)
    return found


def _defined(module: ModuleType) -> list[str]:
    """Return the public names that a plain module defines."""
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return sorted(name for name in own if not name.startswith("_"))


def _has_module(name: str) -> bool:
    return hasattr(getattr(labelgap, name), "__module__")


def api_pages() -> dict[str, str]:
    """Return the Markdown of every page by its path: an overview, and one for each package."""
    found = public_names()
    pages = {f"{FOLDER}/index.md": _overview(found)}
    for package, names in found.items():
        about = inspect.getdoc(importlib.import_module(f"labelgap.{package}")) or ""
        lines = [f"# {PACKAGES[package]}", "", f"`labelgap.{package}`. {about}", ""]
        for name in names:
            lines += _entry(name)
        pages[f"{FOLDER}/{package}.md"] = "\n".join(lines)
    return pages


def _entry(name: str) -> list[str]:
    """Return the directive for a public name: found where it is defined, shown by the name that users import."""
    owner, _, own = name.rpartition(".")
    value = getattr(importlib.import_module(owner), own)
    path = f"{value.__module__}.{own}" if getattr(value, "__module__", "").startswith("labelgap.") else name
    anchor = [] if path == name else [f"[](){{#{name}}}", ""]
    return [*anchor, f"::: {path}", "    options:", f"      heading: {name}", f"      toc_label: {own}", ""]


def _overview(found: dict[str, list[str]]) -> str:
    lines = [
        "# Python API",
        "",
        "`import labelgap as lg` gives everything in the first table. The other packages are imported by name,",
        "`from labelgap.reporting import gradient_figure`; `lg.losses`, `lg.functional`, `lg.metrics`, `lg.models`,",
        "`lg.data` and `lg.labels` need no import of their own. What is not listed here is internal and may change.",
        "",
        "| name | what it is |",
        "|---|---|",
    ]
    lines += [f"| [`lg.{name}`][labelgap.{name}] | {_summary(name)} |" for name in labelgap.__all__]
    lines += ["", "| package | names |", "|---|---|"]
    for package, names in found.items():
        shown = ", ".join(f"`{name.rpartition('.')[2]}`" for name in names)
        lines.append(f"| [`labelgap.{package}`]({package}.md) | {shown} |")
    return "\n".join(lines) + "\n"


def _summary(name: str) -> str:
    value = getattr(labelgap, name)
    if isinstance(value, int):
        return f"the code {value} of a label"
    return (inspect.getdoc(value) or "").splitlines()[0].replace("|", "\\|")

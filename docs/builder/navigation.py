"""The order of the pages: written here for those that have a place, by folder for new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from docs.builder.api import PACKAGES
from docs.builder.methods import families

__all__ = ["make_navigation"]

HOW_TO: dict[str, dict[str, str]] = {
    "Data": {
        "own-data.md": "Your own data",
        "datasets.md": "Published data sets",
        "your-tools.md": "labelgap and your tools",
    },
    "Training": {
        "training.md": "Train",
        "runs.md": "Run folders",
        "measuring.md": "Measure with partial labels",
        "zero-shot.md": "Class names as a prior",
        "scaling.md": "From a laptop to a cluster",
        "export.md": "Export to ONNX",
    },
    "Missing labels": {"audit.md": "Find missing labels", "review.md": "Review labels"},
    "Studies": {
        "compare.md": "Compare methods",
        "sweep.md": "Search settings",
        "linear-eval.md": "Measure features",
        "reproduce.md": "Reproduce tables of papers",
    },
    "Reports": {"figures.md": "Figures", "live-logs.md": "Live logs"},
    "Code": {"own-loop.md": "Losses in your own loop", "extending.md": "Your own loss, data, backbone"},
}
TUTORIALS = {
    "tutorials/own-photos.md": "Your own photos",
    "tutorials/review.md": "The review loop",
    "tutorials/own-loop.md": "A loss in your own loop",
    "tutorials/plugin.md": "A new method as a plug-in",
    "tutorials/scikit-learn.md": "scikit-learn",
    "tutorials/cluster.md": "From laptop to cluster",
}
RESULTS = {
    "results/index.md": "Overview",
    "results/findings.md": "What we found",
    "digits.md": "Digits",
    "voc2012.md": "PASCAL VOC",
    "albums.md": "Small albums",
    "results/logistic-regression.md": "Beside logistic regression",
    "results/reproduce.md": "Tables of papers",
    "results/recipe.md": "Whole networks",
    "results/auto.md": "Which method auto takes",
    "results/gaps.md": "Kinds of gaps",
    "results/prior.md": "What a teacher brings",
    "results/review.md": "What a review finds",
    "results/pointing.md": "Pointing game",
    "results/linear-voc.md": "Behind the paper on VOC",
    "results/real-partial-labels.md": "Real-like partial labels",
}
PROJECT = {
    "untested.md": "What is untested",
    "reliability.md": "Reliability",
    "project/security.md": "Security",
    "project/contributing.md": "Contributing",
    "releasing.md": "Releasing",
    "project/changelog.md": "Changelog",
    "project/license.md": "License",
}
FOLDERS = {"tutorials/": "Tutorials", "results/": "Results", "project/": "Project"}
"""Where a page goes that is not named above; else under How-to."""


def make_navigation(pages: Iterable[str]) -> list[dict[str, Any]]:
    """Return the navigation of mkdocs over the pages that exist; every page is in it once."""
    left = dict.fromkeys(sorted(pages))

    def take(entries: dict[str, str]) -> list[dict[str, Any]]:
        found = [{title: path} for path, title in entries.items() if path in left]
        for path in entries:
            left.pop(path, None)
        return found

    navigation: dict[str, list[Any]] = {
        "Start": take({"index.md": "Start in five minutes"}),
        "Tutorials": take(TUTORIALS),
        "How-to": [
            {group: take(entries)} for group, entries in HOW_TO.items() if any(path in left for path in entries)
        ],
        "Methods": [*take({"methods.md": "All methods", "gallery.md": "Gradients"}), *_methods(take)],
        "Results": take(RESULTS),
        "Reference": [
            {"Commands": [*take({"commands/index.md": "Overview"}), *take(_in(left, "commands/"))]},
            {"Settings": "reference/settings.md"},
            {"Python API": [*take({"reference/index.md": "Overview"}), *take(_packages())]},
            {"Examples": take(_in(left, "examples/"))},
        ],
        "Project": take(PROJECT),
    }
    left.pop("reference/settings.md", None)
    for path in list(left):
        section = next((name for folder, name in FOLDERS.items() if path.startswith(folder)), "How-to")
        navigation[section].append(path)
    return [{section: entries} for section, entries in navigation.items()]


def _methods(take: Any) -> Iterator[dict[str, Any]]:
    for family, names in families().items():
        yield {family: take({f"methods/{name}.md": name for name in names})}


def _in(pages: Iterable[str], folder: str) -> dict[str, str]:
    names = (path.removeprefix(folder).removesuffix(".md") for path in pages if path.startswith(folder))
    return {f"{folder}{name}.md": name for name in names}


def _packages() -> dict[str, str]:
    return {f"reference/{package}.md": title for package, title in PACKAGES.items()}

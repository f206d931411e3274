"""The files that are damaged, and which readers each is shown to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.fuzzing.datasets import DATA_TARGETS


@dataclass(frozen=True)
class Target:
    """A file to damage.

    Attributes:
        path: relative to the samples.
        readers: name of a reader → share of the cases in which it is called.
        covered: whether a digest covers the file, so that a reader may return nothing but what was written.
        weight: how often it is chosen.
        plain: whether people give it by name: its place in the file system is left alone, and the commands escape what
            an error says of it.
    """

    path: str
    readers: Mapping[str, float]
    covered: bool = True
    weight: int = 4
    plain: bool = False

    @property
    def folder(self) -> str:
        """What is restored after a case: the first part of the path."""
        return self.path.split("/")[0]


_RUN: Final = {"run": 1.0, "model": 0.1, "data": 0.2, "review": 0.05, "report": 0.005, "labelgap report": 0.003}
_LINEAR: Final = {"run": 1.0, "model": 0.3, "labelgap evaluate": 0.03, "report": 0.003, "labelgap verify": 0.03}
_RESUMED: Final = {"opened": 1.0, "completed epochs": 0.5, "resume": 0.2}
_DECIDED: Final = {
    **{"store": 1.0, "decisions": 0.5, "read decisions": 0.5, "review read-only": 0.1, "review": 0.1},
    **{"check review": 0.1, "labelgap verify": 0.03, "apply": 0.1, "labelgap revisions": 0.05},
}

TARGETS: Final = (
    Target("run/config.json", {**_RUN, "initial backbone": 0.1}, weight=10),
    Target("run/metrics.jsonl", {"run": 1.0, "report": 0.01, "labelgap report": 0.005}, weight=8),
    Target("run/best.safetensors", {"model": 1.0, "labelgap verify": 0.05}, weight=4),
    Target("run/traces.npz", {"trace": 1.0, "report": 0.01, "labelgap verify": 0.05}, weight=6),
    Target("run/revisions.parquet", {"revisions": 1.0, "labelgap revisions": 0.03, "apply with": 0.05}, weight=6),
    Target("run/predictions.parquet", {"examples": 1.0, "labelgap verify": 0.1}, weight=3),
    Target("run/candidates.parquet", {"audit": 1.0, "review": 0.5, "labelgap verify": 0.05}, weight=6),
    Target("run/manifest.json", {**_RUN, "labelgap verify": 0.05}, weight=4),
    Target("run/review.sqlite", _DECIDED, covered=False, weight=10),
    Target("linear/config.json", _LINEAR),
    Target("linear/metrics.jsonl", _LINEAR),
    Target("linear/best.safetensors", {"model": 1.0, "labelgap evaluate": 0.03}, weight=8),
    Target("linear/traces.npz", {"trace": 1.0}),
    Target("linear/manifest.json", _LINEAR),
    Target("unfinished/config.json", _RESUMED, covered=False),
    Target("unfinished/metrics.jsonl", _RESUMED, covered=False),
    Target("unfinished/last.pt", _RESUMED, covered=False, weight=6),
    Target("unfinished/last.previous.pt", _RESUMED, covered=False, weight=2),
    Target("unfinished/best.safetensors", {"model": 0.5, **_RESUMED}, covered=False),
    Target("unfinished/traces.parts/000001.npz", _RESUMED, covered=False, weight=2),
    Target("unfinished/traces.parts/entries.npz", _RESUMED, covered=False, weight=2),
    Target("review/review.json", {"data": 1.0, "review": 0.2, "apply": 0.1, "labelgap apply": 0.03}, False, 8),
    Target("review/candidates.parquet", {"review": 1.0}, covered=False),
    Target("review/review.sqlite", _DECIDED, covered=False),
    Target("compare/compare.json", {"comparison": 1.0, "report": 0.02, "labelgap report": 0.005}, weight=8),
    Target("compare/heads/*.safetensors", {"compare again": 1.0, "labelgap verify": 0.2}, weight=3),
    Target("compare/manifest.json", {"comparison": 1.0, "compare again": 0.1, "labelgap verify": 0.05}, weight=2),
    Target("study/study.json", {"study": 1.0, "report": 0.01, "labelgap verify": 0.1}, weight=4),
    Target("study/an/config.json", {"study": 1.0}, weight=2),
    Target("study/an/metrics.jsonl", {"study": 1.0, "report": 0.01}, weight=2),
    Target("study/manifest.json", {"study": 1.0, "labelgap verify": 0.05}, weight=2),
    Target("scores.parquet.partial/_prediction.json", {"parts": 1.0, "predict": 0.05}, covered=False),
    Target("scores.parquet.partial/_part-*", {"parts": 1.0, "predict": 0.05}, covered=False, weight=2),
    Target("scores.parquet.partial/part-*", {"parts": 1.0, "predict": 0.1}, weight=6),
    Target("weights.safetensors", {"weights": 1.0, "backbone": 0.2}, covered=False),
    Target("weights.pth", {"weights": 1.0, "backbone": 0.2}, covered=False),
    Target("cache/features/rows.sqlite", {"cached features": 1.0, "cache": 0.5, "labelgap cache": 0.2}, weight=3),
    Target("cache/settings.json", {"cache": 1.0, "labelgap cache": 0.2}, covered=False, weight=2),
    Target("features.npz", {"features": 1.0, "open data": 0.2, "labelgap inspect": 0.03}, covered=False, weight=8),
    Target("coco/annotations/instances_train2017.json", {"coco": 1.0, "open data": 0.1}, covered=False, weight=8),
    *(Target(path, {reader: 1.0}, covered=False, plain=True) for path, reader in DATA_TARGETS.items()),
)

"""The result of a linear evaluation: ``linear_eval.json``, ``linear_eval.csv`` and the chosen head."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from labelgap.core.files import write_json, write_text
from labelgap.core.tensors import write_tensors
from labelgap.studies.result_files import csv_text, read_result, writing_results

FILE: Final = "linear_eval.json"
TABLE: Final = "linear_eval.csv"
HEAD: Final = "head.safetensors"
FILES: Final = (FILE, TABLE, HEAD)
FORMAT: Final = 1

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class PenaltyResult:
    """The classifier of one penalty.

    Attributes:
        penalty: λ, of ½ λ ‖W‖² beside the loss summed over images; 1/C of scikit-learn.
        val: accuracy or mAP on val, from 0 to 1.
        test: on test; None where there is none, or its labels support no accuracy.
        iterations: of L-BFGS, for the slowest class.
        converged: whether all classes converged.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    penalty: Annotated[float, Field(gt=0)]
    val: Share
    test: Share | None
    iterations: Annotated[int, Field(ge=0)]
    converged: bool


@dataclass(frozen=True)
class ClassResult:
    """A class with the chosen penalty.

    Attributes:
        name: of the class.
        present: training images that are known to have it.
        val: average precision, or with one class per image the share of its images that get it, from 0 to 1.
        test: on test. None, as on val, where the labels do not support it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    name: str
    present: Annotated[int, Field(ge=0)]
    val: Share | None
    test: Share | None


class _Stored(BaseModel):
    """``linear_eval.json``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    data: str
    backbone: str
    task: Literal["single-label", "multi-label"]
    images: dict[str, int]
    classes: int
    classes_counted: dict[str, int]
    results: Annotated[tuple[PenaltyResult, ...], Field(min_length=1)]
    class_results: tuple[ClassResult, ...] = ()
    notes: tuple[str, ...]
    seconds: float
    metric: str
    chosen: PenaltyResult
    best_on_test: PenaltyResult | None


@dataclass(frozen=True)
class LinearEvaluation:
    """A linear evaluation.

    Attributes:
        path: the folder.
        data: its name.
        backbone: that computed the features; "features" where they came with the data.
        task: "single-label" (softmax, accuracy) or "multi-label" (a sigmoid for each class, mAP).
        images: number of each split.
        classes: how many.
        classes_counted: of val and test: how many the metric is a mean of.
        results: by rising penalty.
        class_results: of every class, with the chosen penalty.
        notes: what the reader should know.
        seconds: of the fits, without the computation of features.
        head: weights ``(K, D)`` and biases ``(K,)`` of the chosen penalty; None where it was read from a file.
    """

    path: Path
    data: str
    backbone: str
    task: Literal["single-label", "multi-label"]
    images: dict[str, int]
    classes: int
    classes_counted: dict[str, int]
    results: tuple[PenaltyResult, ...]
    class_results: tuple[ClassResult, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    head: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return "accuracy" if self.task == "single-label" else "mAP"

    @property
    def chosen(self) -> PenaltyResult:
        """The best on val; of equal ones the largest penalty."""
        return max(self.results, key=lambda result: (result.val, result.penalty))

    @property
    def best_on_test(self) -> PenaltyResult | None:
        """The best on test, as the two-way paper chooses: no estimate of anything, for comparison with such tables."""
        measured = [(result.test, result.penalty, result) for result in self.results if result.test is not None]
        return max(measured, key=lambda each: each[:2])[2] if measured else None

    def as_json(self) -> dict[str, Any]:
        """Return everything but the head."""
        kept = {name: value for name, value in vars(self).items() if name not in ("path", "head")}
        best = self.best_on_test
        return {
            "format": FORMAT,
            **kept,
            "metric": self.metric,
            "chosen": asdict(self.chosen),
            "best_on_test": None if best is None else asdict(best),
            "results": [asdict(result) for result in self.results],
            "class_results": [asdict(result) for result in self.class_results],
        }

    def write(self) -> None:
        """Write the files of the folder, and the manifest."""
        rows = [[*map(_cell, asdict(result).values()), result == self.chosen] for result in self.results]
        with writing_results(self.path, FILES):
            write_json(self.path / FILE, self.as_json())
            write_text(self.path / TABLE, csv_text([*PenaltyResult.__annotations__, "chosen"], rows))
            if self.head is not None:
                write_tensors(self.path / HEAD, dict(zip(("weight", "bias"), self.head, strict=True)))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LinearEvaluation:
        """Read the folder of an evaluation, without its head."""
        folder = Path(path)
        about = {"what": "a linear evaluation", "remedy": "Evaluate the features again."}
        stored = read_result(folder / FILE, _Stored, format=FORMAT, **about)
        derived = {"format", "metric", "chosen", "best_on_test"}
        return cls(folder, **{name: getattr(stored, name) for name in _Stored.model_fields if name not in derived})


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def is_linear_evaluation(folder: Path) -> bool:
    """Return whether a folder holds a linear evaluation."""
    return (folder / FILE).is_file()

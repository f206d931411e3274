from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.core.process_pair import run_pair

from labelgap.core.distributed import rank
from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.metrics import F1, AveragePrecision, Metric, Precision, Recall, average_precision, f1, precision, recall

PAIRS: list[tuple[Any, Callable[..., Any]]] = [
    (AveragePrecision, average_precision),
    (F1, f1),
    (Precision, precision),
    (Recall, recall),
]
AVERAGES = ["macro", "samples", "micro", None]
BORDERS = (9, 30)


def batch() -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Thirty images of four classes, with ties; the last class has no known absent label."""
    random = np.random.default_rng(0)
    scores = (random.integers(0, 10, size=(30, 4)) / 10).astype(np.float32)
    codes = random.choice([-1, 0, 1], size=scores.shape).astype(np.int8)
    codes[:, 3] = np.abs(codes[:, 3])
    return scores, codes


def close(found: Any, expected: Any) -> bool:
    parts = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    return all(np.allclose(one, other, rtol=1e-12, equal_nan=True) for one, other in parts)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize(("metric", "function"), PAIRS)
def test_batches_equal_the_whole(
    metric: Callable[..., Metric], function: Callable[..., Any], average: str | None
) -> None:
    scores, codes = batch()
    instance = metric(average=average, return_counted=True)
    for rows in (slice(0, 7), slice(7, 7), slice(7, 30)):
        instance.update(torch.from_numpy(scores[rows]), torch.from_numpy(codes[rows]))
    assert close(instance.compute(), function(scores, codes, average=average, return_counted=True))
    instance.reset()
    instance.update(scores[:9].tolist(), LabelTable.from_dense(codes[:9]))
    assert close(instance.compute(), function(scores[:9], codes[:9], average=average, return_counted=True))


def test_options_are_those_of_the_functions() -> None:
    scores, codes = batch()
    observed = AveragePrecision(empty="zero", unknown="absent")
    observed.update(scores, codes)
    assert observed.compute() == average_precision(scores, codes, empty="zero", unknown="absent")
    cut = F1(threshold=[0.2, 0.4, 0.6, 0.8], empty="zero")
    cut.update(scores, codes)
    assert cut.compute() == f1(scores, codes, threshold=[0.2, 0.4, 0.6, 0.8], empty="zero")
    for wrong in (lambda: F1(average="macros"), lambda: AveragePrecision(unknown="no")):  # type: ignore[arg-type]
        with pytest.raises(InputError):
            wrong()
    for bad in ([[0.5] * 3], [[3.0] * 4]):
        with pytest.raises(InputError):
            cut.update(bad, [[1, 0, 1, 0][: len(bad[0])]])
    assert all(close(metric.compute(), float("nan")) for metric in (AveragePrecision(), F1(), F1(average="micro")))


def compute_shards(folder: Path) -> None:
    """Compute every metric on this process's shard of the batch: the first or the last rows, or none at all."""
    scores, codes = batch()
    found = {}
    for border in BORDERS:
        rows = slice(0, border) if rank() == 0 else slice(border, 30)
        for metric, _ in PAIRS:
            for average in AVERAGES:
                instance = metric(average=average, return_counted=True)
                if rows.start < rows.stop:
                    instance.update(scores[rows], codes[rows])
                found[f"{border} {metric.__name__} {average}"] = instance.compute()
    np.save(folder / f"{rank()}.npy", np.array(found, dtype=object), allow_pickle=True)


def test_two_processes_agree_with_one_also_where_one_has_no_image(tmp_path: Path) -> None:
    run_pair(compute_shards, tmp_path)
    scores, codes = batch()
    for number in range(2):
        found = np.load(tmp_path / f"{number}.npy", allow_pickle=True).item()
        for metric, function in PAIRS:
            for average in AVERAGES:
                expected = function(scores, codes, average=average, return_counted=True)
                for border in BORDERS:
                    assert close(found[f"{border} {metric.__name__} {average}"], expected)

"""A small run with candidates, as an audit would leave them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import labelgap as lg
from labelgap.core.manifest import replacing
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN

Row = tuple[str, str, str, float, str, int, int, int]
SCHEMA = pa.schema(
    [
        ("image", pa.string()),
        ("split", pa.string()),
        ("class", pa.string()),
        ("score", pa.float32()),
        ("kind", pa.string()),
        ("observed", pa.int8()),
        ("rank", pa.int32()),
        ("class_rank", pa.int32()),
    ]
)


def write_candidates(path: Path, rows: Sequence[Row], data: Dataset, split: str = "train") -> None:
    """Write candidates by the interface of the audit."""
    unknown = data.split(split).labels.counts().unknown
    about = {
        "format": 1,
        "runs": [str(path.parent)],
        "data": dict(data.recipe),
        "unknown_total": int(unknown.sum()),
        "unknown_per_class": dict(zip(data.classes, unknown.tolist(), strict=True)),
        "method": "an",
    }
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in SCHEMA]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    table = pa.table(arrays, schema=SCHEMA).replace_schema_metadata({b"labelgap": json.dumps(about).encode()})
    with replacing(path.parent, [path.name]):
        pq.write_table(table, path)


def likely_rows(
    data: Dataset, split: str = "train", seed: int = 0, share: float = 0.5, sample: float = 0.1
) -> list[Row]:
    """Rank the unknown labels by a noisy look at the truth; add some known ones that look wrong, and random ones."""
    random = np.random.default_rng(seed)
    part = data.split(split)
    observed = part.labels.to_dense()
    truth = observed if part.truth is None else part.truth.to_dense()
    logit = np.where(truth == PRESENT, 1.2, -2.2) + random.normal(size=truth.shape)
    score = 1 / (1 + np.exp(-logit))
    unknown = np.argwhere(observed == UNKNOWN)
    order = unknown[np.argsort(-score[unknown[:, 0], unknown[:, 1]])]
    ranked = order[: int(share * len(order))]
    drawn = unknown[random.permutation(len(unknown))[: max(1, int(sample * len(ranked)))]]
    known = np.argwhere(observed != UNKNOWN)
    wrong = known[random.permutation(len(known))[:6]]
    rows: list[Row] = []
    for kind, places in (("missing", ranked), ("wrong", wrong), ("random", drawn)):
        seen: dict[int, int] = {}
        for rank, (row, column) in enumerate(places.tolist(), 1):
            seen[column] = seen.get(column, 0) + 1
            code = int(observed[row, column])
            assert code in (PRESENT, ABSENT, UNKNOWN)
            chance = float(score[row, column])
            names = (part.labels.images[row], split, data.classes[column])
            rows.append((*names, chance, kind, code, rank, seen[column]))
    return rows


def make_run(folder: Path, train: int = 96, epochs: int = 1) -> lg.Run:
    """Train on a few scenes of digits, and write candidates into the run's folder."""
    data = lg.load("digits", train=train, val=40, test=40)
    run = lg.fit(data, "an", out=folder, epochs=epochs, batch_size=16, device="cpu", quiet=True)
    write_candidates(folder / "candidates.parquet", likely_rows(data), data)
    return run

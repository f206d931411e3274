"""What is reviewed: a run on digits with candidates, photos with a patchy table, an album of bright and dark images."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import labelgap as lg
from labelgap.audit.candidates import COLUMNS
from labelgap.core.manifest import replacing
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review
from labelgap.review.database import FILE, create_database
from labelgap.review.store import SECOND, DecisionEvent, LabelKey

Row = tuple[str, str, str, float, str, int, int, int]
SCHEMA = pa.schema(list(COLUMNS.items()))


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
    with replacing(path.parent, [path.name]):
        write_rows(path, rows, about)


def write_rows(path: Path, rows: Sequence[Row], about: object) -> Path:
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in SCHEMA]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    table = pa.table(arrays, schema=SCHEMA).replace_schema_metadata({b"labelgap": json.dumps(about).encode()})
    pq.write_table(table, path)
    return path


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


TAGS = """image,split,cat,dog,owl
0.jpg,train,1,,
1.jpg,train,,1,0
2.jpg,train,0,,
3.jpg,train,,,1
4.jpg,train,,1,
5.jpg,val,1,,
6.jpg,val,,0,
7.jpg,test,,1,0
"""


def make_photos(place: Path) -> Dataset:
    """Eight photos with EXIF (a place on the map), and ``tags.csv``."""
    random = np.random.default_rng(0)
    (place / "photos").mkdir()
    for number in range(8):
        pixels = random.integers(0, 255, (9, 12, 3), dtype=np.uint8)
        picture = Image.fromarray(pixels).resize((360, 270), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x010F] = "SECRET CAMERA"
        exif.get_ifd(0x8825)[1] = "N"
        picture.save(place / "photos" / f"{number}.jpg", exif=exif)
    (place / "tags.csv").write_text(TAGS)
    return lg.load("csv", place / "tags.csv", images=place / "photos", duplicates="off")


def decide(
    review: Review,
    numbers: Iterable[int],
    value: int = PRESENT,
    asked: str | None = None,
    by: str = "anna",
    **more: int,
) -> str:
    """Have a person give one answer about candidates, and return the id of the last request."""
    versions, request = review.current.version, ""
    made = [
        review.decision(int(number), value, request := uuid.uuid4().hex, int(versions[number]), asked, **more)
        for number in numbers
    ]
    review.store.append(made, reviewer=by, client=f"{by}-window")
    review.current.refresh()
    return request


def event(
    number: int,
    value: int | None = PRESENT,
    by: str = "anna",
    kind: str = "missing",
    *,
    undoes: int | None = None,
    accepted: bool | None = None,
    class_name: str = "dog",
    seconds: float | None = None,
    request: str = "",
) -> DecisionEvent:
    """Make an event about a class of one image, so many seconds after the year began."""
    accepted, key = (kind != SECOND) if accepted is None else accepted, LabelKey("train", "a.jpg", class_name)
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number if seconds is None else seconds)
    request = request or f"request-{number}"
    return DecisionEvent(number, time, by, key, value, kind, 0.5, undoes, accepted, by, request, 0, 0)


IMAGES = 48
COPY = "copy.png"
"""A copy of the first image."""


def is_bright(name: str) -> bool:
    """Every fourth image is."""
    return name == COPY or int(Path(name).stem) % 4 == 0


def make_album(place: Path) -> Path:
    """Write images, a table of two other classes and a run with candidates; return the folder of the run."""
    random = np.random.default_rng(0)
    (place / "photos").mkdir(parents=True)
    rows = ["image,split,round,dark"]
    for number in range(IMAGES):
        name = f"{number:02}.png"
        color = random.integers(170, 220, 3) if is_bright(name) else random.integers(20, 120, 3)
        pixels = np.clip(color + random.normal(0, 25, (32, 32, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / "photos" / name)
        cells = random.choice(["1", "0", ""], 2, p=[0.2, 0.2, 0.6])
        rows.append(f"{name},{'val' if number % 8 == 7 else 'train'},{','.join(cells)}")
    (place / "photos" / COPY).write_bytes((place / "photos" / "00.png").read_bytes())
    rows.append(f"{COPY},train,1,")
    (place / "tags.csv").write_text("\n".join(rows) + "\n")
    data = lg.load("csv", place / "tags.csv", images=place / "photos", duplicates="exact")
    lg.fit(data, "an", backbone="efficientnet-lite0", out=place / "run", epochs=1, device="cpu", quiet=True)
    write_candidates(place / "run" / "candidates.parquet", likely_rows(data, share=0.3), data)
    create_database(place / "run" / FILE, 32 * "5")  # its id decides the random orders
    return place / "run"


def suggest_wrong(folder: Path, count: int) -> None:
    """Write candidates of which ``count`` are known labels that look wrong, the least plausible first."""
    data = lg.load("digits", train=96, val=40, test=40)
    rows: list[Row] = [row for row in likely_rows(data) if row[4] != "wrong"]
    observed, seen = data.train.labels.to_dense(), dict[int, int]()
    known = np.argwhere(observed != UNKNOWN)[:count].tolist()
    for rank, (row, column) in enumerate(known, 1):
        seen[column] = seen.get(column, 0) + 1
        code, chance = int(observed[row, column]), 0.02 + 0.5 * rank / count
        names = (data.train.labels.images[row], "train", data.classes[column])
        score = chance if code == PRESENT else 1 - chance
        rows.append((*names, score, "wrong", code, rank, seen[column]))
    write_candidates(folder / "candidates.parquet", rows, data)

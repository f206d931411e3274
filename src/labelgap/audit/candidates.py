"""``candidates.parquet``, the result of an audit, one row per candidate, for the review page and other programs.

``review.json`` stands beside it in a folder that is no run, and says what the candidates were taken from. It is signed,
since it names data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from labelgap.audit.ranking import CandidateList, class_ranks
from labelgap.core.errors import RunError
from labelgap.core.files import atomic_path, make_folder
from labelgap.core.manifest import check_files, replacing, write_manifest
from labelgap.core.stored import READ_ERRORS, damaged, parse_json, read_json, read_table, reading, validate
from labelgap.core.text import html_facts, pluralize, truncate_text
from labelgap.core.trust import write_signed_json
from labelgap.data.readers.recipe import StoredRecipe
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.label_model import MODEL_SPREAD

FILE: Final = "candidates.parquet"
FORMAT: Final = 1
KINDS: Final = ("missing", "wrong", "random")
COLUMNS: Final = {
    "image": pa.string(),
    "split": pa.string(),
    "class": pa.string(),
    "score": pa.float32(),
    "kind": pa.string(),
    "observed": pa.int8(),
    "rank": pa.int32(),
    "class_rank": pa.int32(),
}
REMEDY: Final = "Audit the run again."
_METADATA_KEY: Final = b"labelgap"
_Count = Annotated[int, Field(ge=0, le=10**15)]


class _Estimate(BaseModel):
    """How many labels are missing: ``MissingEstimate.to_json``."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    missing: _Count
    range: tuple[_Count, _Count] | None = None
    spread: tuple[float, float] = MODEL_SPREAD
    known: _Count
    missing_per_class: dict[str, int | float]


class _ZeroShot(BaseModel):
    """The model of the zero-shot scores, and the log-odds that a standard deviation of them adds."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str
    slope: float


class _Metadata(BaseModel):
    """What an audit, or a review of random images, says about its candidates."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    format: Literal[1]
    runs: list[str]
    data: dict[str, Any]
    splits: list[str] = []
    images: _Count = 0
    trained_images: _Count | None = None
    unknown_total: _Count
    unknown_per_class: dict[str, _Count]
    method: str
    backbone: str = ""
    folds: _Count = 0
    seed: int = 0
    per_class: int = 0
    limit: int = 0
    missing: _Count = 0
    wrong: _Count = 0
    random: _Count = 0
    likely: _Count = 0
    estimate: _Estimate | None = None
    zero_shot: _ZeroShot | None = None


class Audit:
    """The candidates in a file; its metadata are runs, data, how many labels are unknown, the estimate, and so on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = read_metadata(path)

    @cached_property
    def table(self) -> pa.Table:
        """All candidates: image, split, class, score, kind, observed, rank, class_rank."""
        return read_candidates(self.path)

    def of_kind(self, kind: str) -> pa.Table:
        """Return the candidates of a kind, "missing", "wrong" or "random", in the order of their ranks."""
        return self.table.filter(pc.equal(self.table["kind"], kind)).sort_by("rank")

    @property
    def estimate(self) -> dict[str, Any] | None:
        """How many labels are missing, in all and of each class; None where too few labels are known."""
        estimate: dict[str, Any] | None = self.metadata["estimate"]
        return estimate

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def facts(self) -> list[tuple[str, list[str]]]:
        """Return what was found, as lines behind headings: how many labels are probably missing, and where most are."""
        about, estimate, zero_shot = self.metadata, self.estimate, self.metadata["zero_shot"]
        scope = f"{pluralize(about['unknown_total'], 'unknown label')} of {pluralize(about['images'], 'image')}"
        audited = f"{scope} ({', '.join(about['splits'])}), {about['folds']} folds, {about['method']}"
        missing, most = ["fewer than five known present labels: too few for an estimate"], ""
        if estimate is not None:
            span = "" if estimate["range"] is None else "; {:,} to {:,} are possible".format(*estimate["range"])
            found = f"about {pluralize(estimate['missing'], 'label')}, by the scores{span}."
            missing = [found, "A review of random candidates gives an interval."]
            counts = sorted(estimate["missing_per_class"].items(), key=lambda pair: -pair[1])[:6]
            most = " · ".join(f"{name} {round(count):,}" for name, count in counts if round(count))
        elif not about["unknown_total"]:
            missing = ["nothing: every label is known"]
        facts = [("audited", [audited]), ("missing", missing), ("most in", [most] if most else [])]
        if (trained := about["trained_images"]) is not None:
            facts.insert(1, ("trained", [f"the run was trained on {trained:,} of these {about['images']:,} images"]))
        if zero_shot is not None:
            adds = f"adds {zero_shot['slope']:.2f} log-odds per standard deviation"
            effect = adds if zero_shot["slope"] else "is left out: the known labels do not follow it"
            facts.append(("zero-shot", [f"{zero_shot['model']} {effect}"]))
        if about["missing"]:
            ranked = f"{about['missing']:,} ranked, {about['likely']:,} of them more likely present than not"
            random = f"{about['random']:,} random ones, for an estimate with an interval after a review"
            facts.append(("candidates", [ranked, random]))
        if about["wrong"]:
            facts.append(("look wrong", [f"{about['wrong']:,} known labels: the model disagrees with them"]))
        return facts

    def _repr_html_(self) -> str:
        """Show the audit in a notebook: what was found, and the first few candidates."""
        first = [("", f"{row['class']} in {row['image']}") for row in self.of_kind("missing").slice(0, 5).to_pylist()]
        facts = ((name, " ".join(lines)) for name, lines in self.facts() if lines)
        return html_facts("audit", [*facts, *first, ("file", str(self.path))])

    def __repr__(self) -> str:
        return f"Audit({str(self.path)!r}: {len(self):,} candidates)"


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a file of candidates; ``RunError`` where it is missing, damaged or something else."""
    check_files(path.parent, [path.name])
    if not path.is_file():
        remedy = f"`labelgap audit {path.parent}` looks for missing labels."
        raise RunError(f"{path.parent} has no {path.name} yet: {remedy}")
    with reading(path, REMEDY):
        schema = pq.read_schema(path)
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise RunError(f"{path} has no column {missing[0]!r}: it holds no candidates. {REMEDY}")
    try:
        metadata = parse_json((schema.metadata or {})[_METADATA_KEY])
        version = metadata["format"]
    except READ_ERRORS:
        raise RunError(f"{path} has no metadata of labelgap. {REMEDY}") from None
    if version != FORMAT:
        found = truncate_text(repr(version), 40)
        raise RunError(f"{path} is of format {found}; this version of labelgap reads format {FORMAT}.")
    return validate(metadata, _Metadata, path, REMEDY).model_dump(mode="json")


def read_candidates(path: Path) -> pa.Table:
    """Return the candidates of a file in the columns and types of ``COLUMNS``; ``RunError`` where they are damaged.

    Every cell is filled; a score is NaN where no model gave one.
    """
    check_files(path.parent, [path.name])
    table = read_table(path, COLUMNS, remedy=REMEDY)
    score = table["score"].fill_null(math.nan)
    table = table.set_column(table.column_names.index("score"), "score", score)
    for name in table.column_names:
        if table[name].null_count:
            raise damaged(path, f"a cell of {name!r} is empty", REMEDY)
    valid = {
        "score": pc.or_(pc.is_nan(score), pc.and_(pc.greater_equal(score, 0), pc.less_equal(score, 1))),
        "kind": pc.is_in(table["kind"], pa.array(KINDS)),
        "observed": pc.is_in(table["observed"], pa.array([PRESENT, ABSENT, UNKNOWN], pa.int8())),
        "rank": pc.greater_equal(table["rank"], 1),
        "class_rank": pc.greater_equal(table["class_rank"], 1),
    }
    for name, fits in valid.items():
        if (row := pc.index(fits, False).as_py()) >= 0:
            found = truncate_text(repr(table[name][row].as_py()), 40)
            raise damaged(path, f"row {row + 1} has {found} under {name!r}", REMEDY)
    return table


def write_candidates(
    path: Path, lists: Mapping[str, CandidateList], tables: Mapping[str, LabelTable], metadata: Mapping[str, Any]
) -> Audit:
    """Write candidates by kind, and metadata, atomically; ``tables`` are in the order in which rows are counted."""
    parts = [_table(kind, candidates, tables) for kind, candidates in lists.items()]
    schema_metadata = {_METADATA_KEY: json.dumps(dict(metadata), ensure_ascii=False)}
    make_folder(path.absolute().parent)
    table = pa.concat_tables(parts).replace_schema_metadata(schema_metadata)
    with replacing(path.parent, [path.name]), atomic_path(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)
    return Audit(path)


def _table(kind: str, candidates: CandidateList, tables: Mapping[str, LabelTable]) -> pa.Table:
    """Return the rows of the candidates of a kind."""
    rows, columns = candidates.rows, candidates.columns
    starts = np.cumsum([0, *map(len, tables.values())])
    split = np.searchsorted(starts, rows, side="right") - 1
    names = [table.images for table in tables.values()]
    images = [names[which][row] for which, row in zip(split.tolist(), (rows - starts[split]).tolist(), strict=True)]
    order = np.argsort(columns, kind="stable")
    class_rank = np.empty(len(order), dtype=np.int32)
    class_rank[order] = class_ranks(np.asarray(columns, dtype=np.int32)[order])
    return pa.table(
        {
            "image": pa.array(images, pa.string()),
            "split": _names(list(tables), split),
            "class": _names(next(iter(tables.values())).classes, columns),
            "score": pa.array(candidates.scores, pa.float32()),
            "kind": pa.array([kind] * len(rows), pa.string()),
            "observed": pa.array(candidates.observed, pa.int8()),
            "rank": pa.array(np.arange(1, len(rows) + 1, dtype=np.int32)),
            "class_rank": pa.array(class_rank),
        }
    )


def _names(names: Sequence[str], numbers: NDArray[np.integer[Any]]) -> pa.Array:
    return pa.array(list(names), pa.string()).take(pa.array(numbers, pa.int64()))


REVIEW_FILE: Final = "review.json"
_MAX_CLASSES: Final = 1_000_000
_MAX_NAME: Final = 32_000
_Name = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_NAME)]


class StoredReview(BaseModel):
    """The data of a review without a run of its own: of random images, or of the audit of several runs.

    ``split``, ``images`` and ``seed`` are of the draw; None for an audit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1]
    data: Annotated[StoredRecipe, Field(min_length=1)]
    classes: Annotated[list[_Name], Field(min_length=1, max_length=_MAX_CLASSES)]
    split: Literal["train", "val", "test"] | None = None
    images: int | None = Field(default=None, ge=1, lt=2**63)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)


def describe_review(
    folder: Path, data: Mapping[str, Any], classes: tuple[str, ...], **drawn: str | int
) -> StoredReview:
    """Return the content of the file of a folder; ``drawn`` are split, images and seed of random images."""
    stored = {"format": FORMAT, "data": dict(data), "classes": list(classes), **drawn}
    return validate(stored, StoredReview, folder / REVIEW_FILE)


def write_review_file(folder: Path, about: StoredReview) -> None:
    """Write the file, and the manifest of the folder."""
    write_signed_json(folder / REVIEW_FILE, about.model_dump(mode="json", exclude_none=True))
    write_manifest(folder, [FILE])


def read_review_file(folder: Path) -> StoredReview:
    """Read the file of a folder; ``RunError`` where it is damaged."""
    remedy = (
        f"Restore it from a copy; `labelgap review DATA --random N --out {folder}` writes it again if it is deleted, "
        "and so does an audit."
    )
    about = read_json(folder / REVIEW_FILE, StoredReview, format=FORMAT, remedy=remedy)
    if len(set(about.classes)) != len(about.classes):
        raise damaged(folder / REVIEW_FILE, "a class is listed twice", remedy)
    return about

"""The candidates of an audit, how they are ranked, and ``candidates.parquet``; to read it takes no PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StringConstraints

from labelgap.core.errors import InputError, RunError
from labelgap.core.files import atomic_path, make_folder
from labelgap.core.manifest import check_files, replacing, write_manifest
from labelgap.core.seeds import numpy_generator
from labelgap.core.special import expit
from labelgap.core.stored import READ_ERRORS, damaged, parse_json, read_json, read_table, reading, validate
from labelgap.core.text import html_facts, pluralize, truncate_text
from labelgap.core.trust import write_signed_json
from labelgap.data.readers.recipe import StoredRecipe
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable

if TYPE_CHECKING:
    from labelgap.audit.calibration import ScoreCalibration
    from labelgap.audit.scorers import Scorer

MAX_SAMPLED_SCORES: Final = 4_000_000
"""Largest number of scores of unknown labels that are kept for the calibration, over all scorers."""
WRONG_SHARE: Final = 10  # at most ``limit`` divided by this many labels that look wrong are kept


@dataclass(frozen=True)
class CandidateLimits:
    """How many missing labels are kept, of a class and in all, and random ones for each missing one."""

    per_class: int = 2_000
    limit: int = 100_000
    random: float = 0.1


@dataclass(frozen=True, eq=False)
class CandidateList:
    """Candidates of one kind by rank, ``(C,)``: image numbers over all splits, classes, scores and observed codes."""

    rows: NDArray[np.int64]
    columns: NDArray[np.integer[Any]]
    scores: NDArray[np.float32]
    observed: NDArray[np.int8]

    @classmethod
    def of_unknown(
        cls, rows: NDArray[np.int64], columns: NDArray[np.integer[Any]], scores: NDArray[np.float32]
    ) -> CandidateList:
        """Return candidates whose labels are unknown."""
        return cls(rows, columns, scores, np.full(len(rows), UNKNOWN, dtype=np.int8))

    def select(self, positions: NDArray[np.int64]) -> CandidateList:
        """Return some of the candidates, in the order given."""
        return CandidateList(*(part[positions] for part in vars(self).values()))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class MissingEstimate:
    """How many unknown labels are present, estimated before a review; ``by_class`` is the sum of their scores."""

    by_class: NDArray[np.float64]
    known: NDArray[np.int64]
    range: tuple[int, int]
    spread: tuple[float, float]

    @property
    def missing(self) -> float:
        """Missing labels of all classes."""
        return float(self.by_class.sum())

    def to_json(self, classes: Sequence[str]) -> dict[str, Any]:
        """Return the metadata for ``candidates.parquet``; the integers of all classes sum to the total."""
        from labelgap.metrics.label_model import round_to_sum

        by_class = round_to_sum(self.by_class).tolist()
        return {
            "missing": sum(by_class),
            "range": [min(self.range[0], sum(by_class)), max(self.range[1], sum(by_class))],
            "spread": list(self.spread),
            "known": int(self.known.sum()),
            "missing_per_class": dict(zip(classes, by_class, strict=True)),
        }


@dataclass(frozen=True, eq=False)
class CandidateRanking:
    """Missing labels, those that look wrong, and random ones in the order of their draw; maybe an estimate."""

    missing: CandidateList
    wrong: CandidateList
    random: CandidateList
    calibration: ScoreCalibration
    estimate: MissingEstimate | None

    @property
    def expected_wrong(self) -> float:
        """How many of those that look wrong are wrong."""
        scores = self.wrong.scores.astype(np.float64)
        return float(np.where(self.wrong.observed == PRESENT, 1 - scores, scores).sum())


def rank_candidates(
    tables: Mapping[str, LabelTable],
    scorers: Sequence[Scorer],
    limits: CandidateLimits | None = None,
    seed: int = 0,
    max_sampled: int = MAX_SAMPLED_SCORES,
    advance: Callable[[int], None] = lambda count: None,
    reviewed: NDArray[np.int64] | None = None,
    *,
    priors: int = 0,
) -> CandidateRanking:
    """Rank the unknown labels of some splits by the probability that they are present.

    Images are scored in blocks, twice to calibrate and to rank; ``max_sampled`` scores calibrate, and with more the
    blocks are counted between. Labels that a person ``reviewed`` (``row · K + class``) do not look wrong, and are
    unknown to the calibration: it needs the labels as they were tagged. So many of the last scorers are ``priors``, and
    no runs. A known label *looks wrong* if ``label_model.ErrorModel`` finds that more probable than not.
    """
    from labelgap.audit.calibration import count_unknown, fit_calibration, sample_scores
    from labelgap.audit.scorers import score_blocks
    from labelgap.metrics.thresholds import MIN_PRESENT

    limits, classes = limits or CandidateLimits(), len(next(iter(tables.values())).classes)
    reviewed = np.empty(0, dtype=np.int64) if reviewed is None else reviewed
    tagged = tables
    if len(reviewed):
        starts = np.cumsum([0, *map(len, tables.values())]).tolist()
        tagged = {
            name: table.keep(~np.isin((start + table.rows) * classes + table.columns, reviewed))
            for start, (name, table) in zip(starts, tables.items(), strict=False)
        }
    sample = sample_scores(tagged, scorers, seed, max_sampled, advance)
    counter = partial(count_unknown, tagged, scorers, advance=advance)
    calibration = fit_calibration(sample, None if sample.scale <= 1 else counter, priors=priors)
    known = np.bincount(sample.column[sample.is_present], minlength=classes)
    del sample
    missing = TopCandidates(classes, limits.per_class, limits.limit)
    wrong = TopCandidates(classes, limits.per_class, max(limits.limit // WRONG_SHARE, 1))
    unknown = sum(table.counts().total[2] for table in tables.values())
    count = min(round(limits.random * min(limits.limit, limits.per_class * classes, unknown)), unknown)
    rows, columns = draw_unknown(tables.values(), count, seed)
    order = np.argsort(rows, kind="stable")
    scores, by_class = np.empty(len(order), dtype=np.float32), np.zeros(classes)
    for block in score_blocks(tables, scorers):
        odds = calibration.log_odds(block.logits)
        flat = odds.reshape(-1)
        column, present = block.known % classes, block.values == PRESENT
        distance = calibration.wrong(flat[block.known], column, present).astype(np.float32)
        is_wrong = (distance > 0.5) & ~np.isin(block.first * classes + block.known, reviewed)
        place = block.first + block.known // classes
        entries = CandidateList(place, column.astype(np.int32), distance, block.values)
        wrong.add(entries.select(np.flatnonzero(is_wrong)))
        first, last = np.searchsorted(rows[order], [block.first, block.first + len(odds)])
        drawn = order[first:last]
        scores[drawn] = expit(odds[rows[drawn] - block.first, columns[drawn]])
        flat[block.known] = -np.inf
        missing.update(odds, block.first)
        by_class += expit(odds).sum(axis=0, dtype=np.float64)
        advance(len(odds))
    best, worst = missing.ranked(), wrong.ranked()
    seen = np.where(worst.observed == PRESENT, 1 - worst.scores, worst.scores).astype(np.float32)
    return CandidateRanking(
        replace(best, scores=expit(best.scores)),
        replace(worst, scores=seen),
        CandidateList.of_unknown(rows, columns, scores),
        calibration,
        MissingEstimate(by_class, known, calibration.range, calibration.spread) if known.sum() >= MIN_PRESENT else None,
    )


class TopCandidates:
    """Keeps the first ``per_class`` candidates of every class and, of those, the first ``limit``, by their keys.

    Half of the limit is divided evenly over the classes, so that rare ones can be reviewed too. The result does not
    depend on the block size, as long as rows arrive in ascending order.
    """

    def __init__(self, classes: int, per_class: int, limit: int) -> None:
        if per_class < 1 or limit < 1:
            raise InputError(f"{per_class} candidates per class, {limit} in all: at least one of each.")
        self.classes, self.per_class, self.limit = classes, per_class, limit
        self.guaranteed = min(limit // (2 * max(classes, 1)), per_class)
        nothing = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
        self._chunks = [CandidateList.of_unknown(*nothing)]
        self._size = 0
        self._threshold = np.full(classes, -np.inf, dtype=np.float32)
        """The key that an entry of each class must exceed."""

    def update(self, keys: NDArray[np.float32], first_row: int = 0) -> None:
        """Add all entries ``(B, K)`` of a block of images, of unknown labels; −inf for an entry that is none."""
        step = max(1, 2 * self.limit // max(self.classes, 1))
        for start in range(0, len(keys), step):
            part = keys[start : start + step]
            rows, columns = np.nonzero(part > self._threshold)
            found = rows + first_row + start, columns.astype(np.int32), part[rows, columns]
            self.add(CandidateList.of_unknown(*found))

    def add(self, entries: CandidateList) -> None:
        """Add single entries."""
        self._chunks.append(entries.select(np.flatnonzero(entries.scores > self._threshold[entries.columns])))
        self._size += len(self._chunks[-1])
        if self._size > 2 * self.limit:
            self._compact()

    def ranked(self) -> CandidateList:
        """Return the candidates that are kept, the highest key first."""
        kept = self._compact()
        return kept.select(np.lexsort((kept.columns, kept.rows, -kept.scores)))

    def _compact(self) -> CandidateList:
        parts = zip(*(vars(chunk).values() for chunk in self._chunks), strict=True)
        held = CandidateList(*map(np.concatenate, parts))
        held = held.select(np.lexsort((held.rows, -held.scores, held.columns)))
        rank = class_ranks(held.columns)
        others = np.flatnonzero((rank > self.guaranteed) & (rank <= self.per_class))
        free = self.limit - int((rank <= self.guaranteed).sum())
        limit_key = np.float32(-np.inf)
        if len(others) > free:
            order = np.lexsort((held.columns[others], held.rows[others], -held.scores[others]))
            others = others[order[:free]]
            limit_key = held.scores[others[-1]] if free > 0 else np.float32(np.inf)

        def key_at(place: int) -> NDArray[np.float32]:  # −inf where a class has fewer, inf at rank 0
            keys = np.full(self.classes, -np.inf if place else np.inf, dtype=np.float32)
            keys[held.columns[rank == place]] = held.scores[rank == place]
            return keys

        self._threshold = np.maximum(key_at(self.per_class), np.minimum(key_at(self.guaranteed), limit_key))
        kept = held.select(np.concatenate([np.flatnonzero(rank <= self.guaranteed), others]))
        self._chunks, self._size = [kept], len(kept)
        return kept


def class_ranks(columns: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the rank of every entry within its class, from 1, where entries are sorted by class."""
    starts = np.flatnonzero(np.diff(columns, prepend=-2))
    lengths = np.diff(starts, append=len(columns))
    return np.arange(len(columns)) - np.repeat(starts, lengths) + 1


def draw_unknown(
    tables: Collection[LabelTable], count: int, seed: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw unknown labels of several tables uniformly, without replacement, in random order: rows and class numbers."""
    ends = np.cumsum(np.concatenate([len(table.classes) - np.diff(table.starts) for table in tables]))
    total = int(ends[-1]) if len(ends) else 0
    random = numpy_generator(seed, "random candidates")
    if 4 * count >= total:
        numbers = random.permutation(total)[:count]
    else:
        numbers = np.empty(0, dtype=np.int64)
        while len(numbers) < count:
            drawn = np.concatenate([numbers, random.integers(total, size=count + 16)])
            numbers = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
        numbers = numbers[:count]
    rows = np.searchsorted(ends, numbers, side="right")
    n, columns, first = numbers - np.concatenate([[0], ends])[rows], np.empty_like(rows), 0
    for table in tables:
        inside = np.flatnonzero((rows >= first) & (rows < first + len(table)))
        columns[inside] = nth_unknown(table, rows[inside] - first, n[inside])
        first += len(table)
    return rows, columns


def nth_unknown(table: LabelTable, rows: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the class number of the n-th unknown label (from 0) of each row: n + #{i : cᵢ − i ≤ n}, c the known."""
    width = len(table.classes) + 1
    order = np.arange(len(table.columns)) - np.repeat(table.starts[:-1], np.diff(table.starts))
    gaps = table.rows * width + table.columns - order
    skipped: NDArray[np.int64] = np.searchsorted(gaps, rows * width + n, side="right") - table.starts[rows]
    return n + skipped


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


class _Estimate(BaseModel, extra="ignore", allow_inf_nan=False):
    """How many labels are missing: ``MissingEstimate.to_json``."""

    missing: _Count
    range: tuple[_Count, _Count] | None = None
    spread: tuple[float, float] | None = None  # of an older audit, which did not measure it
    known: _Count
    missing_per_class: dict[str, int | float]


class _ZeroShot(BaseModel, extra="ignore", allow_inf_nan=False):
    """The model of the zero-shot scores, and the log-odds that a standard deviation of them adds."""

    model: str
    slope: float


class _Metadata(BaseModel, extra="forbid", allow_inf_nan=False):
    """What an audit, or a review of random images, says about its candidates."""

    format: Literal[1]
    runs: list[str]
    data: dict[str, Any]
    splits: list[str] = []
    images: _Count = 0
    tagged_images: _Count | None = None
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
    expected_wrong: Annotated[float, Field(ge=0)] | None = None
    random: _Count = 0
    likely: _Count = 0
    estimate: _Estimate | None = None
    zero_shot: _ZeroShot | None = None
    priors: dict[str, float] = {}  # of each source of --prior, the log-odds that a standard deviation of it adds
    replaces: bool = False
    """Whether it has taken the place of an audit with another random draw, whose answers say nothing of this one's."""


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
        elif about["trained_images"] and not about["folds"]:
            missing = ["no estimate: the scores are of a run that has learned these images; predict --features helps"]
        facts = [("audited", [audited]), ("missing", missing), ("most in", [most] if most else [])]
        if (trained := about["trained_images"]) is not None:
            facts.insert(1, ("trained", [f"the run was trained on {trained:,} of these {about['images']:,} images"]))
        priors = [("prior", name, slope) for name, slope in about["priors"].items()]
        if zero_shot is not None:
            priors.append(("zero-shot", zero_shot["model"], zero_shot["slope"]))
        left_out = "is left out: the known labels do not follow it"
        if about["tagged_images"] == 0:
            left_out = "adds nothing: no label is known to be present, so nothing tells how far to follow it"
        for what, name, slope in priors:
            adds = f"adds {slope:.2f} log-odds per standard deviation"
            facts.append((what, [f"{name} {adds if slope else left_out}"]))
        if about["missing"]:
            ranked = f"{about['missing']:,} ranked, {about['likely']:,} of them more likely present than not"
            random = f"{about['random']:,} random ones, for an estimate with an interval after a review"
            facts.append(("candidates", [ranked, random]))
        if about["wrong"]:
            expected = about["expected_wrong"]  # None in an older audit, which did not ask how many are wrong
            how = "the model disagrees with them" if expected is None else f"about {round(expected):,} are wrong"
            facts.append(("look wrong", [f"{pluralize(about['wrong'], 'known label')}: {how}"]))
        return facts

    def _repr_html_(self) -> str:
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
    """Return the candidates of a file in ``COLUMNS``, a score NaN for none; ``RunError`` where they are damaged."""
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
    starts = np.cumsum([0, *map(len, tables.values())])
    names = [table.images for table in tables.values()]
    splits = pa.array(list(tables), pa.string())
    classes = pa.array(list(next(iter(tables.values())).classes), pa.string())
    parts = []
    for kind, found in lists.items():
        split = np.searchsorted(starts, found.rows, side="right") - 1
        places = zip(split.tolist(), (found.rows - starts[split]).tolist(), strict=True)
        order = np.argsort(found.columns, kind="stable")
        class_rank = np.empty(len(found), dtype=np.int32)
        class_rank[order] = class_ranks(found.columns[order])
        columns = {
            "image": [names[which][row] for which, row in places],
            "split": splits.take(pa.array(split, pa.int64())),
            "class": classes.take(pa.array(found.columns, pa.int64())),
            "score": found.scores,
            "kind": [kind] * len(found),
            "observed": found.observed,
            "rank": np.arange(1, len(found) + 1),
            "class_rank": class_rank,
        }
        parts.append(pa.table(columns, pa.schema(COLUMNS)))
    table = pa.concat_tables(parts)
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(dict(metadata), ensure_ascii=False)})
    make_folder(path.absolute().parent)
    with replacing(path.parent, [path.name]), atomic_path(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)
    return Audit(path)


REVIEW_FILE: Final = "review.json"
_Name = Annotated[str, StringConstraints(min_length=1, max_length=32_000)]


class StoredReview(BaseModel, extra="forbid", frozen=True):
    """The data of a review without a run of its own: of random images (``split`` …), or of the audit of some runs."""

    format: Literal[1]
    data: Annotated[StoredRecipe, Field(min_length=1)]
    classes: Annotated[list[_Name], Field(min_length=1, max_length=1_000_000)]
    split: Literal["train", "val", "test"] | None = None
    images: int | None = Field(default=None, ge=1, lt=2**63)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    of: int | None = Field(default=None, ge=1, lt=2**63)


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
    again = f"`labelgap review DATA --random N --out {folder}` writes it again if it is deleted, and so does an audit."
    remedy = f"Restore it from a copy; {again}"
    about = read_json(folder / REVIEW_FILE, StoredReview, format=FORMAT, remedy=remedy)
    if len(set(about.classes)) != len(about.classes):
        raise damaged(folder / REVIEW_FILE, "a class is listed twice", remedy)
    return about

"""A folder, or a bucket, of results in parts: a Parquet file for each shard of a source.

``_part-000017.json``, written after a part, has its rows and its digest, and ``_manifest.json`` has all of them.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.files import atomic_path, file_digest, remove_partials, stream_digest
from labelgap.core.stored import READ_ERRORS, parse_json
from labelgap.data.addresses import file_system, is_url
from labelgap.labels import ABSENT, PRESENT

DESCRIPTION: Final = "_prediction.json"
MANIFEST: Final = "_manifest.json"
_ROWS: Final = 4096
_SHOWN: Final = 5
_ABANDONED: Final = 24 * 3600.0  # seconds after which a temporary file is that of a killed worker
_OWN: Final = ("part-", "_", ".")
_PART: Final = re.compile(r"_?part-(\d+)\.")

M = TypeVar("M", bound=BaseModel)
_Count = Annotated[int, Field(ge=0)]


def part_name(number: int) -> str:
    """Return the name of a part."""
    return f"part-{number:06d}.parquet"


def summary_name(number: int) -> str:
    """Return the name of the summary of a part."""
    return f"_part-{number:06d}.json"


class PartSummary(BaseModel, extra="forbid", frozen=True):
    """What is in a part."""

    shard: _Count
    source: str  # a digest of the names and the state of the shard
    predictor: str
    rows: _Count
    unreadable: _Count
    errors: tuple[str, ...]  # the first
    labels: tuple[_Count, _Count]  # present, absent
    bytes: _Count
    digest: str
    seconds: float


class PartsDescription(BaseModel, extra="forbid", frozen=True):
    """What identifies results: parts of others are not added to them."""

    format: Literal[1] = 1
    source: str  # a digest of the names of the shards
    predictor: str
    shards: _Count
    classes: tuple[str, ...]
    features: bool


class PartsManifest(PartsDescription, extra="forbid", frozen=True):
    """All parts of finished results."""

    parts: tuple[PartSummary, ...]


class PartFolder:
    """A folder or a bucket of parts."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/") if is_url(address) else os.path.abspath(address)  # noqa: PTH100
        self.system, self.path = file_system(self.address)
        self.local = None if is_url(address) else Path(self.address)

    def start(self, about: PartsDescription, *, restart: bool = False, part: tuple[int, int] = (0, 1)) -> None:
        """Start results in a folder, or resume the same ones; ``restart`` removes those of one of many machines."""
        self.system.makedirs(self.path, exist_ok=True)
        names = self.sizes()
        foreign = [name for name in names if not name.startswith(_OWN)]
        if foreign and DESCRIPTION not in names:
            raise RunError(
                f"{self.address} has {foreign[0]}, and is no prediction of this version: choose another --out."
            )
        if restart or DESCRIPTION not in names:
            self.clear(part)
            self.write(DESCRIPTION, about)
        elif self.read(PartsDescription, [DESCRIPTION]) != [about]:
            raise RunError(
                f"{self.address} holds a prediction of another run, other images or another batch size: finish it with "
                "its own command, discard it with --restart, or choose another --out."
            )

    def clear(self, part: tuple[int, int] | None = None) -> None:
        """Remove the parts of one of many machines; None: all, and first of all their description."""
        number, parts = part or (0, 1)
        names = self.sizes().keys()
        own = [name for name in names if (match := _PART.match(name)) and int(match[1]) % parts == number]
        for name in (DESCRIPTION, MANIFEST, *own):
            if name in names and not (part and name == DESCRIPTION):
                self.system.rm_file(f"{self.path}/{name}")

    def finished(self, sources: Mapping[int, str], predictor: str) -> list[PartSummary]:
        """Return the summaries of the parts that are done, by what their shards are: they are there, in their size."""
        sizes = self.sizes()
        return [
            part
            for part in self.read(PartSummary, [name for name in map(summary_name, sources) if name in sizes])
            if (part.source, part.predictor) == (sources.get(part.shard), predictor)
            and sizes.get(part_name(part.shard)) == part.bytes
        ]

    def problem(self, summary: PartSummary) -> str:
        """Return what is wrong with a part; "" where nothing is."""
        try:
            with self.open(part_name(summary.shard)) as file:
                if file.seek(0, 2) != summary.bytes or file.seek(0) or stream_digest(file).hex() != summary.digest:
                    return "not as it was written: its digest differs"
            with self.open(part_name(summary.shard)) as file, pq.ParquetFile(file) as parquet:
                rows = parquet.metadata.num_rows
        except FileNotFoundError:
            return "missing"
        except READ_ERRORS as error:
            return f"it cannot be read ({error})"
        return "" if rows == summary.rows else f"{rows:,} rows, and {summary.rows:,} were written"

    def write_part(self, number: int, source: str, predictor: str, tables: Iterable[pa.Table]) -> PartSummary:
        """Write a part, and then its summary."""
        started, rows, errors, codes = time.perf_counter(), 0, list[str](), Counter[int]()
        with self.writing(part_name(number)) as path:
            remaining = iter(tables)
            first = next(remaining)
            with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
                for table in chain([first], remaining):
                    writer.write_table(table.cast(writer.schema))
                    rows += len(table)
                    errors += table["error"].drop_null().to_pylist()
                    if "label" in table.column_names:
                        found = np.unique(table["label"].combine_chunks().values.to_numpy(), return_counts=True)
                        codes.update(dict(zip(*map(np.ndarray.tolist, found), strict=True)))
            stored: dict[str, Any] = {"bytes": path.stat().st_size, "digest": file_digest(path).hex()}
        counts = {"rows": rows, "unreadable": len(errors), "labels": (codes[PRESENT], codes[ABSENT])}
        stored |= {"source": source, "predictor": predictor, "errors": tuple(errors[:_SHOWN]), **counts}
        summary = PartSummary(shard=number, seconds=round(time.perf_counter() - started, 3), **stored)
        self.write(summary_name(number), summary)
        return summary

    def sizes(self) -> dict[str, int]:
        """Return the size of every file by its name."""
        self.system.invalidate_cache()
        found = self.system.ls(self.path, detail=True) if self.system.exists(self.path) else []
        return {each["name"].rstrip("/").rpartition("/")[2]: each["size"] for each in found if each["type"] == "file"}

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a path of this disk; what is written there appears under a name when the block is left."""
        if self.local is not None:
            with atomic_path(self.local / name) as path:
                yield path
            return
        with TemporaryDirectory(prefix="labelgap-") as folder:
            yield (path := Path(folder, name))
            self.system.put_file(os.fspath(path), f"{self.path}/{name}")

    def write(self, name: str, value: BaseModel) -> None:
        """Write a document."""
        with self.writing(name) as path:
            path.write_text(value.model_dump_json(indent=1) + "\n", encoding="utf-8")

    def read(self, model: type[M], names: Sequence[str]) -> list[M]:
        """Read documents, many at once where the file system can; ``RunError`` where one is damaged."""
        try:
            if self.local is not None:
                contents = [(self.local / name).read_bytes() for name in names]
            else:
                contents = list(self.system.cat([f"{self.path}/{name}" for name in names]).values()) if names else []
            return [model.model_validate(parse_json(content)) for content in contents]
        except READ_ERRORS as error:
            raise RunError(f"{self.address} has a damaged file ({error}): --restart removes it.") from None

    def open(self, name: str) -> Any:
        """Open a file to read it."""
        return self.system.open(f"{self.path}/{name}", "rb")

    def finish(self, about: PartsDescription, summaries: Sequence[PartSummary]) -> None:
        """Write the manifest, and remove the temporary files of workers that were killed."""
        self.write(MANIFEST, PartsManifest(**dict(about), parts=tuple(summaries)))
        if self.local is not None:
            remove_partials(self.local, older_than=_ABANDONED)


class StoredParts:
    """Finished results in parts, compared with their digests when first read; without images that were unreadable."""

    def __init__(self, folder: PartFolder) -> None:
        if MANIFEST not in folder.sizes():
            raise InputError(f"{folder.address} has no {MANIFEST}: run its command to the end, which writes it.")
        (self.manifest,) = folder.read(PartsManifest, [MANIFEST])
        self.folder = folder
        self.summaries = {part_name(part.shard): part for part in self.manifest.parts if part.rows > part.unreadable}
        self.sizes = {name: part.rows - part.unreadable for name, part in self.summaries.items()}
        if not self.sizes:
            raise InputError(f"{folder.address} has no image that can be read.")
        self._verified = set[str]()
        self.schema: Any = None  # of all parts
        with self._open(next(iter(self.sizes))) as file:
            self.columns = file.schema_arrow.names

    @contextmanager
    def _open(self, part: str) -> Iterator[pq.ParquetFile]:
        address = f"{self.folder.address}/{part}"
        try:
            if part not in self._verified and (problem := self.folder.problem(self.summaries[part])):
                raise RunError(f"{address} is damaged ({problem}): remove it, and run the command that wrote it again.")
            self._verified.add(part)
            with self.folder.open(part) as file, pq.ParquetFile(file) as parquet:
                self.schema = self.schema or parquet.schema_arrow
                if not parquet.schema_arrow.equals(self.schema):
                    raise InputError(f"{address} has other columns than the first part: its source is of two kinds.")
                yield parquet
        except LabelGapError:
            raise
        except READ_ERRORS as error:
            raise RunError(f"{address} cannot be read ({error}).") from None

    def read(self, part: str, *columns: str) -> pa.Table:
        """Return columns of a part."""
        with self._open(part) as file:
            table = file.read([*columns, "error"])
        return table.filter(pc.is_null(table["error"]))

    def blocks(self, part: str, column: str) -> Iterator[NDArray[np.float32]]:
        """Yield a column of lists of a part, some rows ``(B, …)`` at a time."""
        with self._open(part) as file:
            for batch in file.iter_batches(_ROWS, columns=[column, "error"]):
                values = batch.filter(pc.is_null(batch["error"]))[column]
                if len(values):
                    yield values.flatten().to_numpy().reshape(len(values), -1)

    def matrix(self, part: str, column: str) -> NDArray[np.float32]:
        """Return a column of lists of a part, ``(N, …)``."""
        return np.concatenate(list(self.blocks(part, column)))


def check_parts(folder: PartFolder) -> tuple[dict[str, str], bool]:
    """Return what is wrong with every file of results in parts, "" for nothing, and whether all shards are done."""
    names = {name for name in folder.sizes() if name[0] != "."}  # workers write temporary files
    found = {name: "" if name.startswith(_OWN) else "no part of a prediction" for name in names}

    def read(model: type[M], name: str) -> M | None:
        try:
            return folder.read(model, [name])[0] if name in names else None
        except RunError as error:
            found[name] = str(error)
            return None

    about, manifest = read(PartsDescription, DESCRIPTION), read(PartsManifest, MANIFEST)
    listed = {} if manifest is None else {each.shard: each for each in manifest.parts}
    if manifest is not None and sorted(listed) != list(range(manifest.shards)):
        found[MANIFEST] = f"{len(listed):,} parts of {manifest.shards:,}"
    elif about is not None and manifest is not None and dict(about).items() - dict(manifest).items():
        found[MANIFEST] = f"of another prediction than {DESCRIPTION}"
    for number in sorted({int(match[1]) for match in map(_PART.match, names) if match} | listed.keys()):
        name, summary = summary_name(number), read(PartSummary, summary_name(number))
        if summary is None:
            found.setdefault(name, "missing")
        elif summary != listed.get(number, summary):
            found[name] = f"not what {MANIFEST} says"
        elif about is not None and (summary.predictor != about.predictor or number >= about.shards):
            found[name] = f"of another prediction than {DESCRIPTION}"
        if (expected := listed.get(number, summary)) is not None:
            found[part_name(number)] = folder.problem(expected)
    return found, manifest is not None

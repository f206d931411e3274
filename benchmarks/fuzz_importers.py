"""Fuzz the CSV and Parquet readers: they read a damaged table completely, or report what is wrong.

    python benchmarks/fuzz_importers.py [CASES] [--seed SEED] [--keep FOLDER]

Every case takes a table as common programs write them (the VOC2012 labels too, where ../shared/data exists), damages
its bytes, lines, cells or columns, and reads it with random options. Two things must never happen: an error that is not
labelgap's own, and a row that is in the file, but neither in the table nor in an error. 100,000 cases take some minutes
of one core. Failing cases are stored in FOLDER and printed with their number, which reproduces them.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from labelgap.core.errors import LabelGapError, ProblemsError
from labelgap.data import load
from labelgap.data.findings import ImagesSkipped
from labelgap.labels.io.dialect import detect_dialect
from labelgap.labels.io.formats import read_csv, read_parquet
from labelgap.labels.io.parse import is_header
from labelgap.labels.io.table_file import TableFile, TableOptions

REAL: Final = Path(__file__).resolve().parents[2] / "shared" / "data" / "VOCdevkit"
TAGS: Final = ("cat", "dog", "Dog", "big owl", "café")
PIECES: Final = [
    *('"', ",", ";", "\t", "|", "\n", "\r", "\r\n", "\0", "\ufeff", "\u2028", "\x85", " ", "", "image", "present"),
    *("split", "train", "1", "0", "-1", "x", "NA", "nan", "1e400", "..", "/", "http://a/b.jpg", "é", "e\u0301"),
    *("=1+1", "A" * 200_000, "sep=;", "absent", "group", "[]", "['a'", "\\", "'"),
]
LARGE: Final = 300


class Case:
    """One damaged table, with its random numbers."""

    def __init__(self, number: int, seed: int, folder: Path) -> None:
        self.random = np.random.default_rng([seed, number])
        self.folder = folder

    def happens(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self.random.random() < probability)

    def pick(self, values: Any) -> Any:
        """Choose one of several."""
        return values[int(self.random.integers(len(values)))]

    def options(self) -> dict[str, Any]:
        """Choose some options, sensible and not."""
        given: dict[str, Any] = {}
        for name, values in (
            ("zeros", ("absent", "unknown")),
            ("unlisted", ("unknown", "absent")),
            ("separator", (";", ",", "|", "space")),
            ("classes", (("cat",), ("dog", "cat"), ("zebra", "dog"))),
            ("ignore_columns", (("dog",), ("group",), ("width",))),
            ("rename", ({"dog": "Dog"}, {"file": "image"}, {"cat": "present"}, {"a": "b", "b": "a"})),
        ):
            if self.happens(0.08):
                given[name] = self.pick(values)
        return given


def texts() -> list[bytes]:
    """Tables as different programs write them."""
    random = np.random.default_rng(0)
    wide = [["image", "split", "group", *TAGS]]
    lists = [["image", "split", "present", "absent"]]
    for row in range(24):
        states = [["1", "0", ""][int(random.integers(3))] for _ in TAGS]
        split = ("train", "val", "test")[row % 3]
        wide.append([f"{row:03d}.png", split, str(row // 4), *states])
        named = [[tag for tag, state in zip(TAGS, states, strict=True) if state == code] for code in "10"]
        lists.append([f"{row:03d}.png", split, *map(";".join, named)])
    plain, listed = ("\n".join(",".join(row) for row in rows) + "\n" for rows in (wide, lists))
    found = [plain, listed, plain.replace("1", "TRUE").replace(",0", ",no"), f"sep=;\r\n{plain.replace(',', ';')}"]
    found += [listed.replace(",", "\t"), listed.replace(";", "|"), re.sub(r"([^,\n]+)", r'"\1"', listed)]
    made = [text.encode() for text in found]
    made += [plain.encode("utf-8-sig"), plain.replace(",", ";").encode("cp1252"), listed.encode("utf-16")]
    return [*made, *real_texts()]


def real_texts() -> list[bytes]:
    """The real labels of VOC2012, as labelgap writes them."""
    if not REAL.is_dir():
        return []
    with tempfile.TemporaryDirectory() as folder:
        labels = load("voc2012", REAL, boxes=False).train.labels.select(range(60))
        labels.to_csv(Path(folder) / "voc.csv", splits=["train", "val", "test"] * 20)
        return [(Path(folder) / "voc.csv").read_bytes()]


def damaged_text(case: Case, data: bytes) -> bytes:
    """Damage bytes, lines and cells, once or a few times."""
    for _ in range(int(case.random.integers(0, 5))):
        kind = int(case.random.integers(7))
        at = int(case.random.integers(len(data) + 1))
        if kind == 0:
            data = data[:at] + case.random.bytes(int(case.random.integers(1, 4))) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + int(case.random.integers(1, 9)) :]
        elif kind == 2:
            data = data[:at] if case.happens(0.3) else data + data[: min(at, LARGE)]
        elif kind == 3:
            piece = str(case.pick(PIECES)).encode("utf-8", "surrogatepass")
            data = data[:at] + piece + data[at:]
        else:
            data = damaged_lines(case, data, kind)
    return data


def damaged_lines(case: Case, data: bytes, kind: int) -> bytes:
    lines = data.split(b"\n")
    one, other = (int(case.random.integers(len(lines))) for _ in range(2))
    if kind == 4:
        lines[one], lines[other] = lines[other], lines[one]
    elif kind == 5:
        lines.insert(one, lines[other])
    else:
        mark = case.pick([b",", b";", b"\t"])
        cells = lines[one].split(mark)
        cells[int(case.random.integers(len(cells)))] = str(case.pick(PIECES)).encode("utf-8", "surrogatepass")
        lines[one] = mark.join(cells)
    return b"\n".join(lines)


def tables() -> list[pa.Table]:
    """Parquet tables, wide and lists, of many types."""
    rows = range(24)
    split = [("train", "val", "test")[row % 3] for row in rows]
    images = [f"{row:03d}.png" for row in rows]
    wide = {
        "image": images,
        "split": split,
        "cat": [row % 2 for row in rows],
        "dog": [None if row % 3 else row % 2 == 0 for row in rows],
        "owl": [float("nan") if row % 3 else 1.0 for row in rows],
        "group": [str(row // 3) for row in rows],
    }
    lists = {"image": images, "split": split, "present": [["cat", "dog"][: row % 3] for row in rows]}
    texts = {"image": images, "present": ["cat;dog" if row % 2 else "" for row in rows], "absent": ["owl"] * 24}
    return [pa.table(wide), pa.table(lists), pa.table(texts)]


def damaged_table(case: Case, table: pa.Table) -> pa.Table:
    """Damage columns: their names, types, values, and their number."""
    for _ in range(int(case.random.integers(0, 4))):
        if not table.num_columns:
            return table
        at = int(case.random.integers(table.num_columns))
        name, column = table.column_names[at], table.column(at).to_pylist()
        kind = int(case.random.integers(6))
        if kind == 0:
            table = table.rename_columns(
                [*table.column_names[:at], case.pick(PIECES)[:50], *table.column_names[at + 1 :]]
            )
        elif kind == 1:
            table = table.remove_column(at)
        elif kind == 2:
            column[int(case.random.integers(len(column)))] = None
            table = table.set_column(at, name, pa.array(column))
        elif kind == 3:
            table = table.append_column(case.pick(["x", name, "width"]), pa.array(case.pick(values_of_any_type())))
        elif kind == 4:
            order = (
                case.random.integers(0, table.num_rows, table.num_rows) if case.happens(0.3) else range(table.num_rows)
            )
            table = table.take(pa.array(list(order)))
        else:
            texts = [None if value is None else str(value) for value in column]
            texts[int(case.random.integers(len(texts)))] = case.pick(PIECES)[:500]
            table = table.set_column(at, name, pa.array(texts))
    return table


def values_of_any_type() -> list[list[Any]]:
    return [
        [1] * 24,
        [0.5] * 24,
        [b"\xff\x00"] * 24,
        [{"a": 1}] * 24,
        [[1, 2]] * 24,
        [None] * 24,
        [["cat", None]] * 24,
        [[["deep"]]] * 24,
    ]


def records(path: Path, options: TableOptions) -> int | None:
    """Count the rows of a CSV without a CSV reader; None where quotes make a line something else than a row."""
    dialect = detect_dialect(path, None, None, lambda header: is_header(header, options))
    text = path.read_bytes().decode(dialect.encoding)
    if '"' in text:
        return None
    lines = re.split("\r\n|\r|\n", text)[dialect.skip :]
    return sum(any(cell.strip() for cell in line.split(dialect.delimiter)) for line in lines) - 1


def check_csv(case: Case, data: bytes, given: dict[str, Any]) -> str:
    path = case.folder / "case.csv"
    path.write_bytes(data)
    options = TableOptions(**given)
    file = read_csv(path, options)
    expected = records(path, options)
    if expected is not None and expected != len(file.table):
        raise AssertionError(f"{expected} rows in the file, {len(file.table)} in the table")
    return check_splits(case, path, file, given)


def check_parquet(case: Case, table: pa.Table, given: dict[str, Any]) -> str:
    path = case.folder / "case.parquet"
    try:
        pq.write_table(table, path)
    except (pa.ArrowException, ValueError, UnicodeEncodeError):
        return "not written"
    if case.happens(0.2):
        data = bytearray(path.read_bytes())
        for _ in range(int(case.random.integers(1, 4))):
            data[int(case.random.integers(len(data)))] = int(case.random.integers(256))
        path.write_bytes(bytes(data))
    file = read_parquet(path, TableOptions(**given))
    expected = pq.ParquetFile(path).metadata.num_rows
    if expected != len(file.table):
        raise AssertionError(f"{expected} rows in the file, {len(file.table)} in the table")
    return check_splits(case, path, file, given)


def check_splits(case: Case, path: Path, file: TableFile, given: dict[str, Any]) -> str:
    """Now and then load the images too: every row is in a split, or counted as left out."""
    if not case.happens(0.03):
        return "read"
    data = load(
        path.suffix[1:],
        path,
        images=case.folder / "photos",
        on_bad_image="skip",
        duplicates="off",
        allow_leaks=True,
        **given,
    )
    left_out = sum(len(each.names) for each in data.findings if isinstance(each, ImagesSkipped))
    if sum(map(len, data.splits)) + left_out != len(file.table):
        raise AssertionError(f"{len(file.table)} rows, {sum(map(len, data.splits))} in splits, {left_out} left out")
    return "loaded"


def check_told(error: LabelGapError) -> None:
    """Whether an error is fit to be read: not endless, and its problems numbered."""
    text = str(error)
    if len(text) > 20_000 or (isinstance(error, ProblemsError) and not error.problems):
        raise AssertionError(f"an error of {len(text)} characters") from error


def run(number: int, seed: int, folder: Path, sources: tuple[list[bytes], list[pa.Table]]) -> str:
    """Make and check one case; return what came of it."""
    case = Case(number, seed, folder)
    given = case.options()
    try:
        if case.happens(0.7):
            return check_csv(case, damaged_text(case, case.pick(sources[0])), given)
        return check_parquet(case, damaged_table(case, case.pick(sources[1])), given)
    except LabelGapError as error:
        check_told(error)
        return "refused"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="?", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=None, help="folder for tables that fail")
    arguments = parser.parse_args()
    sources = texts(), tables()
    outcomes: Counter[str] = Counter()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for row in range(20):
            Image.new("RGB", (4, 4), (row, 0, 0)).save(folder / "photos" / f"{row:03d}.png")
        for number in range(arguments.cases):
            try:
                outcomes[run(number, arguments.seed, folder, sources)] += 1
            except Exception:
                outcomes["failed"] += 1
                print(f"case {number} (seed {arguments.seed}):\n{traceback.format_exc(limit=-4)[-3000:]}")
                if arguments.keep is not None:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    for file in folder.glob("case.*"):
                        (arguments.keep / f"{number}{file.suffix}").write_bytes(file.read_bytes())
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{arguments.cases:,} cases in {time.perf_counter() - started:.0f} s: {told}")
    print(f"failed {outcomes['failed']}")
    sys.exit(1 if outcomes["failed"] else 0)


if __name__ == "__main__":
    main()

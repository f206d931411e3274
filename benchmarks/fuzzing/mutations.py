"""Damage a file: its bytes, its place in the file system, or its content by format.

A mutation that knows the format writes a file that is well formed again and says something that no honest writer says,
as its author would who wants to do harm; one of bytes stands for a bad disk or an interrupted copy.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks.fuzzing.arrays import mutate_array, mutate_arrays
from benchmarks.fuzzing.base import Mutation, Random, canary, pick
from benchmarks.fuzzing.databases import mutate_database
from benchmarks.fuzzing.json_values import mutate_json, mutate_json_lines
from benchmarks.fuzzing.tables import mutate_table
from benchmarks.fuzzing.tensors import mutate_checkpoint, mutate_tensors


def mutate_file(random: Random, path: Path, *, plain: bool = False) -> str:
    """Damage a file in place; return what was done. ``plain`` leaves the file system and huge sizes alone."""
    if not plain and random.random() < 0.06:
        return _replace_entry(random, path)
    data, done = path.read_bytes(), []
    for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
        known = _FORMATS.get(path.suffix)
        mutation = known if known is not None and random.random() < 0.6 else pick(random, _BYTES)
        try:
            data = mutation(random, data)
        except Exception:  # an earlier mutation left nothing that this one understands
            mutation = _flip_bits
            data = mutation(random, data)
        done.append(mutation.__name__.removeprefix("mutate_").strip("_"))
    path.write_bytes(data)
    if not plain and random.random() < 0.002:
        os.truncate(path, 3 << 32)  # sparse: it takes no space
        done.append("huge")
    return " + ".join(done)


def mutate_files_around(random: Random, path: Path) -> str:
    """Put something beside a file that its readers might take for theirs."""
    name = pick(random, [f"{path.name}-wal", f"{path.name}-journal", f"{path.name}-shm"])
    start = pick(random, [b"", b"SQLite format 3\0", b"7\x7f\x06\x82", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"])
    content = start + random.bytes(int(pick(random, [0, 64, 5000])))
    beside = path.with_name(name)
    beside.unlink(missing_ok=True)
    beside.write_bytes(content)
    return f"beside it {name}"


def _endless_file() -> Path:
    """Return a device that never ends: one of our own for root, who could replace that of the system."""
    own = canary().parent.with_name("zero")
    if os.geteuid():
        return Path("/dev/zero")
    with suppress(OSError):  # it is there already, or may not be made here
        os.mknod(own, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    return own


def _replace_entry(random: Random, path: Path) -> str:
    """Delete a file, or put something in its place that is not one."""
    kind = str(pick(random, ["missing", "folder", "pipe", "loop", "dangling", "outside", "zeros", "unreadable"]))
    if kind == "unreadable":
        path.chmod(0)
        return kind
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("loop", "dangling", "outside", "zeros"):
        target = {"loop": path, "dangling": path.with_name("nowhere"), "outside": canary(), "zeros": _endless_file()}
        path.symlink_to(target[kind])
    return kind


def _flip_bits(random: Random, data: bytes) -> bytes:
    content = bytearray(data or b"\0")
    for _ in range(int(random.choice([1, 1, 2, 8]))):
        content[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
    return bytes(content)


def _replace_bytes(random: Random, data: bytes) -> bytes:
    content = bytearray(data or b"\0")
    for _ in range(int(random.integers(1, 5))):
        content[int(random.integers(len(content)))] = pick(random, [0, 255, int(random.integers(256))])
    return bytes(content)


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: int(random.integers(len(data) + 1))]


def _insert(random: Random, data: bytes) -> bytes:
    at = int(random.integers(len(data) + 1))
    return data[:at] + random.bytes(int(random.integers(1, 64))) + data[at:]


def _remove_range(random: Random, data: bytes) -> bytes:
    at = int(random.integers(len(data) + 1))
    return data[:at] + data[at + int(random.integers(1, 64)) :]


def _swap_blocks(random: Random, data: bytes) -> bytes:
    size = int(pick(random, [4, 16, 64, 512]))
    one, other = sorted(int(random.integers(max(len(data) - size, 1))) for _ in range(2))
    if other - one < size:
        return _flip_bits(random, data)
    first, second = data[one : one + size], data[other : other + size]
    return data[:one] + second + data[one + size : other] + first + data[other + size :]


def _zero_block(random: Random, data: bytes) -> bytes:
    at, size = int(random.integers(len(data) + 1)), int(pick(random, [16, 512, 4096]))
    return data[:at] + b"\0" * min(size, len(data) - at) + data[at + size :]


def _empty(random: Random, data: bytes) -> bytes:
    return b""


def _append(random: Random, data: bytes) -> bytes:
    return data + bytes(pick(random, [b"\0", b"\n", random.bytes(30), data[:100], data]))


_BYTES: Final = (
    *(_flip_bits, _flip_bits, _flip_bits, _replace_bytes, _replace_bytes, _truncate, _insert, _remove_range),
    *(_swap_blocks, _zero_block, _empty, _append),
)


_PIECES: Final = (
    *(b'"', b",", b";", b"\t", b"\n", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\xe2\x80\xa8", b"image"),
    *(b"split", b"1", b"-1", b"NA", b"1e400", b"..", b"http://a/b.jpg", b"=1+1", b"sep=;", b"A" * 200_000, b"{", b"]"),
    *(b"&b;", b"&#0;", b"<object>", b"</annotation>", b"<a>" * 200, b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"'=", b"\\"),
    b"<!DOCTYPE a [<!ENTITY e0 'ha'>"
    + b"".join(b"<!ENTITY e%d '%b'>" % (n, b"&e%d;" % (n - 1) * 10) for n in range(1, 10))
    + b"]><annotation>&e9;</annotation>",
)


def mutate_text(random: Random, data: bytes) -> bytes:
    """Put a piece somewhere, or into a cell; swap or repeat lines; or encode the text otherwise."""
    kind, piece, lines = int(random.integers(5)), pick(random, _PIECES), data.split(b"\n")
    one, other = (int(random.integers(len(lines))) for _ in range(2))
    if kind == 0:
        at = int(random.integers(len(data) + 1))
        return bytes(data[:at] + piece + data[at:])
    if kind == 1:
        return data.decode("latin-1").encode(pick(random, ["utf-16", "utf-8-sig"]))
    if kind == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif kind == 3:
        lines.insert(one, lines[other])
    else:
        cells = lines[one].split(b",")
        cells[int(random.integers(len(cells)))] = piece
        lines[one] = b",".join(cells)
    return b"\n".join(lines)


_FORMATS: Final[dict[str, Mutation]] = {
    **dict.fromkeys((".arff", ".csv", ".txt", ".xml"), mutate_text),
    ".json": mutate_json,
    ".jsonl": mutate_json_lines,
    ".npy": mutate_array,
    ".npz": mutate_arrays,
    ".parquet": mutate_table,
    ".safetensors": mutate_tensors,
    ".pt": mutate_checkpoint,
    ".pth": mutate_checkpoint,
    ".sqlite": mutate_database,
}

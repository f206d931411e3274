"""Mutations of ``.npy`` and ``.npz``: other types and shapes, headers that lie, pickled code, other members."""

from __future__ import annotations

import io
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.fuzzing.base import Payload, Random, pick
from numpy.typing import NDArray


def _npy(values: Any, *, shape: Any = None, descr: Any = None) -> bytes:
    """Return a ``.npy`` whose header may claim another shape or type."""
    array = np.asarray(values)
    stream = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    header |= {key: each for key, each in (("shape", shape), ("descr", descr)) if each is not None}
    text = repr(header).encode("latin-1", "replace")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    stream.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes())
    return stream.getvalue()


def _other_array(random: Random, values: Any) -> bytes:
    """Return an array as ``.npy``, with other values, another type or shape, or a header that lies."""
    array = np.asarray(values)
    changed: list[Callable[[], Any]] = [
        lambda: _cast(array, pick(random, ["<f8", "<f4", "<f2", "<i8", "|i1", "|u1", "|b1", "<c16", "<U3", ">f4"])),
        lambda: array.reshape(-1),
        lambda: array[..., None],
        lambda: array.reshape(-1)[:1].reshape(()),
        lambda: array[:0],
        lambda: array[: max(len(array) - 1, 0)],
        lambda: np.concatenate([array, array]),
        lambda: array.T,
        lambda: np.full(array.shape, pick(random, [np.nan, np.inf, -np.inf, 1e308])),
        lambda: np.full(array.shape, pick(random, [-1, -2, 2**31, 2**62, 127])),
        lambda: np.zeros(array.shape, dtype=[("a", "<f4"), ("b", "<i4")]),
        lambda: np.array(["x"] * array.size).reshape(array.shape),
        lambda: np.zeros(array.shape, dtype="M8[s]"),
        lambda: np.zeros((*array.shape, 0)),
    ]
    lies: list[Callable[[], bytes]] = [
        lambda: _npy(
            array, shape=pick(random, [(10**12,), (2**63,), (-1,), (0,), (), (2**40, 2**40), (1, 10**9), "x"])
        ),
        lambda: _npy(
            array, descr=pick(random, ["<f8", "|O", "<U1000000000", "<x9", "|V9", "|S0", [("a", "<f4")], "M8"])
        ),
        lambda: b"\x93NUMPY\x01\x00" + struct.pack("<H", 40) + b"__import__('os').system('x')".ljust(40),
        lambda: b"\x93NUMPY\x03\x00" + struct.pack("<I", 2**31) + array.tobytes(),
        lambda: pickle.dumps(Payload()),
        lambda: _objects(),
    ]
    return _npy(pick(random, changed)()) if random.random() < 0.7 else bytes(pick(random, lies)())


def _cast(array: NDArray[Any], kind: str) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        return array.astype(kind)


def _objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Payload()], dtype=object), allow_pickle=True)
    return stream.getvalue()


def mutate_array(random: Random, data: bytes) -> bytes:
    return _other_array(random, np.load(io.BytesIO(data)))


def mutate_arrays(random: Random, data: bytes) -> bytes:
    """Rewrite an ``.npz``: one array other than it was, gone, doubled, renamed or compressed to nothing."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    at = int(random.integers(len(members)))
    name, content = members[at]
    kind = int(random.integers(9))
    if kind == 0:
        del members[at]
    elif kind == 1:
        members.append((pick(random, [name, "x.npy", "../../x.npy", "/x.npy", "\n.npy", ""]), content))
    elif kind == 2:
        members[at] = (pick(random, ["x.npy", name.removesuffix(".npy"), name.upper()]), content)
    elif kind == 3:
        members[at] = (name, _npy(np.zeros(1, dtype="<f4"), shape=(1 << 22,)) + bytes(1 << 24))
    else:
        members[at] = (name, _other_array(random, np.load(io.BytesIO(content))))
    stream = io.BytesIO()
    with (
        warnings.catch_warnings(action="ignore"),
        zipfile.ZipFile(stream, "w", pick(random, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), compresslevel=1) as out,
    ):
        for name, content in members:
            out.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED if len(content) > 1 << 20 else None)
    return stream.getvalue()

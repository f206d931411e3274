"""Mutations of safetensors (headers that lie, values that are no numbers) and of checkpoints of torch."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import numpy as np
import torch
from benchmarks.fuzzing.base import Payload, Random, pick
from benchmarks.fuzzing.json_values import hostile_value, mutate_value


def mutate_tensors(random: Random, data: bytes) -> bytes:
    """Rewrite the header of a safetensors file, or what it says about itself."""
    (length,) = struct.unpack("<Q", data[:8])
    header, content = json.loads(data[8 : 8 + length]), data[8 + length :]
    kind = int(random.integers(6))
    if kind == 0:
        length = int(pick(random, [0, 1, 2**40, 2**63, length - 1, length + 1, 100_000_001]))
        return struct.pack("<Q", length) + data[8:]
    names = [name for name in header if name != "__metadata__"]
    name = pick(random, names)
    if kind == 1:
        header[name]["shape"] = pick(random, [[], [0], [-1], [2**40, 2**40], [1] * 100, header[name]["shape"] * 2, "x"])
    elif kind == 2:
        header[name]["dtype"] = pick(random, ["F64", "F16", "BF16", "I8", "BOOL", "F8_E4M3", "X", 1, None])
    elif kind == 3:
        values = np.frombuffer(content, dtype="<f4", count=len(content) // 4).copy()
        values[int(random.integers(len(values)))] = pick(random, [np.nan, np.inf, 0.0, 1e30])
        content = values.tobytes() + content[values.nbytes :]
    else:
        header = mutate_value(random, header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text)) + text + content


def mutate_checkpoint(random: Random, data: bytes) -> bytes:
    """Rewrite a checkpoint of torch: other states, other types, or code."""
    content = torch.load(io.BytesIO(data), weights_only=True)
    kind = int(random.integers(7))
    key = pick(random, sorted(content))
    if kind == 0:
        content[key] = Payload()
    elif kind == 1:
        del content[key]
    elif kind == 2:
        content = pick(random, [[], None, 3, "x", {"state": {}}, {"state": None}, [content], torch.zeros(3)])
    elif kind == 3 and isinstance(content[key], dict) and content[key]:
        inner = pick(random, sorted(content[key], key=str))
        content[key][inner] = _tensor(random)
    else:
        content[key] = _tensor(random) if random.random() < 0.5 else hostile_value(random)
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def _tensor(random: Random) -> Any:
    shapes = [torch.zeros(0), torch.zeros(()), torch.full((3, 3), torch.nan), torch.zeros(2, dtype=torch.int8)]
    return pick(random, [*shapes, torch.zeros(1).expand(10**9), None, {}, -1, "x", float("inf"), 2**80])

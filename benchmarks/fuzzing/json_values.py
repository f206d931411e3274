"""Mutations of JSON: values of other types, keys gone, new, doubled or renamed, nesting, impossible numbers."""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.fuzzing.base import Random, canary, pick

_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "0", "nan", "x", "a\0b", "\ud800", "../../x", "/etc/passwd", "http://localhost:9/x", "\x1b[31m", "A" * 5000),
    *([], {}, [[]], [None], [1, "x", None], {"": 0}, {"format": 2}, {"__class__": "x"}, {"values": []}),
    *("os:system", "torch.hub:load", "timm:resnet18", "features", "digits", "csv", "end-to-end", "boostlu"),
)
_KEYS: Final = ("format", "path", "steps", "loader", "weights", "name", "x", "", "__class__", "signature")
_HOSTILE_STEPS: Final[tuple[Any, ...]] = (
    [{"__class__": {}}],
    [{"train": {}}],
    [{"observe": {"positives": 1e400, "negatives": 0, "seed": 0}}],
    [{"observe": {"positives": "all", "negatives": "all", "seed": 2**70}}],
    [{"observe": {"positives": 1, "negatives": 0, "seed": 0}}] * 3,
    [{"reveal": {"x": 1}}],
    [{"to_csv": {"path": "CANARY"}}],
    [{"eval": {"expr": "open('CANARY','w')"}}],
)


def hostile_value(random: Random) -> Any:
    """Return a value of any type; some name the canary."""
    kind = int(random.integers(12))
    if kind == 0:
        return json.loads(json.dumps(pick(random, _HOSTILE_STEPS)).replace("CANARY", str(canary())))
    if kind == 1:
        return str(canary())
    if kind == 2:
        name = pick(random, ["csv", "features", "folder", "coco"])
        return {"name": name, "path": str(canary()), "options": {}, "steps": []}
    return pick(random, _VALUES)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(each for key, item in inner for each in _places(item, (*place, key)))]


def mutate_value(random: Random, value: Any) -> Any:
    """Return a JSON document with one value replaced, removed, added, copied or nested."""
    value = json.loads(json.dumps(value))
    place = pick(random, _places(value))
    if not place:
        return pick(random, [hostile_value(random), [value], {"x": value}]) if random.random() < 0.3 else value
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    kind, key = int(random.integers(8)), place[-1]
    if kind == 0:
        del parent[key]
    elif kind == 1 and isinstance(parent, dict):
        parent[pick(random, _KEYS)] = hostile_value(random)
    elif kind == 2 and isinstance(parent, dict):
        parent[pick(random, _KEYS)] = parent.pop(key)
    elif kind == 3 and isinstance(parent, list):
        parent += [parent[key]] * int(pick(random, [1, 2, 1000]))
    elif kind == 4:
        parent[key] = _changed_number(random, parent[key])
    else:
        parent[key] = hostile_value(random)
    return value


def _changed_number(random: Random, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [value]
    return pick(random, [value + 1, -value, value * 1e30, float(value), str(value), value / 3, int(value)])


def _json_text(random: Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    kind = int(random.integers(12))
    if kind == 0:
        text = text.replace("{", '{"format": 1, "data": 3, "format": 1, ', 1)
    elif kind == 1:
        depth = int(pick(random, [100, 3000, 200_000]))
        text = text.replace(": ", ": " + "[" * depth + "]" * depth + ', "x": ', 1)
    elif kind == 2:
        numbers = ["1e400", "-1e400", "NaN", "-Infinity", "0" * 30, "1" * 5000, "1e-400"]
        text = text.replace("0", pick(random, numbers), 1)
    elif kind == 3:
        text = pick(random, ["\ufeff" + text, text + text, text + "\n\n", "// x\n" + text, text.replace('"', "'")])
    return text.encode("utf-8", "surrogatepass")


def mutate_json(random: Random, data: bytes) -> bytes:
    return _json_text(random, mutate_value(random, json.loads(data)))


def mutate_json_lines(random: Random, data: bytes) -> bytes:
    lines = data.splitlines()
    at = int(random.integers(len(lines)))
    kind = int(random.integers(8))
    if kind == 0:
        lines.insert(at, lines[int(random.integers(len(lines)))])
    elif kind == 1:
        del lines[at]
    else:
        lines[at] = mutate_json(random, lines[at])
    return b"\n".join(lines) + b"\n"

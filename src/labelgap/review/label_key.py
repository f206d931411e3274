"""Ids of labels and images: hashes of their names, which mean the same after a restart and after another audit."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LabelKey", "candidate_id", "combine_hashes", "find_id", "hash_names"]


class LabelKey(NamedTuple):
    """What a decision is about: one class of one image."""

    split: str
    image: str
    class_name: str


def candidate_id(entry: LabelKey) -> str:
    """Return the id of a label: sixteen hexadecimal digits.

    Example:
        >>> candidate_id(LabelKey("train", "a.jpg", "dog")) == candidate_id(LabelKey("train", "a.jpg", "cat"))
        False
    """
    image, name = np.array([[hash_names(entry.split, entry.image)], [hash_names(entry.class_name)]], dtype=np.uint64)
    return f"{int(combine_hashes(image, name)[0]):016x}"


def hash_names(*parts: str) -> int:
    """Return 64 bits of names."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def combine_hashes(images: NDArray[np.uint64], classes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one hash of two (the last steps of SplitMix64 on their sum, the second one scrambled first)."""
    with np.errstate(over="ignore"):
        value = images + classes * np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return result


def find_id(ids: NDArray[np.uint64], order: NDArray[np.int64], identity: str) -> int | None:
    """Return the place of an id among others, which ``order`` sorts; None where it is not there."""
    try:
        wanted = np.uint64(int(identity, 16))
    except (ValueError, OverflowError):
        return None
    at = int(np.searchsorted(ids, wanted, sorter=order))
    return int(order[at]) if at < len(order) and ids[order[at]] == wanted else None

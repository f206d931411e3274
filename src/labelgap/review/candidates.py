"""The candidates of a review as compact columns, with ids that stay valid when the file changes; copies of images.

An id is a hash of split, image and class: after another audit, or a restart, it still means the same label, so a
decision that waited in a browser cannot be applied to another. Copies of an image, as the reader of the data finds
them, are asked about once; a decision is stored for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.candidates import KINDS, read_candidates, read_metadata
from labelgap.core.errors import RunError
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import UNKNOWN
from labelgap.review.store import LabelKey
from labelgap.training.folds import duplicate_groups

MISSING, WRONG, RANDOM = range(len(KINDS))

# one random candidate follows this many ranked ones: a tenth of what is shown, while they last
RANDOM_INTERVAL: Final = 9
_NAMES: Final = ("image", "split", "class", "kind")
_NUMBERS: Final = {"score": np.float32, "observed": np.int8, "rank": np.int32, "class_rank": np.int32}
_LARGEST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class CandidateColumns:
    """Every candidate once, as numbers; C candidates of M images."""

    images: tuple[tuple[str, str], ...]  # split and name of each of the M images
    image_ids: NDArray[np.uint64]  # (M,) uint64
    image: NDArray[np.int32]  # (C,) number of the image
    class_number: NDArray[np.int32]  # (C,)
    score: NDArray[np.float32]  # (C,) probability of being present; NaN without a model
    # (C,) index into `KINDS`; a candidate that is both ranked and random has the ranked kind
    kind: NDArray[np.int8]
    observed: NDArray[np.int8]  # (C,) code of the observed label
    rank: NDArray[np.int32]  # (C,) within its kind, 1 = first
    class_rank: NDArray[np.int32]  # (C,) within its kind and class
    random_rank: NDArray[np.int32]  # (C,) class rank in the random sample; 0 when it is not in the sample
    ids: NDArray[np.uint64]  # (C,) uint64


class Candidates:
    """The candidates of a file, all or those of a split, with the ``classes`` of the data; read on first use."""

    def __init__(self, path: Path, classes: Sequence[str], split: str | None = None) -> None:
        self.path = path
        self.classes = tuple(classes)
        self.split = split
        self.metadata = read_metadata(path)

    def __len__(self) -> int:
        return len(self.columns.ids)

    @cached_property
    def columns(self) -> CandidateColumns:
        """The candidates as numbers."""
        names, columns = _read_columns(self.path)
        class_names, class_codes = names["class"]
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = next((name for name in class_names if name not in numbers), None)
        if unknown is not None:
            raise RunError(
                f"{self.path} has the class {truncate_text(unknown)!r}, which is not in the data. Audit the run again."
            )
        columns["class_number"] = np.array([numbers[name] for name in class_names], dtype=np.int32)[class_codes]
        kinds, kind_codes = names["kind"]
        columns["kind"] = np.array([KINDS.index(name) for name in kinds], dtype=np.int8)[kind_codes]
        (splits, split), (images, image) = names["split"], names["image"]
        if self.split is not None:
            selected = np.array([name == self.split for name in splits], dtype=np.bool_)[split]
            columns = {name: values[selected] for name, values in columns.items()}
            split, image = split[selected], image[selected]
        pairs, index = np.unique(split.astype(np.int64) * max(len(images), 1) + image, return_inverse=True)
        columns["image"] = index.astype(np.int32)
        image_keys = tuple((splits[pair // len(images)], images[pair % len(images)]) for pair in pairs.tolist())
        image_ids = np.array([hash_names(*key) for key in image_keys], dtype=np.uint64)
        class_ids = np.array([hash_names(name) for name in self.classes], dtype=np.uint64)
        ids = combine_hashes(image_ids[columns["image"]], class_ids[columns["class_number"]])
        return _merge_duplicates(image_keys, image_ids, ids, columns)

    def why_none(self) -> str:
        """Return the end of the message that there are no candidates: why, and what to do."""
        split, folder, audited = self.split, self.path.parent, self.metadata.get("splits") or []
        if split is None or split in audited:
            return f"{f' of {split}' if split else ''}: nothing to review."
        return (
            f" of {split}: the audit looked at {', '.join(audited) or 'other images'}. `labelgap audit {folder} "
            f"--split {','.join([*audited, split])}` looks at {split} as well."
        )

    def id(self, number: int) -> str:
        """Return the id of a candidate: sixteen hexadecimal digits."""
        return f"{int(self.columns.ids[number]):016x}"

    def index(self, identity: str) -> int | None:
        """Return the number of the candidate with an id, or None."""
        return _find(self.columns.ids, self._by_id, identity)

    def image_index(self, identity: str) -> int | None:
        """Return the number of the image with an id, or None."""
        return _find(self.columns.image_ids, self._images_by_id, identity)

    def number_of(self, key: LabelKey) -> int | None:
        """Return the number of the candidate for a label, or None when the label is not a candidate."""
        return self.index(candidate_id(key))

    def key(self, number: int) -> LabelKey:
        """Return the label of a candidate."""
        columns = self.columns
        split, image = columns.images[columns.image[number]]
        return LabelKey(split, image, self.classes[columns.class_number[number]])

    def listed(self, class_number: int, wrong: bool = False) -> NDArray[np.int64]:
        """Return the candidates of a class in display order, a random one among every ten, or those that look wrong."""
        order, starts = self.order
        group = class_number + (len(self.classes) if wrong else 0)
        return order[starts[group] : starts[group + 1]]

    def of_image(self, image: int) -> NDArray[np.int64]:
        """Return the candidates of an image, the most probable first."""
        order, starts = self._by_image
        return order[starts[image] : starts[image + 1]]

    @cached_property
    def image_order(self) -> NDArray[np.int64]:
        """The images by the rank of their best candidate; those with only random candidates come last."""
        columns = self.columns
        best = np.full(len(columns.images), _LARGEST)
        np.minimum.at(best, columns.image, np.where(columns.kind == RANDOM, _LARGEST, columns.rank.astype(np.int64)))
        return np.argsort(best, kind="stable")

    @cached_property
    def position(self) -> NDArray[np.int64]:
        """``(C,)`` in the list of its class: a smaller number is shown earlier; the earlier of a draw and a rank."""
        columns = self.columns
        ranked = np.where(columns.kind == RANDOM, _LARGEST, columns.class_rank.astype(np.int64) * 2 - 1)
        offset = (columns.ids % np.uint64(RANDOM_INTERVAL)).astype(np.int64)
        drawn = 2 * ((columns.random_rank.astype(np.int64) - 1) * RANDOM_INTERVAL + offset)
        return np.minimum(ranked, np.where(columns.random_rank > 0, drawn, _LARGEST))

    @cached_property
    def order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All candidates by class, those that look wrong last, in display order within, and where each group starts."""
        columns = self.columns
        group = columns.class_number + np.where(columns.kind == WRONG, len(self.classes), 0)
        order = np.lexsort((columns.ids, self.position, group))
        return order, np.searchsorted(group[order], np.arange(2 * len(self.classes) + 1))

    @cached_property
    def _by_image(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        columns = self.columns
        order = np.lexsort((columns.class_number, -np.nan_to_num(columns.score), columns.image))
        return order, np.searchsorted(columns.image[order], np.arange(len(columns.images) + 1))

    @cached_property
    def _by_id(self) -> NDArray[np.int64]:
        return np.argsort(self.columns.ids)

    @cached_property
    def _images_by_id(self) -> NDArray[np.int64]:
        return np.argsort(self.columns.image_ids)


def candidate_id(key: LabelKey) -> str:
    """Return the id of a label: sixteen hexadecimal digits."""
    image, name = np.array([[hash_names(key.split, key.image)], [hash_names(key.class_name)]], dtype=np.uint64)
    return f"{int(combine_hashes(image, name)[0]):016x}"


def hash_names(*names: str) -> int:
    """Return the hash of split and image, or of a class: 64 bits."""
    text = "\0".join(names).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def combine_hashes(images: NDArray[np.uint64], classes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Combine two hashes into one: the finalizer of SplitMix64 on their sum, the second multiplied first."""
    with np.errstate(over="ignore"):
        value = images + classes * np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return result


def _find(ids: NDArray[np.uint64], order: NDArray[np.int64], identity: str) -> int | None:
    try:
        value = np.uint64(int(identity, 16))
    except (ValueError, OverflowError):
        return None
    at = int(np.searchsorted(ids, value, sorter=order))
    return int(order[at]) if at < len(order) and ids[order[at]] == value else None


def _read_columns(path: Path) -> tuple[dict[str, tuple[list[str], NDArray[np.int32]]], dict[str, NDArray[Any]]]:
    """Return the text columns as (distinct names, index of each row's name), and the number columns."""
    table = read_candidates(path)
    names = {}
    for name in _NAMES:
        encoded = table[name].combine_chunks().dictionary_encode()
        names[name] = (encoded.dictionary.to_pylist(), encoded.indices.to_numpy())
    return names, {name: table[name].to_numpy().astype(dtype) for name, dtype in _NUMBERS.items()}


def _merge_duplicates(
    images: tuple[tuple[str, str], ...],
    image_ids: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    columns: dict[str, NDArray[Any]],
) -> CandidateColumns:
    """Keep one row per label, in file order: a ranked label may be in the random sample too, and is shown once."""
    random_rank = np.where(columns["kind"] == RANDOM, columns["class_rank"], 0).astype(np.int32)
    order = np.lexsort((columns["kind"], ids))
    _, first, label = np.unique(ids[order], return_index=True, return_inverse=True)
    sampled = np.zeros(len(first), dtype=np.int32)
    np.maximum.at(sampled, label, random_rank[order])
    in_file_order = np.argsort(order[first])
    rows = order[first][in_file_order]
    unique = {name: values[rows] for name, values in columns.items()}
    return CandidateColumns(images, image_ids, random_rank=sampled[in_file_order], ids=ids[rows], **unique)


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of images, and the candidates that are asked about."""

    data: Dataset  # the data that the images are of
    # split and image → the names of its copies in that split, for images that have any
    others: dict[tuple[str, str], tuple[str, ...]]
    rows: dict[tuple[str, str], int]  # split and image → its row, for the same images
    # (C,) whether a candidate is asked about; False where a copy is asked about in its place
    shown: NDArray[np.bool_]

    def of(self, key: LabelKey, known: bool = True) -> tuple[LabelKey, ...]:
        """Return the same label of the copies of an image; without ``known``, where the data do not know it."""
        copies = (key._replace(image=name) for name in self.others.get((key.split, key.image), ()))
        return tuple(each for each in copies if known or not self._is_known(each))

    def _is_known(self, key: LabelKey) -> bool:
        if key.class_name not in self.data.classes:
            return False
        row, number = self.rows[key.split, key.image], self.data.classes.index(key.class_name)
        return int(self.data.split(key.split).labels.codes_at([row], [number])[0]) != UNKNOWN


def find_copies(data: Dataset, candidates: Candidates, decided: NDArray[np.bool_]) -> Copies:
    """Find copies among the images, and the candidates that stand for them: an open one unless all are ``decided``."""
    others: dict[tuple[str, str], tuple[str, ...]] = {}
    rows: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], str] = {}
    for split in data.splits:
        images, members = split.labels.images, dict[int, list[int]]()
        for row, group in enumerate(duplicate_groups(data, split.name).tolist()):
            members.setdefault(group, []).append(row)
        for group_rows in members.values():
            for row in group_rows if len(group_rows) > 1 else ():
                key = split.name, images[row]
                others[key] = tuple(images[each] for each in group_rows if each != row)
                rows[key], first[key] = row, images[group_rows[0]]
    return Copies(data, others, rows, _stands_for_copies(candidates, first, decided))


def _stands_for_copies(
    candidates: Candidates, first: dict[tuple[str, str], str], decided: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return ``(C,)``: whether a candidate is the first of its copies in the list of its class."""
    columns, numbers = candidates.columns, dict[tuple[str, str], int]()
    stands = ((split, first.get((split, name), name)) for split, name in columns.images)
    group = np.array([numbers.setdefault(key, len(numbers)) for key in stands], dtype=np.int64)
    question = (group[columns.image] * len(candidates.classes) + columns.class_number) * 2 + (columns.kind == WRONG)
    order = np.lexsort((columns.ids, candidates.position, decided, question))
    shown = np.zeros(len(order), dtype=np.bool_)
    shown[order] = np.diff(question[order], prepend=-1) != 0
    return shown

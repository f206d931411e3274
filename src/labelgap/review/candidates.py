"""The candidates of a review, as an audit ranked them: compact columns, found by ids that outlive the file.

``candidates.parquet`` has a row per candidate. Names are kept once each and every candidate is a few numbers, so a
million of them take some sixty megabytes. An id is a hash of split, image and class: after another audit, or a restart,
it still means the same label, so a decision that waited in somebody's browser can never land on another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelgap.audit.candidates import FILE, FORMAT, KINDS, read_metadata
from labelgap.core.errors import RunError
from labelgap.labels.codes import as_codes
from labelgap.review.label_key import LabelKey, candidate_id, combine_hashes, find_id, hash_names

__all__ = ["CandidateColumns", "Candidates", "FILE", "FORMAT", "KINDS", "MISSING", "RANDOM", "WRONG"]

MISSING, WRONG, RANDOM = range(len(KINDS))

_EVERY: Final = 9
"""After so many ranked candidates comes a random one: a tenth of what is looked at, while they last."""
_NAMES: Final = ("image", "split", "class", "kind")
_NUMBERS: Final = {"score": np.float32, "observed": np.int8, "rank": np.int32, "class_rank": np.int32}


@dataclass(frozen=True, eq=False)
class CandidateColumns:
    """Every candidate once, in numbers; C candidates of M images.

    Attributes:
        places: split and name of each of the M images.
        image_ids: ``(M,)`` uint64.
        image: ``(C,)`` number of the image.
        class_number: ``(C,)``
        score: ``(C,)`` probability of being present; NaN where no model was asked.
        kind: ``(C,)`` number in ``KINDS``; one that is ranked and random as well is of the ranked kind.
        observed: ``(C,)`` code of what was observed.
        rank: ``(C,)`` within its kind, 1 = first.
        class_rank: ``(C,)`` within its kind and class.
        random_rank: ``(C,)`` class rank in the random sample; 0 where it is not in the sample.
        ids: ``(C,)`` uint64.
    """

    places: tuple[tuple[str, str], ...]
    image_ids: NDArray[np.uint64]
    image: NDArray[np.int32]
    class_number: NDArray[np.int32]
    score: NDArray[np.float32]
    kind: NDArray[np.int8]
    observed: NDArray[np.int8]
    rank: NDArray[np.int32]
    class_rank: NDArray[np.int32]
    random_rank: NDArray[np.int32]
    ids: NDArray[np.uint64]


class Candidates:
    """The candidates of a folder. Opening reads the header alone; the columns come when they are first needed.

    Args:
        path: the file.
        classes: names of the classes in the order of the data; class numbers are places in it.
        split: leave out the candidates of other splits.

    Attributes:
        about: what the audit wrote with them: runs, data, method, how many labels are unknown.
    """

    def __init__(self, path: Path, classes: Sequence[str], split: str | None = None) -> None:
        self.path = path
        self.classes = tuple(classes)
        self.split = split
        self.about = read_metadata(path)

    def __len__(self) -> int:
        return len(self.columns.ids)

    @cached_property
    def columns(self) -> CandidateColumns:
        """The candidates as numbers."""
        names, numbers = _read(self.path)
        class_names, class_codes = names["class"]
        number = {name: place for place, name in enumerate(self.classes)}
        strange = next((name for name in class_names if name not in number), None)
        if strange is not None:
            raise RunError(f"{self.path} has the class {strange!r}, which the data do not have. Audit the run again.")
        classes = np.array([number[name] for name in class_names], dtype=np.int32)[class_codes]
        kinds = _kinds(self.path, *names["kind"])
        (splits, split), (images, image) = names["split"], names["image"]
        kept = np.ones(len(image), dtype=np.bool_)
        if self.split is not None:
            kept = np.array([name == self.split for name in splits], dtype=np.bool_)[split]
        code = split.astype(np.int64) * max(len(images), 1) + image
        different, place = np.unique(code[kept], return_inverse=True)
        places = tuple((splits[at // len(images)], images[at % len(images)]) for at in different.tolist())
        image_ids = np.array([hash_names(*pair) for pair in places], dtype=np.uint64)
        found = {name: values[kept] for name, values in numbers.items()} | {"kind": kinds[kept]}
        found |= {"image": place.astype(np.int32), "class_number": classes[kept]}
        class_ids = np.array([hash_names(name) for name in self.classes], dtype=np.uint64)
        ids = combine_hashes(image_ids[found["image"]], class_ids[found["class_number"]])
        return _once(places, image_ids, ids, found)

    def index(self, identity: str) -> int | None:
        """Return the number of the candidate with an id, or None."""
        return find_id(self.columns.ids, self._by_id, identity)

    def image_index(self, identity: str) -> int | None:
        """Return the number of the image with an id, or None."""
        return find_id(self.columns.image_ids, self._images_by_id, identity)

    def number_of(self, entry: LabelKey) -> int | None:
        """Return the number of the candidate of a label, or None where it is not among the candidates."""
        return self.index(candidate_id(entry))

    def entry(self, number: int) -> LabelKey:
        """Return which label a candidate is about."""
        columns = self.columns
        split, image = columns.places[columns.image[number]]
        return LabelKey(split, image, self.classes[columns.class_number[number]])

    def listed(self, class_number: int, wrong: bool = False) -> NDArray[np.int64]:
        """Return the candidates of a class in the order in which they are shown.

        The ranked ones with the random ones among them, one in ten at a place that cannot be foretold; or the known
        labels that look wrong.
        """
        order, starts = self._order
        at = class_number + (len(self.classes) if wrong else 0)
        return order[starts[at] : starts[at + 1]]

    def of_image(self, image: int) -> NDArray[np.int64]:
        """Return the candidates of an image, the probable ones first."""
        order, starts = self._by_image
        return order[starts[image] : starts[image + 1]]

    @cached_property
    def image_order(self) -> NDArray[np.int64]:
        """The images, the one with the first-ranked candidate first; those with none but random ones come last."""
        columns = self.columns
        best = np.full(len(columns.places), np.iinfo(np.int32).max, dtype=np.int32)
        ranked = columns.kind != RANDOM
        np.minimum.at(best, columns.image[ranked], columns.rank[ranked])
        return np.argsort(best, kind="stable")

    @cached_property
    def keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each candidate is shown in the list of its class, and where the random sample wants it shown.

        Two ``(C,)``: of two candidates of a list, the one with the smaller key comes first. A random one that is ranked
        as well is shown at whichever place comes first; one that is not in the sample has the largest number there is.
        """
        columns = self.columns
        largest = np.iinfo(np.int64).max
        ranked = np.where(columns.kind == RANDOM, largest, columns.class_rank.astype(np.int64) * 2 - 1)
        anywhere = (columns.ids % np.uint64(_EVERY)).astype(np.int64)
        place = 2 * ((columns.random_rank.astype(np.int64) - 1) * _EVERY + anywhere)
        sampled = np.where(columns.random_rank > 0, place, largest)
        return np.minimum(ranked, sampled), sampled

    @cached_property
    def _order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        columns = self.columns
        group = columns.class_number + np.where(columns.kind == WRONG, len(self.classes), 0)
        order = np.lexsort((columns.ids, self.keys[0], group))
        return order, np.searchsorted(group[order], np.arange(2 * len(self.classes) + 1))

    @cached_property
    def _by_image(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        columns = self.columns
        score = np.nan_to_num(columns.score, nan=0.0)
        order = np.lexsort((columns.class_number, -score, columns.image))
        return order, np.searchsorted(columns.image[order], np.arange(len(columns.places) + 1))

    @cached_property
    def _by_id(self) -> NDArray[np.int64]:
        return np.argsort(self.columns.ids)

    @cached_property
    def _images_by_id(self) -> NDArray[np.int64]:
        return np.argsort(self.columns.image_ids)


def _read(path: Path) -> tuple[dict[str, tuple[list[str], NDArray[np.int32]]], dict[str, NDArray[Any]]]:
    """Return the names of a column, each once, with the place of every row among them; and the numbers."""
    try:
        table = pq.read_table(path, columns=[*_NAMES, *_NUMBERS], read_dictionary=list(_NAMES)).unify_dictionaries()
        table = table.combine_chunks()
        names, numbers = {}, {}
        for name in _NAMES:
            column = table[name]
            encoded = column.chunk(0) if column.num_chunks else pa.array([], pa.dictionary(pa.int32(), pa.string()))
            if encoded.null_count:
                raise RunError(f"{path} has an empty cell under {name!r}. Audit the run again.")
            names[name] = (encoded.dictionary.to_pylist(), encoded.indices.to_numpy())
        for name, kind in _NUMBERS.items():
            column = table[name].fill_null(np.nan) if name == "score" else table[name]
            numbers[name] = column.to_numpy().astype(kind)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} is damaged ({error}). Audit the run again.") from None
    numbers["observed"] = as_codes(numbers["observed"], what=f"'observed' of {path}")
    return names, numbers


def _kinds(path: Path, names: list[str], codes: NDArray[np.int32]) -> NDArray[np.int8]:
    strange = next((name for name in names if name not in KINDS), None)
    if strange is not None:
        raise RunError(f"{path} has a candidate of the kind {strange!r}: there is {', '.join(KINDS)}.")
    return np.array([KINDS.index(name) for name in names], dtype=np.int8)[codes]


def _once(
    places: tuple[tuple[str, str], ...],
    image_ids: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    found: dict[str, NDArray[Any]],
) -> CandidateColumns:
    """Keep one row of every label: a label that is ranked may be in the random sample too, and is shown once."""
    random_rank = np.where(found["kind"] == RANDOM, found["class_rank"], 0).astype(np.int32)
    order = np.lexsort((found["kind"], ids))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = ids[order][1:] != ids[order][:-1]
    group = np.cumsum(first) - 1
    sampled = np.zeros(int(first.sum()), dtype=np.int32)
    np.maximum.at(sampled, group, random_rank[order])
    kept = order[first]
    back = np.argsort(kept)  # the order of the file
    chosen = {name: values[kept[back]] for name, values in found.items()}
    return CandidateColumns(places, image_ids, random_rank=sampled[back], ids=ids[kept[back]], **chosen)

"""The candidates of classes that people added: every image that was audited, unknown.

Existing candidates, images and classes keep their numbers; new ones are appended. An added class has no scores: all its
candidates have the same low one, in a random order that depends on the review and the name alone, so that a restart,
or another server, shows the same. As in other classes, a tenth of the candidates is the random draw, in an order of
its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labelgap.core.seeds import numpy_generator
from labelgap.labels.codes import UNKNOWN
from labelgap.review.candidates import MISSING, RANDOM, CandidateColumns, Candidates, combine_hashes, hash_names

FEWEST_EXAMPLES: Final = 5
"""How many images have to be marked before an added class is ranked."""
ADDED_SCORE: Final = 0.02
"""The probability of being present before anybody has decided."""
RANDOM_SHARE: Final = 0.1
MIN_DRAWN: Final = 100
"""The random draw of a class: a share of its candidates, and at least so many."""


@dataclass(frozen=True, eq=False)
class AddedClasses:
    """What is needed for the candidates of added classes.

    Attributes:
        names: in the order in which they were added; the first ones of another one of the same review.
        images: split and name of every image to ask about.
        review: id of the review, which the random orders depend on.
        random: whether the review is of random images: all candidates are the random draw then, and have no score.
    """

    names: tuple[str, ...]
    images: Sequence[tuple[str, str]]
    review: str
    random: bool = False


def extend_candidates(candidates: Candidates, added: AddedClasses) -> Candidates:
    """Return candidates with those of added classes that they do not have yet; the given ones are not changed."""
    names = [name for name in added.names if name not in candidates.classes]
    if not names:
        return candidates
    columns, asked = candidates.columns, list(dict.fromkeys(added.images))
    numbers = {key: number for number, key in enumerate(columns.images)}
    new_images = [key for key in asked if key not in numbers]
    numbers |= {key: number for number, key in enumerate(new_images, len(numbers))}
    new_ids = np.array([hash_names(*key) for key in new_images], dtype=np.uint64)
    image_ids = np.concatenate([columns.image_ids, new_ids])
    orders = [_orders(len(asked), added, name) for name in names]
    image = np.array([numbers[key] for key in asked], dtype=np.int32)[np.concatenate([shown for shown, _ in orders])]
    class_number = np.repeat(np.arange(len(names), dtype=np.int32), len(asked))
    class_ids = np.array([hash_names(name) for name in names], dtype=np.uint64)
    rank = np.arange(1, len(image) + 1, dtype=np.int32)
    new = {
        "image": image,
        "class_number": class_number + np.int32(len(candidates.classes)),
        "score": np.full(len(image), np.nan if added.random else ADDED_SCORE, dtype=np.float32),
        "kind": np.full(len(image), RANDOM if added.random else MISSING, dtype=np.int8),
        "observed": np.full(len(image), UNKNOWN, dtype=np.int8),
        "rank": rank + columns.rank.max(initial=0),
        "class_rank": rank - class_number * np.int32(len(asked)),
        "random_rank": np.concatenate([drawn for _, drawn in orders]),
        "ids": combine_hashes(image_ids[image], class_ids[class_number]),
    }
    joined = {name: np.concatenate([getattr(columns, name), values]) for name, values in new.items()}
    return candidates.with_columns(
        (*candidates.classes, *names), CandidateColumns((*columns.images, *new_images), image_ids, **joined)
    )


def _orders(count: int, added: AddedClasses, name: str) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the images of a class as they are shown first, and the rank of each of these in the random draw."""
    seed = int(added.review, 16)
    shown = numpy_generator(seed, "added class", name).permutation(count)
    if added.random:
        return shown, np.arange(1, count + 1, dtype=np.int32)
    drawn = min(count, max(MIN_DRAWN, round(RANDOM_SHARE * count)))
    rank = np.zeros(count, dtype=np.int32)
    rank[numpy_generator(seed, "draw of added class", name).permutation(count)[:drawn]] = np.arange(1, drawn + 1)
    return shown, rank

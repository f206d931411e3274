"""Which names a new class may have: those that every table of labels can hold, and that nothing else has.

The candidates of classes that people added: every image that was audited, unknown.

Existing candidates, images and classes keep their numbers; new ones are appended. An added class has no scores: all its
candidates have the same low one, in a random order that depends on the review and the name alone, so that a restart,
or another server, shows the same. As in other classes, a tenth of the candidates is the random draw, in an order of
its own.

The classes that people added to a review, as its servers see them.

Which images look like a given one: the nearest in feature space.

Similar images for the page: their features are loaded in the background, so that nothing waits for them.
"""

from __future__ import annotations

import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.live import FeatureScale
from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.seeds import numpy_generator
from labelgap.core.text import truncate_text
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import UNKNOWN
from labelgap.labels.io.cells import CellParser
from labelgap.labels.io.class_names import resolve_class_names
from labelgap.labels.io.header import is_reserved_name
from labelgap.labels.io.table_file import TableOptions
from labelgap.review.candidates import MISSING, RANDOM, CandidateColumns, Candidates, combine_hashes, hash_names
from labelgap.review.database import MAX_CLASSES
from labelgap.review.folder import ReviewFolder, drawn_rows
from labelgap.review.schemas import printable_name
from labelgap.review.store import DecisionStore

MAX_NAME: Final = 80
"""Characters of a name."""
_SEPARATORS: Final = ";,|[]"
"""What tables write between and around the names of a list."""


def check_class_name(name: str, classes: Iterable[str], added: int = 0, taken: Iterable[str] = ()) -> str:
    """Return the name under which a class joins a review: without surplus blanks, composed Unicode.

    Args:
        name: as a person typed it.
        classes: that there are.
        added: how many of them were added.
        taken: other names that the data use; see ``taken_names``.

    Raises:
        InputError: the name cannot be used; the message says why.

    Example:
        >>> check_class_name("  traffic   light ", ["cat", "dog"])
        'traffic light'
    """
    try:
        name = printable_name(unicodedata.normalize("NFC", name))
    except ValueError:
        raise InputError("the name of a class consists of printable characters.") from None
    shown = truncate_text(name)
    if len(name) > MAX_NAME:
        raise InputError(f"the name of a class has at most {MAX_NAME} characters; this one has {len(name):,}.")
    if found := next((mark for mark in _SEPARATORS if mark in name), ""):
        raise InputError(f"'{shown}' has a '{found}', which tables write between names. Leave it out.")
    if is_reserved_name(name) or CellParser().code(name) is not None:
        raise InputError(f"'{shown}' has a meaning of its own in tables of labels. Choose another name.")
    key = folded_name(name)
    for other in classes:
        if folded_name(other) == key:
            raise InputError(f"there is a class '{truncate_text(other)}' already.")
    if key in map(folded_name, taken):
        raise InputError(f"'{shown}' is a name that the data use for something else. Choose another one.")
    if added >= MAX_CLASSES:
        raise InputError(f"{MAX_CLASSES} classes were added already, which is the most. Apply them, and train again.")
    return name


def folded_name(name: str) -> str:
    """Return what two spellings of one name have in common: they differ in case, blanks or Unicode's forms.

    Example:
        >>> folded_name("Straße  7") == folded_name("STRASSE 7")
        True
    """
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def taken_names(data: Dataset) -> set[str]:
    """Return names that the reader of a table takes for something else than a class of that name."""
    if data.recipe.get("name") not in ("csv", "parquet"):
        return set()
    options = TableOptions.of(data.recipe["options"])
    return {*options.ignore_columns, *resolve_class_names(options)}


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


INTERVAL: Final = 0.5
"""Seconds after which another look at the store may be taken."""
MAX_LABELS: Final = 10_000_000
"""Candidates that added classes may have together: a few hundred megabytes."""


class AddedClassNames:
    """The classes that a store has beside those of the data.

    Args:
        folder: of the review.
        store: of the review.
        metadata: of the audit.
        split: the only split that is reviewed, if so.

    Attributes:
        lock: for whoever extends something by them.
    """

    def __init__(
        self, folder: ReviewFolder, store: DecisionStore, metadata: Mapping[str, Any], split: str | None
    ) -> None:
        self._folder, self._store, self._split = folder, store, split
        self._splits = [split] if split else metadata.get("splits")
        self._count, self._asked = 0, -np.inf
        self.lock = threading.RLock()

    def changed(self) -> bool:
        """Return whether there are more classes than ``extend`` has seen; the store is asked every half second."""
        now = time.monotonic()
        if now - self._asked < INTERVAL:
            return False
        self._asked = now
        return len(self._store.classes()) != self._count

    def extend(self, candidates: Candidates) -> Candidates:
        """Return candidates with those of all added classes.

        A review that is only read, and whose data cannot be loaded, stays as it is.
        """
        with self.lock:
            names = [each.name for each in self._store.classes()]
            if names:
                try:
                    candidates = extend_candidates(candidates, self._added(candidates, names))
                except LabelGapError:
                    if not self._store.read_only:
                        raise
            self._count, self._asked = len(names), time.monotonic()
            return candidates

    def add(self, name: str, reviewer: str, candidates: Candidates) -> str:
        """Add a class, and return its name; an ``InputError`` says why that is not possible."""
        with self.lock:
            data: Dataset = self._folder.data
            added = [each.name for each in self._store.classes()]
            name = check_class_name(name, [*data.classes, *added], len(added), taken_names(data))
            images = len(self._images(candidates))
            if (len(added) + 1) * images > MAX_LABELS:
                raise InputError(
                    f"with {images:,} images at most {MAX_LABELS // images:,} classes can be added. Apply the "
                    "decisions, and train again: added classes are as others then."
                )
            self._store.add_class(name, reviewer)
            self._asked = -np.inf
            return name

    def _added(self, candidates: Candidates, names: list[str]) -> AddedClasses:
        """Return what makes candidates of the names; of two spellings of a name only the first counts."""
        known = {folded_name(name) for name in self._folder.classes}
        first = {folded_name(name): name for name in reversed(names) if folded_name(name) not in known}
        kept = tuple(name for name in names if first.get(folded_name(name)) == name)
        return AddedClasses(kept, self._images(candidates), self._store.id, self._folder.random)

    def _images(self, candidates: Candidates) -> list[tuple[str, str]]:
        """Return split and name of every image that was audited, or drawn."""
        data = self._folder.data
        if self._folder.random:
            split = data.split(candidates.columns.images[0][0])
            return [(split.name, split.labels.images[row]) for row in drawn_rows(self._folder).tolist()]
        splits = self._splits or sorted({split for split, _ in candidates.columns.images})
        return [(name, image) for name in splits for image in data.split(name).labels.images]


_BLOCK: Final = 2048
"""Images whose features are read at a time."""


class ImageSimilarity:
    r"""The cosine between the centered features of images.

    .. math:: \cos(i, q) = \frac{(x_i - \mu) \cdot (x_q - \mu)}{\lVert x_i - \mu \rVert\, \lVert x_q - \mu \rVert}

    with the mean :math:`\mu` over all images; 0 where an image has no length. Exact: every image is compared. The
    lengths are computed once, in one pass over the features; a query is one more. Both read blocks of rows, so the
    features may be a memory-mapped file.

    Args:
        scale: the features of all images, and their mean.
    """

    def __init__(self, scale: FeatureScale) -> None:
        self.scale = scale
        lengths = [np.linalg.norm(block - scale.mean, axis=1) for block in self._blocks()]
        self._lengths = np.concatenate(lengths) if lengths else np.empty(0, dtype=np.float32)

    def cosine(self, row: int) -> NDArray[np.float32]:
        """Return ``(N,)`` the cosine of every image with the one of a row, from −1 to 1."""
        mean = self.scale.mean
        query = np.asarray(self.scale.features[row], dtype=np.float32) - mean
        products = np.concatenate([block @ query for block in self._blocks()]) - mean @ query
        scale = self._lengths * self._lengths[row]
        cosine = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
        return np.asarray(np.clip(cosine, -1, 1))

    def nearest(self, row: int) -> NDArray[np.int64]:
        """Return the rows of all other images, the most similar first; of equal ones the first row."""
        order = np.argsort(-self.cosine(row), kind="stable")
        return np.asarray(order[order != row])

    def _blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the features in single precision, in blocks of rows."""
        for start in range(0, len(self.scale.features), _BLOCK):
            yield np.asarray(self.scale.features[start : start + _BLOCK], dtype=np.float32)


PATIENCE: Final = 2.0
"""Seconds that a request waits for features that are being loaded."""


class SimilarImages:
    """The order of images by similarity, once features are there.

    Args:
        load: returns the features of the M images; it is called when they are first needed, in a thread.

    Attributes:
        problem: why there are no features; empty while there are, or may be.
    """

    def __init__(self, load: Callable[[], NDArray[np.float32]]) -> None:
        self.problem = ""
        self._load, self._lock = load, threading.Lock()
        self._loaded = threading.Event()
        self._similarity: ImageSimilarity | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Start to load the features, unless that was done."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="labelgap-similar", daemon=True)
                self._thread.start()

    def positions(self, image: int, patience: float = PATIENCE) -> NDArray[np.int64] | None:
        """Return ``(M,)`` the place of each image by its similarity to one; None before the features are loaded."""
        self.prepare()
        self._loaded.wait(patience)
        if self._similarity is None:
            return None
        order = np.concatenate([[image], self._similarity.nearest(image)])
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        return places

    def _run(self) -> None:
        try:
            self._similarity = ImageSimilarity(FeatureScale.of(self._load()))
        except (LabelGapError, OSError, RuntimeError, ImportError) as error:
            self.problem = str(error)
        self._loaded.set()

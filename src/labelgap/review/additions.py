"""What people add to a review: classes, with candidates and images that look alike, and photos.

The candidates of an added class are all audited images, in a random order that depends on the review and the name
alone.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.audit.adding import NOTHING, check_run
from labelgap.audit.candidates import FILE as CANDIDATES
from labelgap.audit.candidates import read_metadata
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.seeds import numpy_generator
from labelgap.core.text import fold_name, truncate_text
from labelgap.data.dataset import Dataset
from labelgap.labels.codes import UNKNOWN
from labelgap.labels.io.classes import resolve_class_names
from labelgap.labels.io.layout import CellParser
from labelgap.labels.io.parse import is_reserved_name
from labelgap.labels.io.table_file import TableOptions
from labelgap.review.candidates import MISSING, RANDOM, CandidateColumns, Candidates, combine_hashes, hash_names
from labelgap.review.database import MAX_CLASSES
from labelgap.review.folder import ReviewFolder, drawn_rows
from labelgap.review.store import DecisionStore

# zero-width joiners: not printable, but required to spell names in Persian and many scripts of India
_JOINERS: Final = str.maketrans("", "", "\u200c\u200d")
MAX_NAME: Final = 80  # characters of a name
_SEPARATORS: Final = ";,|[]"  # what tables write between and around the names of a list
FEWEST_EXAMPLES: Final = 5  # how many images have to be marked before an added class is ranked
ADDED_SCORE: Final = 0.02  # the probability of being present before anybody has decided
# The random draw of a class: a share of its candidates, and at least so many.
RANDOM_SHARE: Final = 0.1
MIN_DRAWN: Final = 100
INTERVAL: Final = 0.5  # seconds after which another look at the store may be taken
MAX_LABELS: Final = 10_000_000  # candidates that added classes may have together: a few hundred megabytes
PATIENCE: Final = 2.0  # seconds that a request waits for features that are being loaded


def printable_name(text: str) -> str:
    """Return a name with single blanks; a ``ValueError`` where it has other than printable characters, or none."""
    text = " ".join(text.split())
    visible = text.translate(_JOINERS)
    if not fold_name(text) or not visible.isprintable():
        raise ValueError("a name consists of printable characters")
    return text


def check_class_name(name: str, classes: Iterable[str], added: int = 0, taken: Iterable[str] = ()) -> str:
    """Return the name under which a class joins a review; an ``InputError`` says why it cannot, or is taken."""
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
    key = fold_name(name)
    for other in classes:
        if fold_name(other) == key:
            raise InputError(f"there is a class '{truncate_text(other)}' already.")
    if key in map(fold_name, taken):
        raise InputError(f"'{shown}' is a name that the data use for something else. Choose another one.")
    if added >= MAX_CLASSES:
        raise InputError(f"{MAX_CLASSES} classes were added already, which is the most. Apply them, and train again.")
    return name


def taken_names(data: Dataset) -> set[str]:
    """Return names that the reader of a table takes for something else than a class of that name."""
    if data.recipe.get("name") not in ("csv", "parquet"):
        return set()
    options = TableOptions.of(data.recipe["options"])
    return {*options.ignore_columns, *resolve_class_names(options)}


def extend_candidates(
    candidates: Candidates, names: Sequence[str], images: Sequence[tuple[str, str]], review: str, random: bool = False
) -> Candidates:
    """Return candidates with those of added classes, for all ``images``, in random orders by the id of the review."""
    names = [name for name in names if name not in candidates.classes]
    if not names:
        return candidates
    columns, asked = candidates.columns, list(dict.fromkeys(images))
    numbers = {key: number for number, key in enumerate(columns.images)}
    new_images = [key for key in asked if key not in numbers]
    numbers |= {key: number for number, key in enumerate(new_images, len(numbers))}
    new_ids = np.array([hash_names(*key) for key in new_images], dtype=np.uint64)
    image_ids = np.concatenate([columns.image_ids, new_ids])
    orders = [_orders(len(asked), int(review, 16), name, random) for name in names]
    image = np.array([numbers[key] for key in asked], dtype=np.int32)[np.concatenate([shown for shown, _ in orders])]
    class_number = np.repeat(np.arange(len(names), dtype=np.int32), len(asked))
    class_ids = np.array([hash_names(name) for name in names], dtype=np.uint64)
    rank, size = np.arange(1, len(image) + 1, dtype=np.int32), len(image)
    new = {
        "image": image,
        "class_number": class_number + np.int32(len(candidates.classes)),
        "score": np.full(size, np.nan if random else ADDED_SCORE, dtype=np.float32),
        "kind": np.full(size, RANDOM if random else MISSING, dtype=np.int8),
        "observed": np.full(size, UNKNOWN, dtype=np.int8),
        "rank": rank + columns.rank.max(initial=0),
        "class_rank": rank - class_number * np.int32(len(asked)),
        "random_rank": np.concatenate([drawn for _, drawn in orders]),
        "ids": combine_hashes(image_ids[image], class_ids[class_number]),
    }
    joined = {name: np.concatenate([getattr(columns, name), values]) for name, values in new.items()}
    extended = Candidates(candidates.path, (*candidates.classes, *names), candidates.split)
    extended.columns = CandidateColumns((*columns.images, *new_images), image_ids, **joined)
    return extended


def _orders(count: int, seed: int, name: str, random: bool) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the images of a class as they are shown first, and the rank of each of these in the random draw."""
    shown = numpy_generator(seed, "added class", name).permutation(count)
    if random:
        return shown, np.arange(1, count + 1, dtype=np.int32)
    drawn = min(count, max(MIN_DRAWN, round(RANDOM_SHARE * count)))
    rank = np.zeros(count, dtype=np.int32)
    rank[numpy_generator(seed, "draw of added class", name).permutation(count)[:drawn]] = np.arange(1, drawn + 1)
    return shown, rank


class AddedClassNames:
    """The classes that a store has beside those of the data; who extends something by them takes ``lock``."""

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
        """Return candidates with those of all added classes, if the data of one that is only read can be loaded."""
        with self.lock:
            names = self._store.classes()
            ignored = (LabelGapError,) if self._store.read_only else ()
            with suppress(*ignored):
                candidates = self._extend(candidates, names)
            self._count, self._asked = len(names), time.monotonic()
            return candidates

    def add(self, name: str, reviewer: str, candidates: Candidates) -> str:
        """Add a class, and return its name; an ``InputError`` says why that is not possible."""
        with self.lock:
            data: Dataset = self._folder.data
            added = self._store.classes()
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

    def _extend(self, candidates: Candidates, names: list[str]) -> Candidates:
        """Return candidates with those of the names; of two spellings of a name only the first counts."""
        first = {fold_name(name): name for name in reversed([*self._folder.classes, *names])}
        kept = [name for name in names if first[fold_name(name)] == name and name not in self._folder.classes]
        images = self._images(candidates) if kept else []
        return extend_candidates(candidates, kept, images, self._store.id, self._folder.random)

    def _images(self, candidates: Candidates) -> list[tuple[str, str]]:
        data = self._folder.data
        if self._folder.random:
            split = data.split(candidates.columns.images[0][0])
            return [(split.name, split.labels.images[row]) for row in drawn_rows(self._folder).tolist()]
        splits = self._splits or sorted({split for split, _ in candidates.columns.images})
        return [(name, image) for name in splits for image in data.split(name).labels.images]


def center_features(features: NDArray[np.float32]) -> NDArray[np.float32]:
    r"""Center features in place and give each row length 1, so that the product of two rows is their cosine.

    .. math:: \cos(i, q) = \frac{(x_i - \mu) \cdot (x_q - \mu)}{\lVert x_i - \mu \rVert\, \lVert x_q - \mu \rVert}

    with the mean :math:`\mu` over all images; 0 where an image has no length.
    """
    features -= features.mean(axis=0, dtype=np.float64).astype(np.float32)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    features /= np.where(lengths > 0, lengths, 1)
    return features


class SimilarImages:
    """The M images by similarity; features are loaded in a thread when needed. ``problem``: why there are none."""

    def __init__(self, load: Callable[[], NDArray[np.float32]]) -> None:
        self.problem = ""
        self._load, self._lock = load, threading.Lock()
        self._loaded = threading.Event()
        self._features: NDArray[np.float32] | None = None
        self._started = False

    def prepare(self) -> None:
        """Start to load the features, unless that was done."""
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="labelgap-similar", daemon=True).start()

    def positions(self, image: int, patience: float = PATIENCE) -> NDArray[np.int64] | None:
        """Return ``(M,)`` the place of each image by its similarity to one; None before the features are loaded."""
        self.prepare()
        self._loaded.wait(patience)
        if self._features is None:
            return None
        distance = -(self._features @ self._features[image])
        distance[image] = -np.inf
        return np.argsort(np.argsort(distance, kind="stable"))

    def _run(self) -> None:
        try:
            self._features = center_features(self._load())
        except (LabelGapError, OSError, RuntimeError, ImportError) as error:
            self.problem = str(error)
        self._loaded.set()


_ERROR: Final = "labelgap: "  # the beginning of the message of a command that fails


class NewPhotos:
    """The command that adds photos, for the run of a folder; ``on_added`` is called when it has succeeded.

    The page can name any file of this machine, so only a server that no other machine reaches offers it. Then the
    server starts again at the same address, with the new photos.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.added = folder.absolute(), False
        self.is_running = False  # also while the server is about to start again
        self.on_added: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._text = ""

    @staticmethod
    def are_possible(folder: ReviewFolder) -> bool:
        """Return whether photos can be added to what a folder holds: a linear run on a table, audited by itself."""
        if folder.run is None or folder.source is not None:
            return False
        try:
            check_run(folder.run)
            # an audit with zero-shot scores is not made again by the command
            return read_metadata(folder.path / CANDIDATES)["zero_shot"] is None
        except RunError:
            return False

    def start(self, place: str) -> bool:
        """Start to add the photos of a table or folder; return False where the command is running already."""
        with self._lock:
            if self.is_running:
                return False
            words = [sys.executable, "-m", "labelgap", "train", str(self.folder), f"--add={place}"]
            self._text, silent = "", subprocess.DEVNULL
            process = subprocess.Popen(
                words, stdin=silent, stdout=silent, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
            )
            self.is_running = True
        threading.Thread(target=self._follow, args=(process,), daemon=True).start()
        return True

    @property
    def origin(self) -> str:
        """The folder from which a relative path is understood."""
        return str(Path.cwd())

    def state(self) -> dict[str, str | bool]:
        """Return whether the command is running, and its last line; the whole error of one that has failed."""
        running, text = self.is_running, self._text.strip()
        error = text.rfind(f"\n{_ERROR}") + 1 or (0 if text.startswith(_ERROR) else max(len(text) - 2000, 0))
        return {"running": running, "text": text.rpartition("\n")[2] if running else text[error:]}

    def _follow(self, process: subprocess.Popen[str]) -> None:
        with process:
            for line in process.stderr or ():
                self._text += line
        self.added = process.returncode == 0 and NOTHING not in self._text
        if self.added:
            self.on_added()
        self.is_running = self.added

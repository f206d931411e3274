"""The label table: for every image and class, present, absent or unknown; memory grows with the known labels alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from labelgap.core.errors import InputError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, as_codes
from labelgap.labels.masking import Amount, check_draw, drop_mask, observe_mask
from labelgap.labels.revisions import Revisions
from labelgap.labels.sparse import (
    KnownLabels,
    SoftLabels,
    as_indices,
    as_row_indices,
    check_size,
    compress_labels,
    entries_of_rows,
    flat_names,
    label_places,
    label_width,
    locate_entries,
    starts_from_lengths,
    unique_names,
)

if TYPE_CHECKING:
    from torch import Tensor


class FileFormat(NamedTuple):
    """How a table is read from a file and written to one."""

    read: Callable[..., LabelTable]
    write: Callable[..., None]


FILE_FORMATS: Final[dict[str, FileFormat]] = {}
"""What ``from_csv``, ``to_parquet`` and so on use; ``labelgap.labels.io``, one level up, registers its formats here."""


class LabelTable(KnownLabels):
    """Labels of N images and K classes in three states: sparse, immutable.

    Create one with ``from_dense``, ``from_lists``, ``from_csv`` or ``from_parquet``. ``soft`` is what a loss is told of
    unknown labels beside, if anything: ``with_soft`` adds it, and ``select`` alone keeps it.
    """

    __slots__ = ()

    @classmethod
    def from_entries(
        cls,
        rows: ArrayLike,
        columns: ArrayLike,
        values: ArrayLike,
        classes: Sequence[str],
        images: Sequence[str] | int,
    ) -> LabelTable:
        """Create a table of N named images, or just N, from its known labels (row, class number, value), in any order.

        Unknown values are not stored.
        """
        classes = unique_names(classes, "class")
        count = int(images) if isinstance(images, int | np.integer) else len(images)
        row = as_indices(rows, "row", count)
        column = as_indices(columns, "class number", len(classes))
        value = as_codes(np.asarray(values).ravel())
        if not len(row) == len(column) == len(value):
            raise InputError(f"{len(row)} rows, {len(column)} class numbers and {len(value)} values: one each a label.")
        if not (known := value != UNKNOWN).all():
            row, column, value = row[known], column[known], value[known]
        lengths = np.bincount(row, minlength=count)
        compressed = compress_labels(row * label_width(classes) + 2 * column + (value == PRESENT), classes)
        named = None if isinstance(images, int | np.integer) else images
        return cls(starts_from_lengths(lengths), *compressed, classes, named)

    @classmethod
    def from_dense(
        cls, labels: ArrayLike | Tensor, classes: Sequence[str] | None = None, images: Sequence[str] | None = None
    ) -> LabelTable:
        """Create a table from an (N, K) array of 1 / 0 / −1, booleans, or 1 / 0 / NaN.

        Example:
            >>> table = LabelTable.from_dense([[1, 0, -1], [-1, -1, 1]], classes=["cat", "dog", "owl"])
            >>> table
            LabelTable(2 images, 3 classes: 2 present, 1 absent, 3 unknown)
        """
        codes = as_codes(labels)
        if codes.ndim != 2:
            raise InputError(f"labels must be a matrix, a row per image and a column per class, not {codes.shape}.")
        if classes is None:
            classes = [str(number) for number in range(codes.shape[1])]
        if len(classes) != codes.shape[1]:
            raise InputError(f"{len(classes)} class names were given for {codes.shape[1]} columns of labels.")
        rows, columns = np.nonzero(codes != UNKNOWN)
        starts = starts_from_lengths(np.bincount(rows, minlength=len(codes)))
        return cls(starts, columns.astype(np.int32), codes[rows, columns], classes, images)

    @classmethod
    def from_lists(
        cls,
        present: Sequence[Iterable[str]],
        absent: Sequence[Iterable[str]] | None = None,
        *,
        classes: Sequence[str] | None = None,
        images: Sequence[str] | None = None,
        unlisted: str = "unknown",
    ) -> LabelTable:
        """Create a table from the names of each image's present (and absent) classes.

        Args:
            present: the present classes of every image.
            absent: the known absent classes of every image.
            classes: all names in order; those that occur, sorted, when None.
            images: names of the images.
            unlisted: what a class in neither list is: "unknown" or "absent".

        Example:
            >>> LabelTable.from_lists([["cat"], ["owl", "cat"]], [["dog"], []]).to_dense()
            array([[ 1,  0, -1],
                   [ 1, -1,  1]], dtype=int8)
        """
        if unlisted not in ("unknown", "absent"):
            raise InputError(f"unlisted={unlisted!r}: a class that is not listed is 'unknown' or 'absent'.")
        lengths, names = flat_names(present)
        absent_lengths, absent_names = flat_names(absent) if absent is not None else (np.zeros_like(lengths), [])
        if len(absent_lengths) != len(lengths):
            raise InputError(f"present lists {len(lengths)} images, absent {len(absent_lengths)}: one entry for each.")
        if images is not None and len(images) != len(lengths):
            raise InputError(f"{len(images)} image names were given for {len(lengths)} rows of labels.")
        classes = sorted({*names, *absent_names}) if classes is None else unique_names(classes, "class")
        places = label_places(lengths, names, classes), label_places(absent_lengths, absent_names, classes)
        if len(both := np.intersect1d(*places, assume_unique=True)):
            row, column = divmod(int(both[0]), len(classes))
            image = images[row] if images is not None else row
            raise InputError(f"image {image} lists '{classes[column]}' as present and as absent.")
        rows, columns = np.divmod(np.concatenate(places), max(len(classes), 1))
        values = np.repeat(np.array([PRESENT, ABSENT], dtype=np.int8), [len(places[0]), len(places[1])])
        table = cls.from_entries(rows, columns, values, classes, len(lengths) if images is None else images)
        return table.with_unknown_absent() if unlisted == "absent" else table

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], *, zeros: str = "absent", unlisted: str = "unknown") -> LabelTable:
        """Read a CSV, wide (``image,[split],class…``) or lists (``image,[split],present,[absent]`` with ``;``)."""
        return FILE_FORMATS["csv"].read(Path(path), zeros=zeros, unlisted=unlisted)

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> LabelTable:
        """Read what ``to_parquet`` wrote."""
        return FILE_FORMATS["parquet"].read(Path(path))

    def to_csv(self, path: str | os.PathLike[str], splits: Sequence[str] | None = None) -> None:
        """Write a wide CSV atomically: 1, 0, and blank for unknown.

        A name that would be read back as another (class ``split``, blanks around it) is refused; use Parquet for it.
        """
        FILE_FORMATS["csv"].write(self, Path(path), splits)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write one row per image with the lists of present and absent classes, atomically."""
        FILE_FORMATS["parquet"].write(self, Path(path))

    def select(self, rows: ArrayLike) -> LabelTable:
        """Return the table of some rows, in the order given."""
        index = as_row_indices(rows, len(self))
        entries, lengths, _ = entries_of_rows(self.starts, index)
        images = [self.images[row] for row in index.tolist()]
        soft = None if self.soft is None else SoftLabels(*(each[index] for each in self.soft))
        return LabelTable(
            starts_from_lengths(lengths), self.columns[entries], self.values[entries], self.classes, images, soft
        )

    def with_soft(self, soft: SoftLabels | None) -> LabelTable:
        """Return the table with soft labels, or without."""
        return LabelTable(self.starts, self.columns, self.values, self.classes, self.images, soft)

    def keep(self, mask: NDArray[np.bool_]) -> LabelTable:
        """Return the table with those known labels that a mask over ``values`` selects; the rest is unknown."""
        starts = starts_from_lengths(mask)[self.starts]
        return LabelTable(starts, self.columns[mask], self.values[mask], self.classes, self.images)

    def with_classes(self, classes: Sequence[str]) -> LabelTable:
        """Return the table with other classes, matched by name: those that it lacks are unknown, others are left out.

        Example:
            >>> LabelTable.from_dense([[1, 0]], classes=["owl", "cat"]).with_classes(["cat", "dog"]).to_dense()
            array([[ 0, -1]], dtype=int8)
        """
        place = {name: column for column, name in enumerate(classes)}
        target = np.array([place.get(name, -1) for name in self.classes], dtype=np.int64)[self.columns]
        kept = target >= 0
        return LabelTable.from_entries(self.rows[kept], target[kept], self.values[kept], classes, self.images)

    def with_unknown_absent(self) -> LabelTable:
        """Return the table in which every unknown label is absent."""
        images, classes = self.shape
        check_size(images, classes)
        codes = self.to_dense().ravel()
        codes[codes == UNKNOWN] = ABSENT
        columns = np.tile(np.arange(classes, dtype=np.int32), images)
        return LabelTable(np.arange(images + 1) * classes, columns, codes, self.classes, self.images)

    @classmethod
    def concatenate(cls, tables: Sequence[LabelTable], *, keep_names: bool = True) -> LabelTable:
        """Stack tables of the same classes; without their images' names, which may repeat, rows are numbered."""
        if len({table.classes for table in tables}) != 1:
            raise InputError("only tables of the same classes, in the same order, can be concatenated; at least one.")
        starts = starts_from_lengths(np.concatenate([np.diff(table.starts) for table in tables]))
        columns = np.concatenate([table.columns for table in tables])
        values = np.concatenate([table.values for table in tables])
        images = [name for table in tables for name in table.images] if keep_names else None
        return cls(starts, columns, values, tables[0].classes, images)

    def observe(
        self,
        positives: Amount | str = 1,
        negatives: Amount = 0,
        seed: int = 1200,
        *,
        sizes: ArrayLike | None = None,
        **options: float,
    ) -> LabelTable:
        """Keep some positives and negatives of every image, as the papers draw them, or as people do; hide the rest.

        See ``labelgap.labels.masking.observe_mask`` and ``labelgap.labels.masking``; what is unknown stays unknown.

        Args:
            positives: how many of every image, "all", or a rule: "random", "rare-overlooked", "small-overlooked",
                "salient" or "annotators"; or "labels", a share of all, absent ones included, as ``drop`` draws them.
            negatives: how many of every image, or "all"; of those that a rule leaves.
            seed: the seed of the draw.
            sizes: the size of the object of every known label, in the order of ``values``; some rules need it.
            **options: of the rule, e.g. ``share=0.3``.

        Example:
            >>> LabelTable.from_dense([[1, 1, 0], [0, 1, 0]]).observe(positives=1, negatives=0).to_dense()
            array([[ 1, -1, -1],
                   [-1,  1, -1]], dtype=int8)
            >>> LabelTable.from_dense([[1, 1, 0], [0, 1, 0]]).observe("salient", sizes=[5, 7, 0, 0, 9, 0]).to_dense()
            array([[-1,  1, -1],
                   [-1,  1, -1]], dtype=int8)
        """
        if (gap := check_draw(positives, options, negatives)) is not None:
            left = "all" if gap.draws_absents else negatives
            return self.keep(gap.mask(self, seed, sizes)).observe("all", left, seed)
        return self.keep(observe_mask(self.starts, self.values, positives, negatives, seed))

    def drop(self, fraction: float, seed: int = 0, *, per_class: bool = False) -> LabelTable:
        """Hide a fraction of the known labels at random, of each class alike when ``per_class``.

        See ``labelgap.labels.masking.drop_mask``.

        Example:
            >>> LabelTable.from_dense([[1, 0, 0, 1], [0, 1, -1, 1]]).drop(0.7)
            LabelTable(2 images, 4 classes: 1 present, 1 absent, 6 unknown)
        """
        return self.keep(drop_mask(self.columns, fraction, seed, per_class=per_class))

    def revised(self, revisions: Revisions, sources: Iterable[str] | None = None) -> LabelTable:
        """Return a new table with the hard revisions applied, in their order.

        Only those of ``sources`` where they are given.

        A person's decision replaces anything; the last one counts. A model's revision fills only what is unknown, the
        last one again. Soft targets are not labels and are skipped.
        """
        rows, columns, values, by_person = revisions.resolve(self, sources)
        entries, known = locate_entries(self.starts, self.columns, rows, columns, len(self.classes))
        labels, new = self.values.copy(), ~known
        labels[entries[known & by_person]] = values[known & by_person]
        labels = np.insert(labels, entries[new], values[new])
        starts = self.starts + starts_from_lengths(np.bincount(rows[new], minlength=len(self)))
        all_columns = np.insert(self.columns, entries[new], columns[new])
        table = LabelTable(starts, all_columns, labels, self.classes, self.images)
        return table.keep(labels != UNKNOWN) if (labels == UNKNOWN).any() else table

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelTable):
            return NotImplemented
        arrays = ("starts", "columns", "values")
        same = self.classes == other.classes and self.images == other.images
        if self.soft is not other.soft:
            same = same and self.soft is not None and other.soft is not None
            same = same and all(map(np.array_equal, self.soft or (), other.soft or ()))
        return same and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[LabelTable], tuple[object, ...]]:
        return LabelTable, (self.starts, self.columns, self.values, self.classes, self.images, self.soft)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the labels are stored sparsely: an array of them is a copy.")
        return self.to_dense().astype(dtype or np.int8, copy=False)

    def __repr__(self) -> str:
        present, absent, unknown = self.counts().total
        return (
            f"LabelTable({len(self):,} images, {len(self.classes):,} classes: "
            f"{present:,} present, {absent:,} absent, {unknown:,} unknown)"
        )


GROUPS: Final = 5
MIN_CLASSES: Final = 25  # fewer classes are not grouped: a mean over fewer than five says little


def class_groups(labels: LabelTable) -> list[NDArray[np.int64]]:
    """Return the classes in five groups of equal size, by the number of known training labels, the fewest first."""
    counts = labels.counts()
    return np.array_split(np.argsort(counts.present + counts.absent, kind="stable"), GROUPS)


def group_numbers(labels: LabelTable) -> list[int] | None:
    """Return the group of every class, 1 to 5; None where every label is known, or there are few classes."""
    if labels.complete or len(labels.classes) < MIN_CLASSES:
        return None
    numbers = np.zeros(len(labels.classes), dtype=np.int64)
    for number, group in enumerate(class_groups(labels), 1):
        numbers[group] = number
    return numbers.tolist()

"""Your own photos and tags: a CSV of labels and a folder of images.

``labelgap.labels`` parses the text; ``labelgap.data.readers.image_table`` finds the images and splits them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from labelgap.data.dataset import Dataset
from labelgap.data.readers.image_table import ImageOptions, read_image_table
from labelgap.labels.io.csv import read_csv
from labelgap.labels.io.table_file import TableOptions


def load_csv(
    path: str | os.PathLike[str],
    images: str | os.PathLike[str] | None = None,
    *,
    val: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    zeros: str = "absent",
    unlisted: str = "unknown",
    delimiter: str | None = None,
    encoding: str | None = None,
    separator: str | None = None,
    classes: Sequence[str] | None = None,
    ignore_columns: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    aliases: str | os.PathLike[str] | None = None,
    parents: str | os.PathLike[str] | None = None,
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
    seed: int = 0,
) -> Dataset:
    """Read a CSV of labels and find its images, or raise one error with everything that is wrong.

    Without a ``split`` column all images are train, and a linear head is cross-validated over them; where a network is
    trained, a tenth of train is held out as val, by a hash of the images' names. Copies of an image, and images of one
    ``group``, stay together.

    Args:
        path: wide (``image,[split],class…``) or lists (``image,[split],present,[absent]``).
        images: the folder that the names under ``image`` are relative to; the CSV's own folder when not given.
        val: a table of val images, in the same layout; its classes are matched by name.
        test: a table of test images.
        zeros: what a 0 in a wide table means: "absent", or "unknown" where it only means that nobody tagged it.
        unlisted: the state of a class in neither list of a lists table: "unknown" or "absent".
        delimiter: between cells; like the next two detected, and reported in ``findings``, when not given.
        encoding: of the text.
        separator: between the tags of a list.
        classes: the tags to use, in this order; other columns are left out.
        ignore_columns: columns that are not tags.
        rename: old name → new name, of tags (two that get one name become one) and of columns (``{"file": "image"}``).
        aliases: a CSV of two columns, synonym and tag.
        parents: a CSV of two columns, child and parent: where a child is present its parent is, as revisions.
        on_bad_image: "error" names all images that cannot be read, "skip" leaves them out.
        duplicates: which copies of images are searched for: "near", "exact" or "off".
        allow_leaks: whether copies of an image may be in two splits; an error otherwise where the file has such splits.
        seed: of the val that is held out where a network is trained.
    """
    options = TableOptions(zeros, unlisted, separator, classes, ignore_columns, rename or {}, aliases, parents)
    return read_image_table(
        path,
        images,
        lambda file, finder: read_csv(file, options, encoding=encoding, delimiter=delimiter, check_image=finder),
        ImageOptions(on_bad_image, duplicates, allow_leaks),
        {"val": val, "test": test},
    )

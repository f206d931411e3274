"""Images as they are typed after a command: files, folders, patterns, and lists in a text file."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError
from labelgap.data.images import FileImages
from labelgap.data.readers.coco import find_coco
from labelgap.data.readers.image_paths import is_image_name, refuse_url
from labelgap.data.readers.voc import find_voc

__all__ = ["find_images", "is_dataset_argument"]

_LISTS: Final = (".txt", ".lst", ".list")
_TABLES: Final = (".csv", ".tsv", ".parquet", ".npz", ".json")


def is_dataset_argument(text: str) -> bool:
    """Whether DATA was typed, which has labels or features, rather than images.

    A table, ``name=path``, a known folder of VOC or COCO, or a name. Any other folder is one of images, whatever its
    folders are called; ``folder=photos`` reads it as a folder per tag.

    Example:
        >>> [is_dataset_argument(text) for text in ("tags.csv", "folder=photos", "photos/*.jpg", "digits")]
        [True, True, False, True]
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return any(find_voc(path, year) for year in ("2012", "2007")) or any(
            find_coco(path, year) for year in ("2014", "2017")
        )
    if path.suffix.lower() in _TABLES:
        return True
    if path.exists() or glob.has_magic(text):
        return False
    return "=" in text or (path.name == text and not path.suffix)


def find_images(texts: Sequence[str], folder: str | os.PathLike[str] | None = None) -> FileImages:
    """Find the images that were typed, in the order typed; the files of a folder or a pattern are sorted.

    Args:
        texts: image files; folders, of which every image is taken, also from the folders in them; patterns
            (``photos/**/*.jpg``); text files (.txt, .lst) with a path per line.
        folder: where the paths in text files start; this one when not given.

    Returns:
        The images, each once. Their names are the paths as they were found. A file of a list need not exist: it is one
        that cannot be read.
    """
    found = dict.fromkeys(name for text in texts for name in _found(text, folder))
    if not found:
        raise InputError(f"there is no image in {', '.join(texts)}: files ending in .jpg, .png, .webp and the like.")
    names = tuple(found)
    if all(_plain(name) for name in names):
        return FileImages(".", names)
    files = [os.path.abspath(name) for name in names]  # noqa: PTH100 - many, and no links to follow
    return FileImages(Path(files[0]).anchor, names, files)


def _found(text: str, folder: str | os.PathLike[str] | None) -> Iterable[str]:
    refuse_url(text, "images")
    path = Path(text).expanduser()
    if path.is_dir():
        return _below(path)
    if path.suffix.lower() in _LISTS and path.is_file():
        return _listed(path, folder)
    if path.exists():
        if not is_image_name(path.name):
            raise InputError(f"{path} is no image by its name; a list of paths is a text file ending in .txt.")
        return [str(path)]
    if glob.has_magic(text):
        return _matching(str(path))
    raise InputError(f"{path} does not exist.")


def _below(folder: Path) -> Iterator[str]:
    """Yield every image below a folder, sorted; hidden ones are left out."""
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(filter(is_image_name, files)):
            yield str(Path(top) / name)


def _matching(pattern: str) -> Iterator[str]:
    """Yield the images that a pattern matches, and those below the folders that it matches."""
    for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - patterns may start anywhere
        path = Path(match)
        if path.is_dir():
            if not pattern.endswith("**"):
                yield from _below(path)
        elif is_image_name(path.name):
            yield str(path)


def _listed(path: Path, folder: str | os.PathLike[str] | None) -> Iterator[str]:
    """Yield the paths of a text file; blank lines are left out."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in file:
                if name := line.strip():
                    refuse_url(name, "images")
                    yield os.path.normpath(name if folder is None else Path(folder) / name)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8 ({error.reason}): a path per line.") from None


def _plain(name: str) -> bool:
    """Whether a name leads to a place below this folder, by its text alone."""
    return not os.path.isabs(name) and os.pardir not in Path(name).parts  # noqa: PTH117 - many

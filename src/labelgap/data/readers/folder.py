"""Photos sorted into folders, one folder per tag, below train, val and test or not.

A photo in several folders, under one name and with the same bytes, is one image with several tags.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from labelgap.core.errors import InputError, suggest_path
from labelgap.core.files import file_digest
from labelgap.core.findings import Note
from labelgap.data.dataset import Dataset
from labelgap.data.readers.common import FileProblems
from labelgap.data.readers.image_paths import is_image_name, refuse_url
from labelgap.data.readers.table import ImageOptions, build_dataset
from labelgap.labels import LabelTable
from labelgap.labels.io.classes import similar_class_names
from labelgap.labels.io.parse import image_name_problem
from labelgap.labels.io.table_file import SPLIT_NAMES, TableFile

_SUFFIXES_SHOWN: Final = 3


@dataclass
class _FolderImage:
    """One image: where its first copy lies, its split, and the tags of all its copies."""

    file: str
    split: str | None
    tags: list[str] = field(default_factory=list)


def load_folder(
    path: str | os.PathLike[str],
    *,
    unlisted: str = "unknown",
    on_bad_image: str = "error",
    duplicates: str = "near",
    allow_leaks: bool = False,
    seed: int = 0,
) -> Dataset:
    """Read photos that are sorted into folders.

    Args:
        path: ``path/TAG/photo.jpg``, or ``path/SPLIT/TAG/photo.jpg`` with train, val (or valid, validation) and test.
            Folders inside a tag's folder belong to the tag. The name of an image is the path of its first copy.
        unlisted: the state of the tags in whose folder a photo is not: "unknown" or "absent".
        on_bad_image: "error" names all images that cannot be read, "skip" leaves them out.
        duplicates: which copies under other names are searched for: "near", "exact" or "off".
        allow_leaks: whether copies of an image may be in two splits.
        seed: the seed of the val that is held out where a network is trained.
    """
    refuse_url(path, "photos")
    root = Path(path)
    if not root.is_dir():
        raise InputError(
            f"{root} is not a folder, or does not exist: it holds a folder of photos per tag.{suggest_path(root)}"
        )
    options = ImageOptions(on_bad_image, duplicates, allow_leaks)
    folders = _tag_folders(root)
    others: Counter[str] = Counter()
    found = _find_images(root, folders, others)
    tags = sorted({tag for _, tag, _ in folders if tag is not None})
    if not tags or not any(image.tags for image in found):
        raise InputError(f"{root}: no folder in it holds images; each tag needs a folder with photos, e.g. {root}/dog.")
    images = [image.file for image in found]
    problems = FileProblems(root)
    for name in images:
        if (problem := image_name_problem(name)) is not None:
            problems.add(root, problem)
    problems.refuse()
    table = LabelTable.from_lists([image.tags for image in found], classes=tags, images=images, unlisted=unlisted)
    splits = None if found[0].split is None else tuple(str(image.split) for image in found)
    findings = (*_findings(found, splits is not None, unlisted, others), *similar_class_names(table))
    file = TableFile(root, table, splits, None, np.arange(len(images)), findings, unit="")
    return build_dataset(file, root, {}, {}, options, [])


def is_tag_folder(path: Path) -> bool:
    """Return whether a folder holds at least two folders with images, or train with them, and no table beside them."""
    if not path.is_dir() or any(child.suffix.lower() in (".csv", ".parquet") for child in path.iterdir()):
        return False
    folders = [folder for _, tag, folder in _tag_folders(path) if tag is not None]
    return sum(any(_images(folder, deep=True, others=Counter())) for folder in folders) > 1


def _tag_folders(root: Path) -> list[tuple[str | None, str | None, Path]]:
    """Return (split, tag, folder) of every tag's folder, and with tag None of the folders they lie in."""
    folders = _folders(root)
    if folders and all(folder.name.lower() in SPLIT_NAMES for folder in folders):
        found: list[tuple[str | None, str | None, Path]] = []
        for folder in folders:
            split = SPLIT_NAMES[folder.name.lower()]
            found += [(split, None, folder), *((split, tag.name, tag) for tag in _folders(folder))]
        return found
    return [(None, None, root), *((None, folder.name, folder) for folder in folders)]


def _find_images(
    root: Path, folders: list[tuple[str | None, str | None, Path]], others: Counter[str]
) -> list[_FolderImage]:
    """Find all images; copies under one name, in one split and with the same bytes are one image."""
    firsts: dict[tuple[str | None, str, int | None], tuple[Path, _FolderImage]] = {}
    contents: dict[tuple[str | None, str, int | None], dict[bytes | None, _FolderImage]] = {}
    found: list[_FolderImage] = []
    for split, tag, folder in folders:
        for file in _images(folder, deep=tag is not None, others=others):
            image = _FolderImage(file.relative_to(root).as_posix(), split)
            key = (split, file.name, file.stat().st_size if file.exists() else None)  # a link may be broken
            first, first_image = firsts.setdefault(key, (file, image))
            if first is not file:
                if key not in contents:
                    contents[key] = {_digest(first): first_image}
                digest = _digest(file)
                image = image if digest is None else contents[key].setdefault(digest, image)
            if image.file == file.relative_to(root).as_posix():
                found.append(image)
            if tag is not None:
                image.tags.append(tag)
    return found


def _digest(file: Path) -> bytes | None:
    try:
        return file_digest(file) if file.is_file() else None
    except OSError:
        return None


def _images(folder: Path, *, deep: bool, others: Counter[str]) -> Iterator[Path]:
    """Yield the images in a folder (and below it), sorted; count the other files by their endings."""
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if deep else []
        for name in sorted(files):
            if is_image_name(name):
                yield Path(top, name)
            elif not name.startswith(".") and name.lower() not in ("thumbs.db", "desktop.ini"):
                others[Path(name).suffix.lower() or name] += 1


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def _findings(found: list[_FolderImage], split: bool, unlisted: str, others: Counter[str]) -> Iterator[Note]:
    below = " below each split" if split else ""
    yield Note(f"a folder per tag{below}; a tag in whose folder a photo is not is {unlisted}")
    if several := sum(len(image.tags) > 1 for image in found):
        yield Note(f"{several:,} photos lie in several folders under one name, the same file: they have several tags")
    if untagged := sum(not image.tags for image in found):
        yield Note(f"{untagged:,} photos lie in no tag's folder: nothing is known of them")
    if others:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(_SUFFIXES_SHOWN))
        more = " …" if len(others) > _SUFFIXES_SHOWN else ""
        yield Note(f"files that are not images are left out: {kinds}{more}", "images")

"""Images as command-line arguments: files, folders, glob patterns, and text files of paths."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError, describe_missing_path
from labelgap.data import dataset_names, describe_datasets
from labelgap.data.images import FileImages
from labelgap.data.readers.image_paths import images_below, is_image_name, refuse_url
from labelgap.data.readers.shards import is_shard_folder, is_shard_url

_LISTS: Final = (".txt", ".lst", ".list")
_TABLES: Final = (".csv", ".tsv", ".parquet", ".npz", ".json", ".arff")


def is_dataset_argument(text: str) -> bool:
    """Return whether an argument is DATA, rather than images; an unpublished folder is one of images."""
    path = Path(text).expanduser()
    if is_shard_url(text) or is_shard_folder(path):
        return True
    if path.is_dir():
        return any(reader.layout.find is not None and reader.recognizes(path) for reader in describe_datasets())
    if path.suffix.lower() in _TABLES:
        return True
    if path.exists() or glob.has_magic(text):
        return False
    return "=" in text or text in dataset_names()


def find_images(texts: Sequence[str], folder: str | os.PathLike[str] | None = None) -> FileImages:
    """Return the images of files, folders, patterns and lists (.txt, .lst, relative to ``folder``), in their order."""
    names = tuple(dict.fromkeys(name for text in texts for name in _expand(text, folder)))
    if not names:
        raise InputError(f"there is no image in {', '.join(texts)}: files ending in .jpg, .png, .webp and the like.")
    if not any(os.path.isabs(name) or os.pardir in Path(name).parts for name in names):  # noqa: PTH117 - faster for many
        return FileImages(".", names)
    files = [os.path.abspath(name) for name in names]  # noqa: PTH100 - faster for many, and no links to follow
    return FileImages(Path(files[0]).anchor, names, files)


def _expand(text: str, folder: str | os.PathLike[str] | None) -> Iterable[str]:
    refuse_url(text, "images")
    path = Path(text).expanduser()
    if path.is_dir():
        return images_below(path)
    if path.suffix.lower() in _LISTS and path.is_file():
        return _read_list(path, folder)
    if path.exists():
        if not is_image_name(path.name):
            raise InputError(f"{path} has no image suffix; a list of paths is a text file ending in .txt.")
        return [str(path)]
    if glob.has_magic(text):
        return _match(str(path))
    raise InputError(describe_missing_path(path))


def _match(pattern: str) -> Iterator[str]:
    for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - patterns may be absolute
        path = Path(match)
        if path.is_dir():
            if not pattern.endswith("**"):
                yield from images_below(path)
        elif is_image_name(path.name):
            yield str(path)


def _read_list(path: Path, folder: str | os.PathLike[str] | None) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for line in file:
                if name := line.strip():
                    refuse_url(name, "images")
                    yield os.path.normpath(name if folder is None else Path(folder) / name)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8 ({error.reason}): it holds a path per line.") from None

"""From the name of an image, as somebody wrote it into a table, to a file below a folder.

Names may lack the extension, the subfolder, or the composed form of an accent. A file is taken only if it is the one
that can be meant: where two could be, or where the folders written and the folders found disagree, it is a problem.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from functools import cached_property
from pathlib import Path
from typing import Final

from labelgap.core.errors import InputError

__all__ = ["ImageFinder", "is_image_name", "refuse_url"]

_SUFFIX: Final = re.compile(r"\.(?:jpe?g|jpe|jfif|png|gif|bmp|webp|tiff?|hei[cf]|hif|avif|jp2|p[pgbn]m)", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MOST_FILES: Final = 2_000_000


def is_image_name(name: str) -> bool:
    """Whether a file's name ends as those of images do; hidden files are none.

    Example:
        >>> is_image_name("a.JPG"), is_image_name("notes.txt"), is_image_name("._a.jpg")
        (True, False, False)
    """
    return name != _bare(name) and not name.startswith(".")


def refuse_url(text: str | os.PathLike[str], what: str = "data") -> None:
    """Refuse what lies on another machine, and say what to do.

    Example:
        >>> refuse_url("photos/a.jpg")
    """
    written = os.fspath(text)
    if _ADDRESS.match(written):
        copy = "aws s3 sync" if written.startswith("s3") else "wget or curl"
        raise InputError(
            f"{written}: labelgap reads {what} from a disk. Copy it here first ({copy}), then give the copy's path."
        )


class ImageFinder:
    """Says what is wrong with an image's name, and keeps the file of every name with which nothing is.

    Args:
        folder: where names start; nothing outside of it is taken.
        skip: whether images that are missing or empty are to be left out, rather than told as problems.

    Attributes:
        files: name → path of its file, below the folder.
        skipped: name → why it is left out.
        completed: name → file, where the table had it otherwise.
        checked: how many names were asked for.
        missing: how many of them are not there.
    """

    def __init__(self, folder: Path, *, skip: bool = False) -> None:
        self.folder = folder
        self.skip = skip
        self.files: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.completed: dict[str, str] = {}
        self.checked = 0
        self.missing = 0
        self._names: dict[str, str] = {}

    def __call__(self, name: str) -> str | None:
        """Return what is wrong with a name, or None."""
        self.checked += 1
        if _ADDRESS.match(name):
            return f"{name} is an address: labelgap reads images from a disk. Copy them here, and give --images DIR"
        inside = _inside(self.folder, self.folder / name)
        if inside is None:
            return f"{name} lies outside of the image folder {self.folder}"
        file, wrong = self._look(name, inside)
        if file is None:
            self.missing += 1
            if self.skip:
                self.skipped[name] = wrong
            return None if self.skip else wrong
        first = self._names.setdefault(os.path.normpath(file), name)
        if first != name:
            return f"{name} is {first} once more, written differently"
        self.files[name] = file
        return self._state(name, self.folder / file)

    def rules(self) -> list[str]:
        """Say how many names were completed, with an example."""
        if not self.completed:
            return []
        name, file = next(iter(self.completed.items()))
        count = len(self.completed)
        return [f"{count:,} image name{'s were' if count > 1 else ' was'} completed: {name} is {file}"]

    def _look(self, name: str, inside: str) -> tuple[str | None, str]:
        """Return the file of a name below the folder; or None, and what is wrong."""
        place = self.folder / name
        try:
            os.lstat(place)
            return name, ""
        except (FileNotFoundError, NotADirectoryError):
            found = self._candidates(inside)
        except (OSError, ValueError) as error:
            return name, str(error)  # told by ``_state``
        if len(found) == 1:
            self.completed[name] = found[0]
            return found[0], ""
        if found:
            return None, f"{name} could be {found[0]} or {found[1]}: write the folder as well"
        return None, f"{place} does not exist"

    def _candidates(self, inside: str) -> list[str]:
        """Return the files that can be meant by a name that is not there as it is written."""
        key = _key(inside)
        parts = key.split("/")
        found = []
        for file in self._below.get(parts[-1], ()):
            whole = _key(file)
            for written in {whole, _bare(whole)}:
                ours = written.split("/")
                shorter = min(len(ours), len(parts))
                if ours[-shorter:] == parts[-shorter:]:
                    found.append(file)
        return sorted(set(found))

    @cached_property
    def _below(self) -> dict[str, list[str]]:
        """The image files below the folder by their last name, with and without its extension."""
        found: dict[str, list[str]] = {}
        seen = 0
        for top, folders, files in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            seen += len(files)
            if seen > _MOST_FILES:
                break
            for name in filter(is_image_name, files):
                file = os.path.relpath(Path(top) / name, self.folder)
                key = _key(name)
                for written in {key, _bare(key)}:
                    found.setdefault(written, []).append(file)
        return found

    def _state(self, name: str, place: Path) -> str | None:
        """Return what is wrong with a file that is there."""
        try:
            state = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            wrong = f"{place} does not exist"
        except (OSError, ValueError) as error:
            wrong = f"{place} cannot be read ({error.strerror if isinstance(error, OSError) else error})"
        else:
            if not stat.S_ISREG(state.st_mode):
                return f"{place} is not a file"
            if state.st_size:
                return None
            wrong = f"{place} is empty (0 bytes)"
        if self.skip:
            self.skipped[name] = wrong
        return None if self.skip else wrong


def _inside(folder: Path, place: Path) -> str | None:
    """Return a path as seen from a folder, without detours, or None when it leads out of it. Links are not followed."""
    try:
        relative = os.path.relpath(place, folder)
    except ValueError:  # another drive
        return None
    return None if Path(relative).parts[:1] == (os.pardir,) else relative


def _bare(name: str) -> str:
    """Return a name without the extension of an image."""
    head, dot, last = name.rpartition(".")
    return head if _SUFFIX.fullmatch(dot + last) else name


def _key(path: str) -> str:
    """Return a path in one form, whatever its case, its accents and its slashes."""
    return unicodedata.normalize("NFC", path.replace("\\", "/")).casefold()

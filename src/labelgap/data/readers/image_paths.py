"""From the name of an image in a table, which may be incomplete, to the only file below a folder that it can mean."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Container, Iterator
from functools import cached_property
from pathlib import Path, PurePath, PureWindowsPath
from typing import Final

from labelgap.core.errors import InputError, similarity
from labelgap.core.findings import Note
from labelgap.core.text import pluralize
from labelgap.data.decoding import UnreadableImageError, check_file
from labelgap.data.images import path_inside

IMAGE_SUFFIX: Final = re.compile(
    r"\.(?:jpe?g|jpe|jfif|png|gif|bmp|webp|tiff?|hei[cf]|hif|avif|jp2|p[pgbn]m)", re.IGNORECASE
)
_SAME_FORMAT: Final = {"jpeg": "jpg", "jpe": "jpg", "jfif": "jpg", "tiff": "tif"}


def is_image_name(name: str) -> bool:
    """Return whether a file's name has the suffix of an image format; hidden files are not images."""
    return name != without_suffix(name) and not name.startswith(".")


def images_below(folder: Path) -> Iterator[str]:
    """Yield every image below a folder, sorted, without hidden folders."""
    for top, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(filter(is_image_name, files)):
            yield str(Path(top) / name)


def without_suffix(name: str) -> str:
    """Return a name without the suffix of an image."""
    head, dot, last = name.rpartition(".")
    return head if IMAGE_SUFFIX.fullmatch(dot + last) else name


def image_suffix(name: str) -> str:
    """Return the suffix of an image in lower case; "" where there is none."""
    return name[len(without_suffix(name)) :].lower()


def normalize_name(path: str) -> str:
    """Return a path in a normal form: lower case, composed accents, forward slashes, one suffix for one format."""
    key = unicodedata.normalize("NFC", path.replace("\\", "/")).casefold()
    head, dot, last = key.rpartition(".")
    return head + dot + _SAME_FORMAT.get(last, last)


_MAX_COMPARED: Final = 200
_MAX_LENGTH: Final = 100  # files that a misspelled name is compared with, and its length
_MAX_COMPARISONS: Final = 10_000
"""Of all names of a table together, which takes a second or two: a table may have thousands of such names."""
_MIN_SIMILARITY: Final = 0.8
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAX_FILES: Final = 2_000_000
_MAX_CANDIDATES: Final = 10_000


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def match_name(path: str, known: Container[str]) -> str | None:
    """Return the end of a path, of Windows too, that is a known name, the longest; None where there is none."""
    for kind in (PurePath, PureWindowsPath):
        parts = kind(path).parts
        for start in range(len(parts)):
            if (end := kind(*parts[start:]).as_posix()) in known:
                return end
    return None


def is_file(path: Path) -> bool:
    """Return whether a path of any text leads to a file; no file has a name of a thousand characters."""
    try:
        return path.is_file()
    except OSError:
        return False


def refuse_url(text: str | os.PathLike[str], what: str = "data") -> None:
    """Raise an error for a URL: labelgap reads local files only."""
    written = os.fspath(text)
    if _URL.match(written):
        copy = "aws s3 sync" if written.startswith("s3") else "wget or curl"
        raise InputError(
            f"{written}: labelgap reads {what} from a disk. Copy it here first ({copy}), then give the copy's path."
        )


class ImageFinder:
    """Checks the names of images, and maps every valid one to its file.

    Args:
        folder: names are relative to it; nothing outside of it is used.
        skip: whether missing and empty images are left out, rather than reported as problems.

    Attributes:
        files: name → path of its file, below the folder.
        skipped: name → why it is left out; or, where nothing is skipped, why a file that was found is not its own.
        completed: name → file, where the name in the table was incomplete.
        repeated: name → the name before it that leads to the same file.
        suggested: name → the only file with a name that is near to it, where it has none.
        lines: name → line of the table; ``sources`` has its table, of which ``source`` is read now.
        checked: how many names were checked; ``missing`` have no file.
    """

    def __init__(self, folder: Path, *, skip: bool = False) -> None:
        self.folder = folder
        self.skip = skip
        self.files: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self.completed: dict[str, str] = {}
        self.checked = self.missing = 0
        self.lines: dict[str, int] = {}
        self.source: Path | None = None
        self.sources: dict[str, Path | None] = {}
        self.repeated: dict[str, str] = {}
        self.suggested: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._comparisons = 0

    def __call__(self, name: str, line: int = 0) -> str | None:
        """Return the problem with a name, or None; ``line`` is where a table has it."""
        self.checked += 1
        self.lines[name] = line
        self.sources[name] = self.source
        if _URL.match(name):
            return f"{name} is an address: labelgap reads images from a disk. Copy them here, and give --images DIR"
        inside = path_inside(self.folder, self.folder / name)
        if inside is None:
            whole = Path(name).is_absolute() and ".." not in Path(name).parts
            if not whole or os.path.lexists(name):
                remedy = f". Are all images there? --images {Path(name).parent}" if whole else ""
                return f"{name} lies outside of the image folder {self.folder}{remedy}"
            inside = name  # of another machine, perhaps: its last parts may be here
        file, reason = self._find(name, inside)
        first = name if file is None else self._names.setdefault(os.path.normpath(file), name)
        lost = self._lost_photo(name, first)
        if file is not None and lost is not None:
            reason = f"{lost} does not exist, and {first if lost == name else name} is listed for itself"
            self.completed.pop(lost, None)
            if lost == name:
                file = None
            else:
                self._names[os.path.normpath(file)] = name
                self.files.pop(lost, None)
                self.skipped[lost] = reason
        if file is None:
            self.missing += 1
            if self.skip:
                self.skipped[name] = reason
            return None if self.skip else reason
        if first != name and lost is None:
            self.repeated[name] = first
            return f"{name} is {first} once more, written differently"
        problem = self._check_file(name, self.folder / file)
        if problem is None:
            self.files[name] = file
        return problem or (reason if reason and not self.skip else None)

    def _lost_photo(self, name: str, other: str) -> str | None:
        """Return which of two names of one file (other suffixes) is a photo without a file; None where none is."""
        if not image_suffix(name) or not image_suffix(other) or image_suffix(name) == image_suffix(other):
            return None
        return name if name in self.completed else other

    def findings(self) -> list[Note]:
        """Return how many names were completed, with an example; empty when none was."""
        names = pluralize(len(self.completed), "image name was", "image names were")
        example = list(self.completed.items())[:1]
        return [Note(f"{names} completed: {name} is {file}", "images") for name, file in example]

    def _find(self, name: str, inside: str) -> tuple[str | None, str]:
        """Return the file of a name below the folder; or None, and the problem."""
        place = self.folder / name
        try:
            os.lstat(place)
            return name, ""
        except (FileNotFoundError, NotADirectoryError):
            found = self._candidates(inside)
        except (OSError, ValueError) as error:
            return name, str(error)  # reported by ``_check_file``
        if len(found) == 1:
            self.completed[name] = found[0]
            return found[0], ""
        if found:
            part = "suffix" if Path(found[0]).parent == Path(found[1]).parent else "folder"
            return None, f"{name} could be {found[0]} or {found[1]}: write the {part} as well"
        near = self._near(inside)
        if len(near) == 1:
            self.suggested[name] = near[0]
        return None, f"{place} does not exist" + (f". Did you mean {near[0]}?" if near else "")

    def _candidates(self, inside: str) -> list[str]:
        key = normalize_name(inside)
        parts = key.split("/")
        found = []
        files = self._files_by_name.get(parts[-1], [])
        if len(files) > _MAX_CANDIDATES:
            return files[:2]  # as good as ambiguous, and every name would be compared with all of them
        for file in files:
            whole = normalize_name(file)
            for written in {whole, without_suffix(whole)}:
                ours = written.split("/")
                shorter = min(len(ours), len(parts))
                if ours[-shorter:] == parts[-shorter:]:
                    found.append(file)
        same_suffix = [file for file in found if image_suffix(file) == image_suffix(inside)]
        return sorted({*(same_suffix or found)})

    @cached_property
    def _files_by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        count = 0
        for top, folders, files in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            count += len(files)
            if count > _MAX_FILES:
                break
            for name in filter(is_image_name, files):
                file = os.path.relpath(Path(top) / name, self.folder)
                key = normalize_name(name)
                for written in {key, without_suffix(key)}:
                    found.setdefault(written, []).append(file)
        return found

    def _near(self, inside: str) -> list[str]:
        """Return the files most like one that does not exist: folders are close as well, and numbers are the same."""
        wanted = without_suffix(normalize_name(inside)).split("/")
        files = self._files_by_number.get(_digits(wanted[-1]), [])
        if len(files) > min(_MAX_COMPARED, _MAX_COMPARISONS - self._comparisons) or len(inside) > _MAX_LENGTH:
            return []
        self._comparisons += len(files)
        near = dict[str, float]()
        for file in files:
            parts = without_suffix(normalize_name(file)).split("/")[-len(wanted) :]
            pairs = zip(reversed(wanted), reversed(parts), strict=False)
            near[file] = min(similarity(one, other) for one, other in pairs)
        return sorted((file for file in near if near[file] >= _MIN_SIMILARITY), key=lambda file: -near[file])

    @cached_property
    def _files_by_number(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for file in sorted({file for files in self._files_by_name.values() for file in files}):
            found.setdefault(_digits(without_suffix(normalize_name(Path(file).name))), []).append(file)
        return found

    def _check_file(self, name: str, place: Path) -> str | None:
        try:
            check_file(place)
        except UnreadableImageError as error:
            problem = str(error).rstrip(".")
            if not self.skip:
                return problem
            self.skipped[name] = problem
        return None

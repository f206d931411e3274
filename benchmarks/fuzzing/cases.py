"""One case: damage a file of the samples, read it with everything that reads it, judge what came of it, restore it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from benchmarks.fuzzing.base import CANARY_VARIABLE
from benchmarks.fuzzing.digests import digest
from benchmarks.fuzzing.mutations import mutate_file, mutate_files_around
from benchmarks.fuzzing.readers import READERS
from benchmarks.fuzzing.samples import SAMPLES_VARIABLE
from benchmarks.fuzzing.targets import TARGETS, Target
from benchmarks.fuzzing.watch import Hang, Watch

from labelgap.core.errors import LabelGapError
from labelgap.core.manifest import MANIFEST_FILE

LONGEST_MESSAGE: Final = 2000
VERIFY: Final = "labelgap verify"
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


@dataclass(frozen=True)
class Failure:
    """What a reader must not do.

    Attributes:
        number: of the case.
        file: the target.
        reader: its name.
        mutation: what was done to the file.
        problem: the exception, or what is wrong.
        place: the innermost line of labelgap.
        detail: the traceback, or the message.
        steps: number of mutations.
    """

    number: int
    file: str
    reader: str
    mutation: str
    problem: str
    place: str
    detail: str
    steps: int

    @property
    def key(self) -> tuple[str, str, str]:
        """Failures with one key have one cause."""
        return self.file, self.problem, self.place


@dataclass(frozen=True)
class Case:
    """The outcome of a case: what each reader did, and the failures."""

    outcomes: tuple[str, ...]
    failures: tuple[Failure, ...]
    mutation: str
    target: str


class Fuzzer:
    """Damages files of a private copy of the samples.

    Args:
        samples: as ``make_samples`` wrote them; they are not touched.
        folder: empty, for the copy; in memory where possible.
        seed: of all cases.
        seconds: that a reader may take.
        heavy: whether readers that take long are called too.
        only: a part of the path of the files that are damaged.
    """

    def __init__(
        self, samples: Path, folder: Path, seed: int = 0, *, seconds: float = 10.0, heavy: bool = True, only: str = ""
    ) -> None:
        self.seed, self.seconds, self.heavy = seed, seconds, heavy
        self.root = folder / "samples"
        shutil.copytree(samples, self.root)
        self.canary = folder / "outside" / "canary.csv"
        self.canary.parent.mkdir()
        os.environ[CANARY_VARIABLE] = str(self.canary)
        os.environ["LABELGAP_CACHE"] = str(self.root / "cache")
        os.environ[SAMPLES_VARIABLE] = str(samples)
        self.targets = [target for target in map(self._resolve, TARGETS) if target is not None and only in target.path]
        self.weights = np.array([target.weight for target in self.targets], dtype=float)
        self.weights /= self.weights.sum()
        self._write_canary()
        self.originals = {path: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        self._states = {path: _state(path) for path in self.originals}
        self.expected: dict[tuple[str, str], str] = {}

    def choose(self, number: int) -> Target:
        """Return the file that a case damages."""
        random = np.random.default_rng([self.seed, number, 0])
        return self.targets[int(random.choice(len(self.targets), p=self.weights))]

    def run(self, number: int) -> Case:
        """Make and judge one case."""
        random, chosen = np.random.default_rng([self.seed, number, 1]), self.choose(number)
        path = self.root / chosen.path
        readers = [name for name, share in chosen.readers.items() if random.random() < share]
        readers = [name for name in readers if self.heavy or chosen.readers[name] >= 0.2]
        readers.sort(key=lambda name: name != VERIFY)  # before another one has computed again what is damaged
        for name in readers:
            self._baseline(name, chosen)
        foreign, trusted = bool(random.random() < 0.5), bool(random.random() < 0.3)
        mutation = mutate_file(random, path, plain=chosen.plain)
        if path.suffix == ".sqlite" and random.random() < 0.1:
            with suppress(OSError):
                mutation += f" + {mutate_files_around(random, path)}"
        if foreign:
            mutation += self._hide(path)
        trusted = trusted and not path.is_symlink()  # to trust a folder is to follow its links
        if trusted:
            os.environ["LABELGAP_TRUST"] = str(self.root)
        try:
            return self._judge(number, chosen, readers, mutation, foreign=foreign)
        finally:
            os.environ.pop("LABELGAP_TRUST", None)
            self.restore()

    def _judge(self, number: int, target: Target, readers: list[str], mutation: str, *, foreign: bool) -> Case:
        path, outcomes, failures = self.root / target.path, [], []
        before = _content(path)
        changed = before is None or before != self.originals[path]
        for name in readers:
            covered = target.covered and not foreign and changed
            outcome, problem, place, detail = self._read(name, target, covered=covered)
            written = outcome == "refused" and before is not None and _content(path) != before
            if problem is None and written and path.suffix == ".sqlite":
                problem, place = "a damaged file was written to", name
            outcomes.append("failed" if problem else outcome)
            if problem:
                words = (number, target.path, name, mutation, problem, place, detail, mutation.count(" + ") + 1)
                failures.append(Failure(*words))
        return Case(tuple(outcomes), tuple(failures), mutation, target.path)

    def _read(self, name: str, target: Target, *, covered: bool) -> tuple[str, str | None, str, str]:
        """Call a reader; return the outcome, and of a failure what it is, its place and its details."""
        expected, detail, watch = self._baseline(name, target), "", Watch(self.root, self.seconds)
        try:
            with watch:
                found = digest(READERS[name](self._argument(name, target)))
            outcome, problem, place = ("same" if found == expected else "other"), None, ""
            if covered and outcome == "other" and not (name in _UNCOVERED or found == digest(None)):
                problem, place = "another value, without a word", name
            elif covered and name == VERIFY:
                problem, place = "verify did not notice it", name
        except LabelGapError as error:
            outcome, problem = "refused", _bad_message(str(error), escaped=target.plain)
            place, detail = _place(error) if problem else "", f"{type(error).__name__}: {error}"
        except Hang as error:
            outcome, problem, place = "failed", f"no answer after {self.seconds:g} s", _place(error)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome, problem, place = "failed", type(error).__name__, _place(error)
            detail = "".join(traceback.format_exception(error))[-3000:]
        if (did := self._forbidden() or watch.problem()) is not None:
            problem, place = did, name
        return outcome, problem, place, detail

    def _forbidden(self) -> str | None:
        """Return what a reader did that no file may make it do."""
        beside = [path.name for path in self.canary.parent.iterdir() if path != self.canary]
        if beside or self.canary.read_bytes() != _CANARY:
            self._write_canary()
            return f"something was written outside of the samples: {beside or self.canary.name}"
        return None

    def _write_canary(self) -> None:
        shutil.rmtree(self.canary.parent)
        self.canary.parent.mkdir()
        self.canary.write_bytes(_CANARY)

    def _baseline(self, name: str, target: Target) -> str:
        """Return what a reader returns of the untouched samples."""
        key = (name, str(self._argument(name, target)))
        if key not in self.expected:
            values = set()
            for _ in range(2):
                try:
                    with warnings.catch_warnings(action="ignore"):
                        values.add(digest(READERS[name](self._argument(name, target))))
                except LabelGapError as error:
                    raise AssertionError(f"{name} of the untouched {target.path}: {error}") from None
                finally:
                    self.restore()
            if len(values) > 1:
                raise AssertionError(f"{name} of {target.path} does not return the same twice")
            (self.expected[key],) = values
        return self.expected[key]

    def _argument(self, name: str, target: Target) -> Path:
        """Return what a reader is given: the folder of the target, or the file where it stands alone."""
        path = self.root / target.path
        return path if "/" not in target.path else self.root / target.folder

    def _hide(self, path: Path) -> str:
        """Write the digest of the damaged file into the manifest, as its author would."""
        manifest = self.root / path.relative_to(self.root).parts[0] / MANIFEST_FILE
        content, name = _content(path), path.relative_to(manifest.parent).as_posix()
        if content is None or _content(manifest) is None or path == manifest:
            return ""
        stored = json.loads(manifest.read_bytes())
        if name not in stored["files"]:
            return ""
        stored["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest.write_text(json.dumps(stored))
        return ", the manifest adapted"

    def restore(self) -> None:
        """Make the samples what they were."""
        for parent, folders, files in os.walk(self.root, topdown=False):
            for path in (Path(parent, name) for name in (*files, *folders)):
                state = _state(path)
                if stat.S_ISDIR(state[0]):
                    with suppress(OSError):  # where it is not empty
                        path.rmdir()
                elif state != self._states.get(path):
                    path.unlink()
        for path, content in self.originals.items():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                self._states[path] = _state(path)

    def _resolve(self, target: Target) -> Target | None:
        found = sorted(self.root.glob(target.path))
        if not found:
            return None
        if len(found) == 1 or "*" in target.path:
            return replace(target, path=found[0].relative_to(self.root).as_posix())
        return target


_UNCOVERED: Final = ("cache", "labelgap cache")
"""Readers that list the files of a cache with their sizes."""
_CANARY: Final = b"image,split,cat\na.png,train,1\n"


def _state(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino


def _content(path: Path) -> bytes | None:
    """Return the content of an ordinary file that is not huge; None for anything else."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 24:
            return path.read_bytes()
    return None


def _bad_message(text: str, *, escaped: bool) -> str | None:
    if len(text) > LONGEST_MESSAGE * (10 if escaped else 1):
        return f"a message of more than {LONGEST_MESSAGE:,} characters"
    return "control characters in a message" if _CONTROL.search(text) and not escaped else None


def _place(error: BaseException) -> str:
    """Return the innermost line of labelgap in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/labelgap/" in frame.filename]
    frame = own[-1] if own else frames[-1]
    return f"{frame.filename.split('/src/')[-1]}:{frame.lineno} {frame.name}"

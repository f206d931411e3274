"""What may a folder that somebody else made name? Whose it is, and which classes a run may load.

The documents of a folder that name something carry an HMAC with a secret key of the user. One without a valid signature
is read, but the paths, classes and addresses in it are not used until the user gives them himself, signs it (``labelgap
verify FOLDER --trust``), or names the folder in ``LABELGAP_TRUST``.

A run records an object's class as ``package.module:Class``. labelgap never imports a module because a run folder names
it: it is imported already, the user has given an object of the class before (``used_classes``), or ``LABELGAP_IMPORT``
names the module. Registered names and entry points need none of this.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

import platformdirs

from labelgap.core.errors import RunError
from labelgap.core.files import sync_folder, write_json
from labelgap.core.lock import lock_folder
from labelgap.core.stored import SIGNATURE, read_json_object, reading
from labelgap.core.text import truncate_text

TRUST_VARIABLE: Final = "LABELGAP_TRUST"  # folders, separated as in PATH, whose content is trusted
ALLOWED_VARIABLE: Final = "LABELGAP_IMPORT"  # modules and packages, separated by commas, that a run may name
_MODEL_LIBRARIES: Final = ("timm", "open_clip")  # before a colon they name a library's model, not a class
T = TypeVar("T")
_GIVEN: dict[str, type] = {}
_KEY_BYTES: Final = 32


def write_signed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a document of this user: JSON with a signature, atomically."""
    write_json(path, {**value, SIGNATURE: _sign(value)})


def sign_file(path: Path) -> None:
    """Sign a document that somebody else made: from now on this user trusts what it names."""
    write_signed_json(path, _unsigned(read_json_object(path)))


def is_trusted(path: Path) -> bool:
    """Whether this user made or signed a document, or trusts its folder."""
    if is_named(path.parent):
        return True
    value = read_json_object(path)
    signature = value.get(SIGNATURE)
    return isinstance(signature, str) and hmac.compare_digest(signature.encode(), _sign(_unsigned(value)).encode())


def require_trust(path: Path, named: Sequence[str], instead: str = "") -> None:
    """Refuse to use what a document of somebody else names; ``instead`` is how the user can give it himself."""
    if not named or is_trusted(path):
        return
    folder, what = path.parent, ", ".join(truncate_text(each, 200) for each in named)
    raise RunError(
        f"{folder} was made by somebody else or on another machine, or was changed since, and names {what}. labelgap "
        f"does not use what such a folder names. {f'Either {instead}, or' if instead else 'Check it, and'} say that "
        f"you trust it: labelgap verify {folder} --trust."
    )


def outside_links(folder: Path) -> list[str]:
    """Return the symbolic links in a folder that lead out of it: writing to one would replace a file elsewhere."""
    with reading(folder):
        paths = (Path(parent, name) for parent, *names in os.walk(folder) for name in chain(*names))
        found = sorted(path for path in paths if leaves_folder(path, folder))
        return [f"the link {link.relative_to(folder)} to {link.readlink()}" for link in found]


def leaves_folder(path: Path, folder: Path) -> bool:
    """Whether a path is a symbolic link that leads out of a folder, or nowhere because links lead to each other."""
    try:
        return path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop
        return True


def refuse_links(folder: Path) -> None:
    """Refuse a folder with links out of it, which no signature covers, unless ``LABELGAP_TRUST`` names the folder."""
    if not is_named(folder) and (links := outside_links(folder)):
        raise RunError(
            f"{folder} holds {truncate_text(links[0], 200)}, which leads out of it. labelgap does not follow it: "
            f"replace it by the file, or trust the folder with {TRUST_VARIABLE}={folder}."
        )


def is_named(folder: Path) -> bool:
    """Whether the environment names a folder, or one above it."""
    named = [Path(text).expanduser() for text in os.environ.get(TRUST_VARIABLE, "").split(os.pathsep) if text]
    return any(folder.resolve().is_relative_to(each.resolve()) for each in named)


def _sign(value: Mapping[str, Any]) -> str:
    stored = json.loads(json.dumps(value))  # keys as they come back
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    return hmac.new(
        _load_key(platformdirs.user_state_path("labelgap") / "key"), text.encode(), hashlib.sha256
    ).hexdigest()


def _unsigned(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != SIGNATURE}


@cache
def _load_key(path: Path) -> bytes:
    """Return the user's key; created where there is none. Without a folder to keep it, it lasts for this process."""
    key, new = secrets.token_bytes(_KEY_BYTES), path.with_name(f".key-{secrets.token_hex(8)}")
    with suppress(OSError, RunError):
        if not _is_key(path):
            with lock_folder(path.parent, "creating the key", wait=10):
                if not _is_key(path):  # a damaged one is replaced: what it signed is foreign from now on
                    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                        file.write(key)
                        file.flush()
                        os.fsync(file.fileno())
                    new.replace(path)
                    sync_folder(path.parent)
        return path.read_bytes()
    return key


def _is_key(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == _KEY_BYTES


def is_class_path(name: str) -> bool:
    """Return whether a name is an import path of a class, not a registered name."""
    module, _, qualified = name.partition(":")
    if module in _MODEL_LIBRARIES:
        return False
    is_class = qualified.rpartition(".")[2][:1].isupper() and all(map(str.isidentifier, module.split(".")))
    return is_class or name in _GIVEN or (":" in name and name in used_classes())


def used_classes() -> frozenset[str]:
    """Return the import paths of the classes whose objects this user has given to labelgap."""
    with suppress(OSError, UnicodeDecodeError):
        return frozenset(_used_file().read_text(encoding="utf-8").splitlines())
    return frozenset()


def class_path(cls: type) -> str:
    """Return the import path of a class; ``find_class`` finds it from now on, in later processes of this user too."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    _GIVEN[path] = cls
    if cls.__module__ != "__main__" and "<locals>" not in path and path not in used_classes():
        with suppress(OSError):  # a home that cannot be written to: LABELGAP_IMPORT remains
            _used_file().parent.mkdir(parents=True, exist_ok=True)
            with _used_file().open("a", encoding="utf-8") as file:
                file.write(f"{path}\n")
    return path


def find_class(path: str, base: type[T]) -> type[T]:
    """Return the class of an import path ``package.module:Class``, by the rule of this module, else ``RunError``."""
    module, _, qualified = path.partition(":")
    found: object = _GIVEN.get(path)
    if found is None:
        found = _module(path, module)
        for part in qualified.split("."):
            found = getattr(found, part, None)
    if found is None:
        raise RunError(f"the module {module} has no class {qualified}: another version of it was used for the run.")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise RunError(f"{path} is not a {base.__name__}: config.json was changed, or the class has changed.")
    return found


def _module(path: str, module: str) -> object:
    """Return a module that is already imported, or import one that the user has used or allows."""
    if module in sys.modules:
        return sys.modules[module]
    allowed = [name.strip() for name in os.environ.get(ALLOWED_VARIABLE, "").split(",")]
    is_allowed = any(name and (module == name or module.startswith(f"{name}.")) for name in allowed)
    if not is_allowed and path not in used_classes():
        raise RunError(
            f"the class {path} is not loaded. labelgap does not import code because a run folder names it: "
            f"`import {module}` first, or for the commands set {ALLOWED_VARIABLE}={module}."
        )
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError(
            f"the class {path} cannot be imported ({error}): install its package, or add its folder to PYTHONPATH."
        ) from None


def _used_file() -> Path:
    return platformdirs.user_state_path("labelgap") / "used_classes.txt"

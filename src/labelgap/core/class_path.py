"""Classes that a run records by their import path, and the rule that decides which of them may be loaded.

A run that was trained with an object (``fit(method=MyLoss())``, ``fit(backbone=my_module)``) records the class of that
object as ``package.module:Class``. A run folder may come from somebody else, so labelgap never imports a module because
a run folder names it. A class is found only if

- an object of it was given to labelgap in this process, or
- its module is already imported: ``import package.module`` before ``open_run`` is enough, or
- this user has given an object of it to labelgap before: ``used_classes`` lists them, in a file of the user's, or
- the environment variable ``LABELGAP_IMPORT`` names the module or a package above it.

Either way it must be a subclass of what is expected in its place. Names that are registered (``register_method`` …) or
come from the entry points of an installed package need none of this.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import platformdirs

from labelgap.core.errors import RunError

ALLOWED_VARIABLE: Final = "LABELGAP_IMPORT"
"""Environment variable: modules and packages, separated by commas, that may be imported when a run names them."""

_MODEL_LIBRARIES: Final = ("timm", "open_clip")
"""Before a colon they name a library's model, not a class."""

T = TypeVar("T")
_GIVEN: dict[str, type] = {}


def is_class_path(name: str) -> bool:
    """Return whether a name is an import path of a class, not a registered name.

    Example:
        >>> is_class_path("package.losses:MyLoss"), is_class_path("ll-r"), is_class_path("open_clip:RN50/openai")
        (True, False, False)
    """
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
    """Return the import path of a class, and remember it for ``find_class``, here and in later processes of this user.

    Example:
        >>> from collections import OrderedDict
        >>> class_path(OrderedDict)
        'collections:OrderedDict'
    """
    path = f"{cls.__module__}:{cls.__qualname__}"
    _GIVEN[path] = cls
    if cls.__module__ != "__main__" and "<locals>" not in path and path not in used_classes():
        with suppress(OSError):  # a home that cannot be written to: LABELGAP_IMPORT remains
            _used_file().parent.mkdir(parents=True, exist_ok=True)
            with _used_file().open("a", encoding="utf-8") as file:
                file.write(f"{path}\n")
    return path


def find_class(path: str, base: type[T]) -> type[T]:
    """Return the class of an import path, by the rule of this module.

    Args:
        path: ``package.module:Class``.
        base: what the class must derive from; anything else is refused.

    Raises:
        RunError: the class may not be loaded, is not there, or does not derive from ``base``.

    Example:
        >>> find_class("collections:OrderedDict", dict)
        <class 'collections.OrderedDict'>
        >>> find_class("package.losses:MyLoss", dict)
        Traceback (most recent call last):
        ...
        labelgap.core.errors.RunError: the class package.losses:MyLoss is not loaded. ...
    """
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

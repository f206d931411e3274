"""Which classes of a run may be loaded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelgap.core import trust
from labelgap.core.errors import RunError
from labelgap.core.trust import ALLOWED_VARIABLE, class_path, find_class, is_class_path


class Thing:
    """A class of an imported module."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package on the path that nobody has imported."""
    name = "someones_package"
    (tmp_path / f"{name}.py").write_text("class Theirs(dict): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield name
    sys.modules.pop(name, None)


def test_a_class_that_is_imported_or_was_given_in_this_process_is_found() -> None:
    class Local(Thing):
        pass

    assert find_class(f"{__name__}:Thing", Thing) is Thing and find_class(class_path(Local), Thing) is Local


def test_a_module_is_not_imported_because_a_run_names_it(module: str) -> None:
    with pytest.raises(RunError, match=rf"import {module}.*{ALLOWED_VARIABLE}={module}"):
        find_class(f"{module}:Theirs", dict)
    assert module not in sys.modules


@pytest.mark.parametrize("allowed", ["someones_package", "other, someones_package"])
def test_a_module_that_the_user_allows_is_imported(module: str, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, allowed)
    assert find_class(f"{module}:Theirs", dict).__name__ == "Theirs"


def test_a_class_that_the_user_has_used_before_is_imported_in_a_later_process(module: str) -> None:
    class_path(importlib.import_module(module).Theirs)
    forget(module)
    assert find_class(f"{module}:Theirs", dict).__name__ == "Theirs"
    forget(module)
    with pytest.raises(RunError, match="does not import code because a run folder names it"):
        find_class(f"{module}:Other", dict)


def forget(module: str) -> None:
    """What a new process knows: no module, and no object that was given."""
    sys.modules.pop(module, None)
    trust._GIVEN.clear()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("someones_package:Gone", "no class Gone"),
        ("not_installed:Thing", "not_installed.*install"),
        ("subprocess:Popen", "not a dict"),
    ],
)
def test_what_cannot_be_used_is_named(module: str, path: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_VARIABLE, "someones_package,not_installed")
    with pytest.raises(RunError, match=message):
        find_class(path, dict)


def test_registered_names_are_not_class_paths() -> None:
    names = ("ll-r", "timm:resnet50", "a.b:C", "C:A", "")
    assert [name for name in names if is_class_path(name)] == ["a.b:C", "C:A"]

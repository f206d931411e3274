from __future__ import annotations

import importlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from labelgap.core import trust
from labelgap.core.errors import RunError
from labelgap.core.trust import find_class, is_trusted, outside_links, refuse_links, require_trust, write_signed_json

DATA = {"path": "/photos/tags.csv", 3: 1.5}
VALUE = {"data": DATA, "classes": ("dog", "größe \x1b"), "lr": 1e-3, "inf": float("inf")}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "config.json"
    path.parent.mkdir()
    write_signed_json(path, VALUE)
    return path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_this_user_wrote_is_trusted_wherever_it_is_moved(document: Path, tmp_path: Path) -> None:
    assert is_trusted(document)
    moved = document.rename(tmp_path / "config.json")
    require_trust(moved, ["the data /photos/tags.csv"])
    edit(moved)  # other spaces and no line breaks, the same content
    assert is_trusted(moved)


@pytest.mark.parametrize(
    "changes", [{"lr": 1e-4}, {"data": {"path": "/etc"}}, {"signature": "0" * 64}, {"signature": None}, {"new": 1}]
)
def test_a_changed_document_is_not_trusted_until_it_is_signed(document: Path, changes: dict[str, Any]) -> None:
    edit(document, **changes)
    assert not is_trusted(document)
    with pytest.raises(RunError, match=r"data /x.*--data.* --trust"):
        require_trust(document, ["the data /x"], "name it with --data")
    require_trust(document, [])
    trust.sign_file(document)
    assert is_trusted(document)


def test_a_folder_of_the_environment_is_trusted(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(document, lr=1)
    monkeypatch.setenv(trust.TRUST_VARIABLE, os.pathsep.join(["/nowhere", str(tmp_path)]))
    assert is_trusted(document)
    monkeypatch.setenv(trust.TRUST_VARIABLE, str(tmp_path / "ru"))
    assert not is_trusted(document)


def test_a_link_out_needs_the_environment(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = document.parent
    (folder / "inside").symlink_to("config.json")
    refuse_links(folder)
    assert outside_links(folder) == []
    (folder / "loop").symlink_to("loop")
    assert outside_links(folder) == ["the link loop to loop"]
    (folder / "loop").unlink()
    (folder / "heads").mkdir()
    (folder / "heads" / "up").symlink_to("../../precious")
    (folder / "report.html").symlink_to(tmp_path / "precious")
    precious = tmp_path / "precious"
    assert outside_links(folder) == ["the link heads/up to ../../precious", f"the link report.html to {precious}"]
    with pytest.raises(RunError, match=r"the link heads/up to .* LABELGAP_TRUST="):
        refuse_links(folder)
    monkeypatch.setenv(trust.TRUST_VARIABLE, str(folder))
    refuse_links(folder)


def test_the_key_is_the_users_alone_and_lasts_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, home = tmp_path / "config.json", tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    key = platformdirs.user_state_path("labelgap") / "key"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"")  # it is damaged
    write_signed_json(path, {"a": 1})
    assert len(key.read_bytes()) == 32 and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert [each.name for each in key.parent.iterdir()] == ["key"]
    (tmp_path / "file").write_text("a file in place of the folder")
    check = (
        "import sys; from pathlib import Path; from labelgap.core.trust import is_trusted, sign_file; "
        "path = Path(sys.argv[1]); print(is_trusted(path)); sign_file(path); print(is_trusted(path))"
    )
    for state, expected in ((home, "True"), (tmp_path / "other", "False"), (tmp_path / "file", "False")):
        environment = {**os.environ, "XDG_STATE_HOME": str(state)}
        command = [sys.executable, "-c", check, str(path)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.split() == [expected, "True"]
        write_signed_json(path, {"a": 1})


class Thing:
    """A class of an imported module."""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "someones_package"
    (tmp_path / f"{name}.py").write_text("class Theirs(dict): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield name
    sys.modules.pop(name, None)


def test_a_module_is_not_imported_because_a_run_names_it(module: str) -> None:
    with pytest.raises(RunError, match=rf"import {module}.*{trust.ALLOWED_VARIABLE}={module}"):
        find_class(f"{module}:Theirs", dict)
    assert module not in sys.modules


@pytest.mark.parametrize("allowed", ["someones_package", "other, someones_package"])
def test_a_module_that_the_user_allows_is_imported(module: str, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trust.ALLOWED_VARIABLE, allowed)
    assert find_class(f"{module}:Theirs", dict).__name__ == "Theirs"


def test_a_class_that_the_user_has_used_before_is_imported_in_a_later_process(module: str) -> None:
    trust.class_path(importlib.import_module(module).Theirs)
    forget(module)
    assert find_class(f"{module}:Theirs", dict).__name__ == "Theirs"
    forget(module)
    with pytest.raises(RunError, match=module):
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
    monkeypatch.setenv(trust.ALLOWED_VARIABLE, "someones_package,not_installed")
    with pytest.raises(RunError, match=message):
        find_class(path, dict)


def test_class_paths_are_told_from_names_and_found_where_they_were_given() -> None:
    names = ("ll-r", "timm:resnet50", "a.b:C", "C:A", "")
    assert [name for name in names if trust.is_class_path(name)] == ["a.b:C", "C:A"]

    class Local(Thing):
        pass

    assert find_class(f"{__name__}:Thing", Thing) is Thing and find_class(trust.class_path(Local), Thing) is Local

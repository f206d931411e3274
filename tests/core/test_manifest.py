from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from tests.killing import killed_at_every_operation, start_forked, wait_forked

from labelgap.core.errors import RunError
from labelgap.core.manifest import (
    MANIFEST_FILE,
    check_files,
    finish_replacement,
    replace_together,
    replacing,
    verify_folder,
    write_manifest,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "heads").mkdir()
    for name in ("config.json", "best.safetensors", "heads/a.safetensors"):
        (tmp_path / name).write_text(name)
    write_manifest(tmp_path, ["config.json", "best.safetensors", "heads/a.safetensors", "never-written.npz"])
    return tmp_path


def test_a_changed_and_a_missing_file_are_found_and_the_way_out_is_named(folder: Path) -> None:
    assert verify_folder(folder) == dict.fromkeys(["best.safetensors", "config.json", "heads/a.safetensors"], "intact")
    check_files(folder, ["config.json", "best.safetensors", "never-written.npz"])
    (folder / "config.json").write_text("config.jsom")  # of the same length
    (folder / "heads/a.safetensors").unlink()
    assert list(verify_folder(folder).values()) == ["intact", "changed", "missing"]
    check_files(folder, ["best.safetensors"])
    with pytest.raises(RunError, match=r"config\.json .*--accept"):
        check_files(folder, ["config.json"])


@pytest.mark.parametrize("name", ["/etc/passwd", "../other/config.json", "a/../../b", "a\\b"])
def test_a_manifest_names_only_files_of_its_folder(folder: Path, name: str) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest["files"][name] = manifest["files"]["config.json"]
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=MANIFEST_FILE):
        verify_folder(folder)


def test_two_processes_that_add_files_lose_no_entry(folder: Path) -> None:
    def add(who: str) -> None:
        for number in range(15):
            with replacing(folder, [f"{who}{number}"]):
                (folder / f"{who}{number}").write_text(who)

    workers = [start_forked(partial(add, who)) for who in "ab"]
    assert [wait_forked(worker) for worker in workers] == [0, 0]
    assert len(verify_folder(folder)) == 33 and set(verify_folder(folder).values()) == {"intact"}


def test_sizes_are_compared_before_digests_and_a_hollow_file_is_refused_even_where_the_manifest_agrees(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 400_000_000_000
    with (folder / "best.safetensors").open("r+b") as file:
        file.truncate(size)
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("it is read"))
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    for claimed in (16, size, 1 << 30):
        with (folder / "best.safetensors").open("r+b") as file:
            file.truncate(claimed if claimed > 16 else size)
        manifest["files"] = {"best.safetensors": {"bytes": claimed, "sha256": "0" * 64}}
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
        assert list(verify_folder(folder).values()) == ["refused"]
        with pytest.raises(RunError, match=r"best\.safetensors is damaged"):
            check_files(folder, ["best.safetensors"])
    (folder / "best.safetensors").write_text("17 characters now")
    assert list(verify_folder(folder).values()) == ["changed"]


def test_a_folder_without_manifest_is_not_checked_and_cannot_be_verified(tmp_path: Path) -> None:
    check_files(tmp_path, ["config.json"])
    with pytest.raises(RunError, match=str(tmp_path)):
        verify_folder(tmp_path)


def test_a_replacement_of_somebody_else_leads_to_no_file_elsewhere(tmp_path: Path, folder: Path) -> None:
    home, run = tmp_path / "home", folder / "run"
    for place in (home, run / ".replacement" / "heads"):
        place.mkdir(parents=True)
        (place / "profile").write_text(place.name)
    write_manifest(run / ".replacement", ["heads/profile"])
    (run / "heads").symlink_to(home)
    with pytest.raises(RunError, match="leads out"):
        finish_replacement(run)
    assert (home / "profile").read_text() == "home"


def test_files_are_replaced_together_or_not_at_all_wherever_the_process_is_killed(tmp_path: Path) -> None:
    def make(folder: Path, *names: str) -> Path:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{name} in {folder.name}")
        write_manifest(folder, names)
        return folder

    old = make(tmp_path / "old", "config.json", "old.parquet", "heads/a")
    (old / "review.sqlite").write_text("decisions")
    make(old / ".growing", "config.json", "new.csv", "heads/a")
    folder, shown = shutil.copytree(old, tmp_path / "run"), []
    for _ in killed_at_every_operation(partial(replace_together, folder, folder / ".growing"), folder):
        finish_replacement(folder)
        shown.append((folder / "new.csv").exists())
        assert set(verify_folder(folder).values()) == {"intact"} and (folder / "old.parquet").exists() != shown[-1]
        assert (folder / "config.json").read_text().endswith("growing" if shown[-1] else "old")
        assert (folder / "review.sqlite").read_text() == "decisions" and not (folder / ".replacement").exists()
        shutil.rmtree(folder)
        shutil.copytree(old, folder)
    assert shown == sorted(shown) and len(shown) > 5 and shown[-1]

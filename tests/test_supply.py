"""What is installed: bounds of every dependency, a lock of CI with hashes and without addresses, pinned actions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).resolve().parents[1]
LOCK = PROJECT / "requirements-ci.txt"
CONTENT = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = CONTENT["project"]["optional-dependencies"]
NEEDED = [
    *CONTENT["project"]["dependencies"],
    *CONTENT["build-system"]["requires"],
    *(text for extra in ("dev", "docs", "onnx", "review", "timm") for text in EXTRAS[extra]),
]
ALL = sorted({*NEEDED, *(text for extra in EXTRAS.values() for text in extra)})


def locked() -> dict[str, list[Version]]:
    """The versions of every package in the lock: several where they depend on the platform."""
    found: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.+!]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(canonicalize_name(name), []).append(Version(version))
    return found


@pytest.mark.parametrize("text", ALL)
def test_a_dependency_has_a_lower_and_an_upper_bound(text: str) -> None:
    assert {bound.operator for bound in Requirement(text).specifier} == {">=", "<"}


def test_the_lock_has_every_dependency_within_its_bounds() -> None:
    versions = locked()
    for requirement in map(Requirement, NEEDED):
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found and all(map(requirement.specifier.contains, found)), f"{requirement}: run scripts/lock"
    for line in (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        assert versions[name] == [Version(version)]


def test_the_lock_has_a_hash_for_every_file_and_no_address() -> None:
    text = LOCK.read_text(encoding="utf-8")
    entries = text.replace("\\\n", " ").strip().splitlines()
    pattern = re.compile(r"[\w.-]+==\S+( +;[^#]*?)?( +--hash=sha256:[0-9a-f]{64})+")
    assert all(pattern.fullmatch(entry.strip()) for entry in entries)
    assert "://" not in text and "index" not in text and " @ " not in text


def test_actions_are_pinned_by_commit_and_named_by_version() -> None:
    workflows = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
    used = [line for path in workflows for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line

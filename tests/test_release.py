"""A release: one version, a package that is whole and small, and a wheel that works where labelgap is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import labelgap

PROJECT = Path(__file__).resolve().parents[1]
LARGEST_FILE = 1_000_000


def run(*command: str | Path, folder: Path = PROJECT, **variables: str) -> str:
    """Run a command without the paths of this environment; the output of one that fails is the error."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment | variables, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, PROJECT)
    return folder


def test_the_package_is_whole_and_its_wheel_works_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    """One test, so that the package is built once and not in every process of the tests.

    The environment has the wheel alone, without pip. The packages that labelgap depends on are those of the tests, by
    a ``.pth`` file, because PyTorch from a registry may be gigabytes. The checkout is not among them: Python does not
    follow the ``.pth`` files of a folder that a ``.pth`` file names. `docs/releasing.md` has the real installation.
    """
    wheel, sdist = dist / f"labelgap-{labelgap.__version__}-py3-none-any.whl", *dist.glob("*.tar.gz")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    check_wheel(wheel)
    check_sdist(sdist)
    empty = tmp_path / "empty"
    run(sys.executable, "-m", "venv", "--without-pip", empty)
    python = empty / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    packages = next((empty / "lib").glob("python*/site-packages"))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    found = run(python, "-c", "import labelgap; print(labelgap.__file__)", folder=tmp_path)
    assert Path(found.strip()).is_relative_to(packages)
    said = run(empty / "bin" / "labelgap", "demo", "--quick", "--device", "cpu", folder=tmp_path)
    for word in ("all labels", "ll-r", "mAP", "unknown labels are truly present", "runs/demo", "without --quick"):
        assert word in said
    study = tmp_path / "runs" / "demo"
    for name in ("study.json", "report.html", "ll-r/report.html", "ll-r/MODEL_CARD.md"):
        assert (study / name).is_file(), name
    assert f"Made by labelgap {labelgap.__version__}." in (study / "report.html").read_text(encoding="utf-8")


def check_wheel(wheel: Path) -> None:
    """The wheel has every file of the package that git would commit, and nothing else but its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = PROJECT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "labelgap").rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name}


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member.size for member in archive.getmembers() if member.isfile()}
    assert {"LICENSE", "README.md", "CITATION.cff", "src/labelgap/py.typed", "tests/conftest.py"} <= members.keys()
    assert max(members.values()) < LARGEST_FILE and sum(members.values()) < 20 * LARGEST_FILE
    data = re.compile(r"\.(np[zy]|pth?|safetensors|parquet|sqlite|onnx|jpe?g|zip|tar|time|log)$|^(runs|album|shared)/")
    assert not [name for name in members if data.search(name)]


def test_the_version_is_written_once_and_the_citation_and_the_changelog_have_it() -> None:
    version = labelgap.__version__
    written = [path for path in (PROJECT / "src").rglob("*.py") if f'"{version}"' in path.read_text(encoding="utf-8")]
    assert [path.name for path in written] == ["__init__.py"]
    assert f'version = "{version}"' not in (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text(encoding="utf-8"))
    assert len(citation["references"]) == 4, "the papers"
    assert citation["version"] == version or version.endswith(".dev0")
    released = f"## [{citation['version']}] - {citation['date-released']}"
    assert released in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()


def test_what_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    lines = (PROJECT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copies = (line.split() for line in lines if line.startswith("COPY ") and "--from" not in line)
    copied = [name for words in copies for name in words[1:-1]]
    allowed = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied and all((PROJECT / name).exists() and f"!{name}" in allowed for name in copied)
    assert 'ENTRYPOINT ["labelgap"]' in lines


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


def test_the_lock_has_every_dependency_within_its_bounds_with_hashes_alone() -> None:
    versions = locked()
    for requirement in map(Requirement, NEEDED):
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found and all(map(requirement.specifier.contains, found)), f"{requirement}: run scripts/lock"
    for line in (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        assert versions[name] == [Version(version)]
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

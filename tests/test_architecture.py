"""The architecture: layers, import cycles, public names, sizes, and what may be committed."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

import labelgap

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src"
PACKAGE = SOURCE / "labelgap"

PUBLIC_API = "__init__"
LAYERS = {
    "core": 0,
    "labels": 0,
    "metrics": 1,
    "losses": 1,
    "data": 2,
    "functional": 2,
    "models": 2,
    "training": 3,
    "audit": 4,
    "inference": 4,
    "studies": 5,
    "reporting": 6,
    "review": 7,
    "verification": 8,
    "cli": 9,
    PUBLIC_API: 9,
    "__main__": 9,
}
SAME_LAYER = {("labels", "core"), ("audit", "inference"), ("cli", PUBLIC_API), ("__main__", "cli")}
"""Imports inside one layer that are allowed: (importer, imported)."""

LONGEST_FUNCTION = 80
LARGEST_FILE = 1_000_000

FORBIDDEN = re.compile(
    r"(?<![\w.~})/:-])/(?:home|root|tmp|opt|mnt|work|workspace|Users|private|var)/\w|\b[A-Z]:\\Users\\"
    r"|https?://\S*(?:pypi|pythonhosted|registry|/simple\b|/whl\b)|file:/{3}|--(?:extra-)?index-url"
)
"""Paths of a machine, and addresses of registries."""


@cache
def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def relative(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def module_name(path: Path) -> str:
    """``labelgap.core.errors`` for ``labelgap/core/errors.py``, ``labelgap.core`` for ``labelgap/core/__init__.py``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of_file(path: Path) -> str:
    """The folder right under ``labelgap``, or the name of the file that lies there."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def package_of_module(name: str, packages: set[str]) -> str | None:
    """The package that a dotted name belongs to: None outside labelgap, the public API for any other name."""
    parts = name.split(".")
    if parts[0] != "labelgap":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in packages else PUBLIC_API


def imported_modules(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Every import of a file, wherever it stands, as (line, dotted name); ``package`` resolves the relative ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def layer_problems(tree: ast.AST, package_name: str, package: str, packages: set[str]) -> Iterator[tuple[int, str]]:
    """Every import of a higher layer, or of another package of the same layer that is not allowed."""
    for line, name in imported_modules(tree, package):
        other = package_of_module(name, packages)
        if other is None or other == package_name or (package_name, other) in SAME_LAYER:
            continue
        if LAYERS[other] > LAYERS[package_name]:
            yield line, f"{package_name} (layer {LAYERS[package_name]}) imports upwards: {name} (layer {LAYERS[other]})"
        elif LAYERS[other] == LAYERS[package_name]:
            yield line, f"{package_name} imports {name}, a package of its own layer ({LAYERS[package_name]})"


def bare_unknowns(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for side in [node.left, *node.comparators]:
                sides += side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else []
            if any(ast.unparse(side) in ("-1", "-1.0") for side in sides):
                yield node.lineno, f"compares with a bare -1: {ast.unparse(node)} (say UNKNOWN)"


def long_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield node.lineno, f"{node.name} has {length} lines, more than {LONGEST_FUNCTION}"


def report(problems: list[str]) -> str:
    return "\n  ".join([f"{len(problems)} found:", *problems])


def public_name_problems(path: Path) -> Iterator[str]:
    module = importlib.import_module(module_name(path))
    names = getattr(module, "__all__", None)
    if names is None or list(names) != sorted(set(names)):
        yield f"{relative(path)} has no __all__, or an unsorted one; in order: {sorted(set(names or ()))}"
    yield from (f"{relative(path)} has {name!r} in __all__ alone" for name in names or () if not hasattr(module, name))


def committed_files() -> list[Path]:
    """What is, or with ``git add`` would be, in the repository."""
    command = ["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout, so nothing says which files are committed")
    paths = (PROJECT / name for name in listed.decode().split("\0") if name)
    return sorted(path for path in paths if path.is_file())


def test_every_package_has_a_sorted_all_of_names_that_can_be_imported() -> None:
    problems = [what for path in sources() if path.name == "__init__.py" for what in public_name_problems(path)]
    assert not problems, report(problems)


def package_name(path: Path) -> str:
    return module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]


def upward_imports(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    return layer_problems(tree, package_of_file(path), package_name(path), set(LAYERS))


@pytest.mark.parametrize(
    "find", [upward_imports, lambda _, tree: bare_unknowns(tree), lambda _, tree: long_functions(tree)]
)
def test_imports_go_down_and_functions_are_short(find: Callable[[Path, ast.AST], Iterator[tuple[int, str]]]) -> None:
    problems = [f"{relative(path)}:{line} {what}" for path in sources() for line, what in find(path, parsed(path))]
    assert not problems, report(problems)


def import_graph(modules: dict[str, tuple[ast.AST, str]]) -> dict[str, set[str]]:
    """Which module imports which, lazy and ``TYPE_CHECKING`` imports included, given name: (tree, package)."""
    graph: dict[str, set[str]] = {}
    for name, (tree, package) in modules.items():
        imported = set()
        for _, target in imported_modules(tree, package):
            known = next((each for each in (target, target.rpartition(".")[0]) if each in modules), None)
            imported |= {known} if known is not None and known != name else set()
        graph[name] = imported
    return graph


def import_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    names = sorted(graph)
    place = {name: number for number, name in enumerate(names)}
    edges = np.zeros((len(names), len(names)), dtype=bool)
    for name, targets in graph.items():
        edges[place[name], [place[target] for target in targets]] = True
    _, component = connected_components(csr_array(edges), directed=True, connection="strong")
    groups: dict[int, list[str]] = {}
    for name, number in zip(names, component.tolist(), strict=True):
        groups.setdefault(number, []).append(name)
    return sorted(group for group in groups.values() if len(group) > 1)


def test_no_modules_import_each_other_in_a_cycle() -> None:
    cycles = import_cycles(import_graph({module_name(path): (parsed(path), package_name(path)) for path in sources()}))
    assert not cycles, report([" <-> ".join(group) for group in cycles])


def test_no_public_function_bears_the_name_of_a_subpackage() -> None:
    subpackages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    public = vars(labelgap)["__all__"]
    shadowing = [name for name in public if name in subpackages and not inspect.ismodule(getattr(labelgap, name))]
    assert not shadowing, f"{shadowing}: `labelgap.NAME` would be the function or the package, whichever came last"


def test_committed_files_are_small_and_name_no_machine_path_and_no_registry() -> None:
    problems = []
    for path in committed_files():
        if path.stat().st_size > LARGEST_FILE:
            problems.append(f"{relative(path)} has {path.stat().st_size:,} bytes")
        lines = path.read_bytes().decode(errors="replace").splitlines()
        found = ((number, line) for number, line in enumerate(lines, 1) if FORBIDDEN.search(line))
        problems += [f"{relative(path)}:{number} {line.strip()[:100]}" for number, line in found]
    assert not problems, report(problems)

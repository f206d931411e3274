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

MACHINE_PATH = re.compile(
    r"(?<![\w.~})/:-])/(?:home|root|tmp|opt|mnt|work|workspace|Users|private|var)/\w|\b[A-Z]:\\Users\\"
)
REGISTRY_ADDRESS = re.compile(
    r"https?://\S*(?:pypi|pythonhosted|registry|/simple\b|/whl\b)|file:/{3}|--(?:extra-)?index-url"
)


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
    """Every comparison with a written −1."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for side in [node.left, *node.comparators]:
                sides += side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else []
            if any(map(is_minus_one, sides)):
                yield node.lineno, f"compares with a bare -1: {ast.unparse(node)} (say UNKNOWN)"


def is_minus_one(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and node.operand.value == 1
    )


def long_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every function that is too long, its docstring counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield node.lineno, f"{node.name} has {length} lines, more than {LONGEST_FUNCTION}"


def every_source(find: Callable[[Path, ast.AST], Iterator[tuple[int, str]]]) -> list[str]:
    """What ``find`` finds in all files, as ``file:line what``."""
    return [f"{relative(path)}:{line} {what}" for path in sources() for line, what in find(path, parsed(path))]


def report(problems: list[str]) -> str:
    return "\n  ".join([f"{len(problems)} found:", *problems])


def public_name_problems(path: Path) -> Iterator[str]:
    """What is wrong with one package's ``__all__``."""
    name = module_name(path)
    try:
        module = importlib.import_module(name)
    except Exception as error:
        yield f"{relative(path)} cannot be imported: {error!r}"
        return
    names = getattr(module, "__all__", None)
    if names is None:
        yield f"{relative(path)} has no __all__"
        return
    if list(names) != sorted(set(names)):
        yield f"{relative(path)} has an unsorted __all__; in order: {sorted(set(names))}"
    for public in names:
        try:
            getattr(module, public)
        except Exception as error:
            yield f"{relative(path)} names {public!r} in __all__, but it cannot be had: {error!r}"


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


def test_every_package_has_a_layer() -> None:
    missing = sorted({package_of_file(path) for path in sources()} - set(LAYERS))
    assert not missing, f"{missing} have no layer: see LAYERS in {relative(Path(__file__))}"


def test_no_package_imports_a_higher_layer_or_another_package_of_its_own() -> None:
    packages = set(LAYERS)

    def find(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
        package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
        package_name = package_of_file(path)
        return layer_problems(tree, package_name, package, packages) if package_name in packages else iter(())

    problems = every_source(find)
    assert not problems, report(problems)


@pytest.mark.parametrize(
    "code",
    [
        "import labelgap.training",
        "import labelgap.training.loop.trainer as loop",
        "import labelgap",
        "from labelgap import training",
        "from labelgap import fit",
        "from labelgap.training.loop.trainer import run",
        "from labelgap.models import backbone",
        "from ..training import loop",
        "from .. import training",
        "def later():\n    from labelgap.training import loop",
        "if TYPE_CHECKING:\n    from labelgap.training import Run",
        "importlib.import_module('labelgap.training.loop.trainer')",
    ],
)
def test_the_layer_rule_finds_every_kind_of_forbidden_import(code: str) -> None:
    assert list(layer_problems(ast.parse(code), "data", "labelgap.data", set(LAYERS)))


@pytest.mark.parametrize(
    ("package_name", "code"),
    [
        ("data", "import numpy, torch.nn\nfrom training import loop"),
        ("data", "from labelgap.labels.codes import UNKNOWN\nfrom labelgap.core import errors"),
        ("data", "from . import csv\nfrom .csv import read\nfrom ..labels import table"),
        ("data", "from labelgap.data import csv\nimport labelgap.metrics.validation"),
        ("labels", "from labelgap.core.errors import InputError"),
        ("cli", "from labelgap import fit\nfrom labelgap.review import serve"),
    ],
)
def test_the_layer_rule_allows_a_package_itself_and_lower_layers(package_name: str, code: str) -> None:
    assert not list(layer_problems(ast.parse(code), package_name, f"labelgap.{package_name}", set(LAYERS)))


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
    """Every group of modules that import each other, directly or through others."""
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
    modules: dict[str, tuple[ast.AST, str]] = {}
    for path in sources():
        package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
        modules[module_name(path)] = (parsed(path), package)
    cycles = import_cycles(import_graph(modules))
    assert not cycles, report([" <-> ".join(group) for group in cycles])


def test_a_cycle_through_lazy_imports_is_found() -> None:
    codes = {
        "labelgap.a": "from labelgap.b import x",
        "labelgap.b": "def f():\n    import labelgap.c",
        "labelgap.c": "if TYPE_CHECKING:\n    from labelgap import a",
        "labelgap.d": "from labelgap.a import y",
    }
    graph = import_graph({name: (ast.parse(code), "labelgap") for name, code in codes.items()})
    assert import_cycles(graph) == [["labelgap.a", "labelgap.b", "labelgap.c"]]


def test_core_never_imports_labels() -> None:
    tree = ast.parse("from labelgap.labels.codes import UNKNOWN")
    assert list(layer_problems(tree, "core", "labelgap.core", set(LAYERS)))


def test_no_public_function_bears_the_name_of_a_subpackage() -> None:
    subpackages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    public = vars(labelgap)["__all__"]
    shadowing = [name for name in public if name in subpackages and not inspect.ismodule(getattr(labelgap, name))]
    assert not shadowing, f"{shadowing}: `labelgap.NAME` would be the function or the package, whichever came last"


def test_no_file_compares_with_a_bare_minus_one() -> None:
    problems = every_source(lambda path, tree: bare_unknowns(tree))
    assert not problems, report(problems)


@pytest.mark.parametrize("code", ["x == -1", "-1 != x", "x is -1", "0 < x <= -1", "f(labels[y == -1.0])", "x in (-1,)"])
def test_a_bare_minus_one_is_found_wherever_it_is_compared(code: str) -> None:
    assert list(bare_unknowns(ast.parse(code)))


@pytest.mark.parametrize("code", ["x == UNKNOWN", "x[-1] == 1", "x - 1 == y", "y = -1", "x == -2", "x.sum(-1) > 1"])
def test_a_minus_one_that_is_not_compared_is_left_alone(code: str) -> None:
    assert not list(bare_unknowns(ast.parse(code)))


def test_functions_are_short() -> None:
    problems = every_source(lambda path, tree: long_functions(tree))
    assert not problems, report(problems)


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_committed_files_name_no_machine_path_and_no_registry() -> None:
    problems = []
    for path in committed_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, start=1):
            if MACHINE_PATH.search(line) or REGISTRY_ADDRESS.search(line):
                problems.append(f"{relative(path)}:{number} {line.strip()[:100]}")
    assert not problems, report(problems)


@pytest.mark.parametrize("parts", [("", "home", "someone"), ("read '", "tmp", "a.csv"), ("C:", "Users", "someone")])
def test_a_machine_path_is_recognised(parts: tuple[str, ...]) -> None:
    separator = "\\" if parts[0] == "C:" else "/"
    assert MACHINE_PATH.search(separator.join(parts))


@pytest.mark.parametrize(
    "text", ["data/home/a", "../tmp/a", "#!/usr/bin/env bash", "photos/", "$OUT/tmp/a", "/path/to/VOC"]
)
def test_a_path_inside_the_project_is_no_machine_path(text: str) -> None:
    assert not MACHINE_PATH.search(text)


@pytest.mark.parametrize("ending", ["a.org/simple", "registry.a.org/b", "a.org/whl/cpu"])
def test_a_registry_address_is_recognised(ending: str) -> None:
    assert REGISTRY_ADDRESS.search("https:" + "//" + ending)


def test_committed_files_are_small() -> None:
    sizes = {path: path.stat().st_size for path in committed_files()}
    problems = [f"{relative(path)} has {size:,} bytes" for path, size in sizes.items() if size > LARGEST_FILE]
    assert not problems, report(problems)

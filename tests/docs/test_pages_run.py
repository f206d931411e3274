"""The tutorials, and the Python of other pages, run as they are written: in one folder, one page after the other."""

from __future__ import annotations

import doctest
import importlib.metadata
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.builder.commands import command_pages
from docs.builder.methods import method_pages
from tests.cli.conftest import call, parse_command, undraw
from tests.docs.blocks import PROJECT, Block, blocks_of, commands_of, pages

import labelgap as lg
import labelgap.data.registry as dataset_registry
import labelgap.losses.base.registry as loss_registry
from labelgap.cli.main import make_app
from labelgap.labels import ABSENT, PRESENT
from labelgap.models import inference
from labelgap.models.registry import BACKBONES
from labelgap.review.database import FILE
from labelgap.review.store import Decision, DecisionStore, LabelKey

ARRAYS = """
import numpy as np, torch, labelgap as lg
X, Y = np.random.default_rng(0).normal(size=(40, 6)), np.random.default_rng(1).integers(-1, 2, (40, 3))
"""
LOOP = (
    ARRAYS
    + """
epochs, lr, rows, network = 2, 0.01, torch.arange(4), torch.nn.Linear(6, 3)
images, labels = torch.randn(4, 6), torch.tensor([[1, -1, 0]] * 4)
all_labels, loader, val_loader, scores = labels, [(images, labels)], [(images, labels)], None
optimizer = torch.optim.SGD(network.parameters(), lr=lr)
"""
)
FEATURES = (
    ARRAYS
    + """
arrays = {"features": X, "labels": Y > 0}
splits = ("train", "val", "test")
np.savez("pets.npz", **{f"{split}_{name}": array for split in splits for name, array in arrays.items()})
"""
)
OBSERVED = FEATURES + "data = lg.load('features', 'pets.npz').observe(positives=1)\n"
VARIED = OBSERVED + "lg.compare(data, ['ll-r'], vary={'delta_rel': [1, 20]}, seeds=1, epochs=2, out='runs/compare')\n"
RUN = """
import labelgap as lg
data = lg.load("digits", train=40, val=20, test=20)
lg.fit(data, "ll-ct", {"delta_rel": 20}, epochs=2, out="runs/a", device="cpu")
"""
ALBUM = (
    *(f"docs/tutorials/{name}.md" for name in ("own-photos", "review", "plugin", "cluster")),
    *("docs/audit.md", "README.md"),
)
"""Pages that use what the ones before them made."""
PAGES = {
    **dict.fromkeys(ALBUM, ""),
    "docs/tutorials/own-loop.md": "",
    "docs/tutorials/scikit-learn.md": "",
    "README.md": ARRAYS
    + "epoch, logits, labels = 1, torch.randn(40, 3, requires_grad=True), torch.tensor(Y)\n"
    + "scores = torch.rand(40, 3)",
    "docs/compare.md": OBSERVED,
    "docs/extending.md": ARRAYS
    + """
import sys, types
mypackage = sys.modules["mypackage"] = types.ModuleType("mypackage")
class MyLoss(lg.losses.AssumeNegative):
    def __init__(self, weight=0.2):
        super().__init__()
        self.weight = weight
class MyNetwork(torch.nn.Conv2d):
    input_spec = lg.models.InputSpec(size=48, mean=(0.2,), std=(0.2,), channels=1)
    def __init__(self):
        super().__init__(1, 4, 3)
for each in (MyLoss, MyNetwork):
    each.__module__ = "mypackage"
    setattr(mypackage, each.__name__, each)
data, load_mine = lg.load("digits", train=20, val=10, test=10), lambda: None
""",
    "docs/gallery.md": "",
    "docs/linear-eval.md": FEATURES,
    "docs/own-data.md": ARRAYS + "data, table = lg.load('digits', train=20), lg.LabelTable.from_dense(Y)",
    "docs/own-loop.md": LOOP,
    "docs/figures.md": VARIED + RUN,
    "docs/runs.md": RUN,
}
"""Pages whose Python is run, and what their blocks take as given; of tutorials also the commands."""


class Session:
    """Runs the blocks of pages in the current folder, and keeps what each printed."""

    def __init__(self, page: str, capture: pytest.CaptureFixture[str]) -> None:
        self.page, self.capture, self.printed = page, capture, ""
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        text = (PROJECT / page).read_text(encoding="utf-8")
        self.blocks = list(blocks_of(text, page))

    def run(self) -> None:
        exec(compile(PAGES[self.page], f"setup of {self.page}", "exec"), self.namespace)
        self.capture.readouterr()
        for block in self.blocks:
            if block.mark.startswith("output"):
                self.check_output(block)
            elif block.title:
                Path(block.title).parent.mkdir(exist_ok=True)
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.mark:
                for command in commands_of(block):
                    INSTEAD.get(command, lambda: None)()
            elif block.language == "python":
                exec(compile("\n" * block.line + block.text, str(PROJECT / self.page), "exec"), self.namespace)
            elif block.language == "bash" and "tutorials" in self.page:
                self.run_commands(block)

    def run_commands(self, block: Block) -> None:
        self.capture.readouterr()
        for words in map(shlex.split, commands_of(block)):
            if words[0] == "python":
                runpy.run_path(words[1], run_name="__main__")
            else:
                assert call(*words[1:]) == 0, (str(block), self.capture.readouterr())
        self.printed = self.capture.readouterr().out

    def check_output(self, block: Block) -> None:
        """Compare what was printed; a line of "..." stands for any number of lines, or none.

        Seconds are not compared; other numbers are, unless the block says that they are others elsewhere.
        """
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        varying = r"\d+(\.\d+)?(?= s\b)" if block.mark == "output" else r"\d+(\.\d+)?"
        expected = re.sub(varying, "0", block.text.replace("\n...\n", "\n..."))
        printed = re.sub(varying, "0", self.printed)
        assert doctest.OutputChecker().check_output(expected, printed, flags), f"{block}\n{self.printed}"


def decide() -> None:
    """Answer the six likeliest candidates: four are present."""
    rows = lg.find_missing("runs/first").of_kind("missing").slice(0, 6).to_pylist()
    with closing(DecisionStore(Path("runs/first") / FILE)) as store:
        for number, row in enumerate(rows):
            key = LabelKey(row["split"], row["image"], row["class"])
            made = Decision(key, PRESENT if number < 4 else ABSENT, str(number), kind="missing", score=row["score"])
            store.append([made], reviewer="ann", client="window")


def install() -> None:
    """Make the package of the plug-in's tutorial look installed: what pip would write beside it.

    `tests/examples/test_plugin.py` installs one, and runs the commands in a process that has just started.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = Path("my_method-0.1.0.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    pairs = {group: "\n".join(map(" = ".join, each.items())) for group, each in project["entry-points"].items()}
    points = [f"[{group}]\n{lines}" for group, lines in pairs.items()]
    (folder / "entry_points.txt").write_text("\n".join(points) + "\n")
    assert importlib.metadata.PathDistribution(folder).entry_points
    loss_registry._registry.cache_clear()


INSTEAD = {"labelgap review runs/first": decide, "pip install --no-deps --no-build-isolation .": install}
"""What the tests do instead of a command that is marked."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; what a page registers is gone after it. Every CPU computes in float32, as the pages' did."""
    monkeypatch.setattr(inference, "cpu_precision", lambda: "float32")
    lg.methods()
    for registry in (loss_registry._METHODS, BACKBONES, dataset_registry._REGISTRY):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    loss_registry._registry.cache_clear()


@pytest.mark.parametrize("page", sorted(set(PAGES) - set(ALBUM)))
def test_a_page_runs_as_it_is_written(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Session(page, capsys).run()


@pytest.mark.slow
def test_the_album_pages_run_in_order(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in ALBUM:
        Session(page, capsys).run()
        undraw(monkeypatch)  # the report of the first page has its drawings
    made = "runs/first/report.html better.csv better.provenance.csv runs/second/report.html"
    made += " runs/shards/report.html runs/plugin/report.html runs/python/report.html"
    assert all((folder / name).is_file() for name in made.split())
    before, after = ((folder / name).read_text(encoding="utf-8") for name in ("tags.csv", "better.csv"))
    assert len(re.findall(r",1\b", after)) == len(re.findall(r",1\b", before)) + 4


PLAIN = {"csv", "json", "text", "yaml"}
"""Languages of blocks that are not run: data and output."""
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
WRITTEN = {"predict_onnx.py"}
"""Scripts that labelgap writes."""
FOREIGN = {"psycopg[binary]"}
GENERATED = {**command_pages(), **method_pages()}
COMMANDS: dict[str, Any] = vars(typer.main.get_command(make_app()))["commands"]
BLOCKS = [
    *(block for path in pages() for block in blocks_of(path.read_text("utf-8"), path.relative_to(PROJECT).as_posix())),
    *(block for name, text in GENERATED.items() for block in blocks_of(text, name)),
]


def parse(words: list[str]) -> None:
    """Let the parser of the program take a command: its name, options and the types of their values."""
    if not words[0].startswith("--"):
        parse_command(words)
    for option, value in pairwise(words):
        if option in ("--method", "--methods"):
            unknown = set(value.split(",")) - {*lg.methods(), "auto", "all", "soft-negative"}
            assert not unknown, f"no method {unknown}"


def check_command(command: str, titles: set[str]) -> None:
    """Check that a command is one of ours and takes these arguments, or that its file exists."""
    words = shlex.split(command)
    if words[0] == "torchrun":
        words = words[words.index("-m") + 1 :]
    if words[0] == "labelgap":
        parse(words[1:])
    elif words[0] == "python":
        script = PROJECT / words[1]
        assert words[1] in titles | WRITTEN or script.is_file(), f"there is no {words[1]}"
        if script.is_file():
            source = script.read_text(encoding="utf-8")
            given = {word: word[2:].replace("-", "_") for word in words[2:] if word.startswith("--")}
            missing = [word for word, name in given.items() if not re.search(rf'\b{name}["=]', source)]
            assert not missing, f"{words[1]} has no {missing}"
    elif words[:2] == ["pip", "install"]:
        named = {extra for extras in re.findall(r"labelgap\[(.+)\]", words[2]) for extra in extras.split(",")}
        assert (named or words[2] in FOREIGN) and named <= set(EXTRAS), command
    else:
        assert (PROJECT / words[0]).is_file(), f"{words[0]} is neither labelgap nor a script of the project: mark it"


def test_every_command_is_one_that_the_program_takes() -> None:
    titles = {block.title for block in BLOCKS}
    problems = []
    for block in BLOCKS:
        if block.language not in ("bash", "console") or block.mark:
            continue
        for command in commands_of(block):
            try:
                check_command(command, titles)
            except (Exception, SystemExit) as error:
                problems.append(f"{block} {command}\n    {getattr(error, 'message', error)}")
    assert not problems, "\n".join(problems)


def test_every_block_names_its_language_and_data_can_be_read() -> None:
    problems = []
    for block in BLOCKS:
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language not in PLAIN | {"bash", "console", "python"}:
            problems.append(f"{block}: name the language after the fence")
        if block.mark.startswith("output") and block.language != "text":
            problems.append(f"{block}: output is text")
    assert not problems, "\n".join(problems)


def test_commands_in_sentences_are_taken_by_the_program_as_far_as_they_are_written() -> None:
    problems = []
    for path in pages():
        text = re.sub(r"^ *```.*?^ *```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for command in re.findall(r"`labelgap ([a-z-]+[^`…]*)`", text):
            words = shlex.split(command)
            known = COMMANDS.get(words[0])
            options = {name for each in getattr(known, "params", ()) for name in (*each.opts, *each.secondary_opts)}
            for subcommand in getattr(known, "commands", {}).values():
                options |= {name for each in subcommand.params for name in each.opts}
            given = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--help"}
            if known is None or not given <= options:
                problems.append(f"{path.relative_to(PROJECT)}: `labelgap {command}`")
    assert not problems, "\n".join(problems)


def python_blocks() -> list[Block]:
    return [block for block in BLOCKS if block.language == "python" and not block.title and block.page not in GENERATED]


def test_every_python_block_is_run_by_a_page_or_says_why_not() -> None:
    left = [str(block) for block in python_blocks() if not block.mark and Path(block.page).as_posix() not in PAGES]
    assert not left, f"neither run (PAGES) nor marked: {left}"

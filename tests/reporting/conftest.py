"""Run folders written by hand, so that a page can be tested in a second and every number in it is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from markupsafe import Markup
from numpy.typing import NDArray

import labelgap
from labelgap.audit.candidates import COLUMNS
from labelgap.core.findings import Note
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import NoSplit
from labelgap.data.images import ArrayImages
from labelgap.data.split import hold_out_val
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.metrics import Thresholds
from labelgap.metrics.validation import ThresholdMark
from labelgap.studies import Study, StudyMember
from labelgap.training import Run, open_run
from labelgap.training.config import RunConfig, write_config
from labelgap.training.evaluation import evaluate_scores
from labelgap.training.history import write_history
from labelgap.training.run_folder import write_predictions

EPOCHS = 6
RunMaker = Callable[..., Run]
EveryRun = dict[str, tuple[Run, Dataset | None]]
BLOCKS, BREAK = {"caption", "details", "div", "figcaption", "h1", "h2", "h3", "li", "p", "section", "tr"}, "\x1e"


@dataclass(frozen=True)
class Recipe:
    """What a run made by hand should look like."""

    method: str = "ll-r"
    skill: float = 2.0  # how far its test logits are from noise
    select: str = "clean"
    test: bool = True  # whether it was measured there
    val: bool = True
    truth: bool = True  # whether its trace knows the truth
    trace: Any = "all"
    finished: bool = True
    seed: int = 0  # of its noise
    options: Mapping[str, Any] = field(default_factory=dict)


def make_data(classes: tuple[str, ...] = ("cat", "dog", "owl", "yak"), images: int = 24, seed: int = 0) -> Dataset:
    """Small coloured noise with complete truth; train shows one positive each."""
    random = np.random.default_rng(seed)
    splits = {}
    for name in ("train", "val", "test"):
        full = (random.random((images, len(classes))) < 0.4).astype(np.int8)
        full[0], full[1] = 1, 0
        table = LabelTable.from_dense(full, classes, [f"{name}-{row:03d}.jpg" for row in range(images)])
        pixels = random.integers(0, 255, (images, 20, 30, 3), dtype=np.uint8)
        splits[name] = Split(name, ArrayImages(pixels, table.images), table, table)
    data = Dataset("pets", splits["train"], splits["val"], splits["test"], findings=(Note("blank means unknown"),))
    return data.observe(positives=1, negatives=0)


def codes_of_train(data: Dataset) -> NDArray[np.int8]:
    """The truth of train, also where it is hidden."""
    assert data.train.truth is not None
    return data.train.truth.to_dense()


def make_trace(data: Dataset, recipe: Recipe) -> dict[str, NDArray[Any]]:
    """A trace in which false negatives are memorized, unless the method rejects them."""
    observed, truth = data.train.labels.to_dense(), codes_of_train(data)
    rows, columns = np.divmod(np.arange(observed.size), observed.shape[1])
    hidden = (observed.ravel() == UNKNOWN) & (truth.ravel() == 1)
    steps = np.arange(EPOCHS, dtype=np.float32)[:, None]
    falls = 0.08 if recipe.method.startswith("ll") else 0.45
    loss = np.where(hidden, 2.4 * np.exp(-falls * steps), 0.6 * np.exp(-0.5 * steps)).astype(np.float32)
    modified = hidden & (steps > 0) & (np.arange(observed.size) % 3 < steps) & recipe.method.startswith("ll")
    known = truth.ravel() if recipe.truth else np.full(observed.size, UNKNOWN, dtype=np.int8)
    parts = {"row": rows, "column": columns, "observed": observed.ravel(), "truth": known}
    return {**parts, "loss": loss, "logit": loss, "modified": modified}


def make_run(folder: Path, data: Dataset, recipe: Recipe) -> Run:
    """Write the folder of a run and open it."""
    folder.mkdir(parents=True, exist_ok=True)
    source = {"name": data.name, "path": "/somewhere/private/tags.csv", "options": {}, "steps": []}
    settings: dict[str, Any] = {
        "epochs": EPOCHS,
        "lr": 3e-3,
        "backbone_lr": 3e-3,
        "batch_size": 64,
        "flip": False,
        "seed": recipe.seed,
    }
    settings |= {"select": recipe.select, "trace": recipe.trace, "method": recipe.method, "options": recipe.options}
    network = {"backbone": "small-cnn", "protocol": "end-to-end", "why": None}
    write_config(folder, RunConfig.checked(data=source, classes=data.classes, **network, **settings))
    scored = {} if recipe.select == "last" else {"select": recipe.select, "classes_counted": len(data.classes)}
    history = [
        {"epoch": epoch, "loss": 0.7 / epoch, "seconds": 1.5}
        | (scored and {**scored, "score": 0.5 + 0.05 * epoch - 0.008 * epoch**2})
        for epoch in range(1, EPOCHS + 1)
    ]
    write_history(folder, history, summary_of(folder, data, recipe) if recipe.finished else None)
    if recipe.trace != "off":
        np.savez(folder / "traces.npz", **make_trace(data, recipe))  # type: ignore[arg-type]
    return open_run(folder)


def summary_of(folder: Path, data: Dataset, recipe: Recipe) -> dict[str, Any]:
    """Measure made-up logits, and write them down as predictions."""
    random = np.random.default_rng(recipe.seed + 1)
    marks: list[ThresholdMark] = ["measured"] * len(data.classes)
    cuts = Thresholds(np.full(len(data.classes), 0.5), tuple(marks))
    summary: dict[str, Any] = {"best_epoch": 3, "epochs": EPOCHS, "interrupted": False, "seconds": 1.5 * EPOCHS}
    summary |= {"select": recipe.select, "score": None}
    summary["thresholds"] = {"values": cuts.values.tolist(), "marks": list(cuts.marks)}
    scores: dict[str, tuple[Sequence[str], NDArray[np.float32]]] = {}
    for split in data.splits:
        if split.name == "train" or not getattr(recipe, split.name):
            continue
        known = split.truth.to_dense() if split.truth is not None else split.labels.to_dense()
        logits = (recipe.skill * (2 * known - 1) + random.normal(0, 2, known.shape)).astype(np.float32)
        summary[split.name] = evaluate_scores(logits, split.evaluation_labels, cuts)
        scores[split.name] = (split.labels.images, logits)
    write_predictions(folder, scores, data.classes)
    return summary


def write_audit(run: Run, estimate: dict[str, Any]) -> None:
    """Write what an audit of a run expects to be missing."""
    metadata = {"format": 1, "runs": [], "data": {}, "unknown_total": 9, "unknown_per_class": {}, "method": "x"}
    schema = pa.schema(list(COLUMNS.items()), {"labelgap": json.dumps({**metadata, "estimate": estimate})})
    pq.write_table(schema.empty_table(), run.path / "candidates.parquet")


def make_study(folder: Path, data: Dataset, **recipes: Recipe) -> Study:
    """Write a study of runs by label; ``all_labels`` is the ceiling."""
    members = []
    for label, recipe in recipes.items():
        make_run(folder / label, data, recipe)
        members.append(StudyMember(label, label, extra_labels=label == "all_labels"))
    study = Study(folder, "What do missing labels cost?", members)
    study.write()
    return study


class Reader(HTMLParser):
    """Collects tags, addresses and visible words of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags, self.addresses, self.words = list[str](), list[str](), list[str]()
        self._hidden, self.text = False, path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.visible = " ".join("".join(self.words).split())
        lines = (" ".join(line.split()) for line in "".join(self.words).split(BREAK))
        self.shown = "\n".join(line for line in lines if line).replace(labelgap.__version__, "#")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden = tag in ("style", "script")
        self.words.append(BREAK if tag in BLOCKS else " ")
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


@pytest.fixture
def drawn() -> None:
    """For tests whose pages shall have their figures."""


@pytest.fixture(autouse=True)
def figure_descriptions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the description of a figure in its place: drawing takes most of the time of a page."""
    if "drawn" not in request.fixturenames:
        described = "labelgap.reporting.page.both_screens"
        monkeypatch.setattr(described, lambda _, __, text: (Markup.escape(text), Markup("")))


@pytest.fixture(scope="session")
def data() -> Dataset:
    return make_data()


@pytest.fixture
def run_of(tmp_path: Path, data: Dataset) -> RunMaker:
    """Make a run: ``run_of(method="an")``, fields of ``Recipe``; ``on=`` takes other data."""

    def made(on: Dataset = data, folder: str = "first", **wanted: Any) -> Run:
        return make_run(tmp_path / folder, on, replace(Recipe(), **wanted))

    return made


def renamed(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    def table(old: LabelTable) -> LabelTable:
        return LabelTable.from_dense(old.to_dense(), classes, old.images)

    def split(old: Split | None) -> Any:
        return None if old is None else replace(old, labels=table(old.labels), truth=old.truth and table(old.truth))

    return Dataset(data.name, split(data.train), split(data.val), split(data.test), data.findings)


@pytest.fixture
def study(tmp_path: Path, data: Dataset) -> Study:
    """A study of an, ll-r, and a ceiling that hid nothing."""
    return make_study(
        tmp_path / "study",
        data,
        all_labels=Recipe(method="bce", skill=4.0, truth=False),
        an=Recipe(method="an", skill=1.0),
        ll=Recipe(method="ll-r", skill=2.0, seed=3),
    )


@pytest.fixture
def positives_only(data: Dataset) -> Dataset:
    """No val, and test labels of which only presents are known."""
    assert data.test is not None
    shown = data.test.labels.observe(positives="all", negatives=0)
    return Dataset("pets", data.train, None, Split("test", data.test.images, shown))


@pytest.fixture
def every_run(run_of: RunMaker, data: Dataset, positives_only: Dataset) -> EveryRun:
    """Runs of which more or less is known, and the data beside their pages."""
    unsplit = replace(data, val=None, test=None, findings=(NoSplit(len(data.train)),))
    blind, unmeasured = {"val": False, "test": False}, replace(data, test=None)
    val = data.split("val")
    partial = replace(unmeasured, val=Split("val", val.images, val.labels.observe(positives="all", negatives=0)))
    corrected = run_of(folder="corrected", method="ll-cp")
    revised = [Revision(f"train-{row:03d}.jpg", "cat", PRESENT, "ll-cp", epoch=2) for row in range(3)]
    Revisions(revised).to_parquet(corrected.path / "revisions.parquet")
    run, untruthful = run_of(), run_of(folder="untruthful", select="last", truth=False, **blind)
    untraced, bare = run_of(folder="untraced", trace="off"), Dataset("pets", replace(data.train, truth=None))
    return {
        "a run": (run, data),
        "no data": (run, None),
        "positives alone": (run_of(positives_only, "positives", select="last", val=False), positives_only),
        "no truth": (untruthful, bare),
        "no truth, no data": (untruthful, None),
        "held-out val": (run_of(hold_out_val(unsplit), "held-out", select="last", **blind), unsplit),
        "observed val": (run_of(partial, "observed", select="observed", test=False, truth=False), partial),
        "no test": (run_of(folder="no-test", test=False), unmeasured),
        "no test, the last epoch": (run_of(folder="last", select="last", test=False), unmeasured),
        "no trace": (untraced, data),
        "no trace, no data": (untraced, None),
        "unfinished": (run_of(folder="unfinished", finished=False), data),
        "revisions": (corrected, None),
    }

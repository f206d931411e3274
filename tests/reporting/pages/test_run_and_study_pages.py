"""The page as a whole: self-contained, safe, honest, and written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup

from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import NoSplit
from labelgap.data.split import hold_out_val
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.reporting import class_separability, study_figure, write_report
from labelgap.studies import Study, StudyMember
from labelgap.training import Run
from labelgap.training.run_folder import read_predictions

EVIL = '<script>alert("1")</script>'


class Reader(HTMLParser):
    """Collects tags, addresses and visible words of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self._hidden = False
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._hidden = tag in ("style", "script")
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)

    @property
    def visible(self) -> str:
        return " ".join(" ".join(self.words).split())


def renamed(data: Dataset, classes: tuple[str, ...]) -> Dataset:
    def table(old: LabelTable) -> LabelTable:
        return LabelTable.from_dense(old.to_dense(), classes, old.images)

    def split(old: Split | None) -> Any:
        return None if old is None else replace(old, labels=table(old.labels), truth=old.truth and table(old.truth))

    return Dataset(data.name, split(data.train), split(data.val), split(data.test), data.findings)


def check_self_contained(page: Reader) -> None:
    assert not {"link", "iframe", "object", "embed", "base"} & set(page.tags)
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert page.tags.count("script") == len(scripts) <= 1, "at most one script, and it loads nothing"
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in page.text, "a browser runs no other script"
    for address in page.addresses:
        inside = address.startswith(("data:image/", "data:text/csv;", "#"))
        assert inside or re.fullmatch(r"[\w%./-]+/report\.html", address)
    assert "@import" not in page.text and "http://" not in page.text and "https://" not in page.text
    assert set(re.findall(r"url\((.)", page.text)) <= {"#"}
    assert len(page.text) < 1_500_000


@pytest.fixture
def drawn() -> None:
    """Asked for by the tests that look at real figures."""


@pytest.fixture(autouse=True)
def figure_descriptions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the description of a figure in its place: drawing takes most of the time of a page."""

    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(
            "labelgap.reporting.page.both_screens", lambda _, __, text: (Markup.escape(text), Markup(""))
        )


@pytest.mark.usefixtures("drawn")
def test_the_page_of_a_run_needs_nothing_but_itself_and_escapes_what_users_named(
    run_of: Callable[..., Run], data: Dataset
) -> None:
    evil = renamed(data, (EVIL, "dog", "owl", "$x$"))
    page = Reader(write_report(run_of(evil, select="observed"), data=evil))
    check_self_contained(page)
    assert EVIL not in page.text and EVIL in page.visible
    assert "observed ranking (not an accuracy)" in page.visible


def test_the_page_of_a_study_needs_nothing_but_itself_and_escapes_what_users_named(study: Study, data: Dataset) -> None:
    members = [StudyMember(EVIL + member.label, member.folder, member.extra_labels) for member in study.members]
    for member in members:
        (study.path / member.folder / "report.html").touch()
    page = Reader(write_report(Study(study.path, EVIL, members), data=data))
    check_self_contained(page)
    assert EVIL not in page.text and EVIL in page.visible
    assert {"an/report.html", "ll/report.html", "all_labels/report.html"} <= set(page.addresses)


def test_a_study_links_to_no_page_that_is_not_there(study: Study) -> None:
    write_report(study.run(study.members[1]))
    page = Reader(write_report(study))
    assert [address for address in page.addresses if address.endswith("report.html")] == ["an/report.html"]


def test_a_folder_name_cannot_become_a_harmful_address(study: Study) -> None:
    folder = study.path / "javascript:alert(1)"
    (study.path / "an").rename(folder)
    (folder / "report.html").touch()
    page = Reader(write_report(Study(study.path, "x", [StudyMember("an", folder.name)])))
    assert "javascript%3Aalert%281%29/report.html" in page.addresses


def test_images_are_in_it_unless_they_are_left_out(run_of: Callable[..., Run], study: Study, data: Dataset) -> None:
    for what in (run_of(), study):
        assert "data:image/" in write_report(what, data=data).read_text()
        without = Reader(write_report(what, data=data, images=False))
        assert "data:image/" not in without.text and "img" not in without.tags
        assert ("Labels as they change" in without.visible) is (what is not study)
        assert "data:image/" not in write_report(what).read_text()


def test_what_was_measured_is_what_is_shown(run_of: Callable[..., Run], data: Dataset) -> None:
    run = run_of()
    page = Reader(write_report(run, data=data))
    for name in ("map", "f1_micro", "f1_macro"):
        assert f"{100 * run.metrics['test'][name]:.1f}" in page.visible
    assert "all 4 classes, measured on 24 images" in page.visible
    assert "4 measured on val" in page.visible
    assert "blank means unknown" in page.visible
    present, absent, unknown = data.train.labels.counts().total
    assert f"train 24 {present} {absent} {unknown} (" in page.visible
    assert "large loss, rejection" in page.visible and "was revised" not in page.visible
    assert "val mAP" in page.visible
    places = [page.visible.index(f" {title} ") for title in ("Classes", "Examples", "Learning", "Memorization of")]
    assert places == sorted(places), "what everybody looks for is before what explains the training"


def test_a_number_that_the_known_labels_do_not_support_is_not_shown(
    run_of: Callable[..., Run], positives_only: Dataset
) -> None:
    run = run_of(positives_only, select="last", val=False)
    page = Reader(write_report(run, data=positives_only))
    assert run.metrics["test"]["map"] is None
    assert "The known labels support no accuracy" in page.visible
    assert "test mAP" not in page.visible and "–" not in page.visible.split(" Classes ")[0], "no row of dashes"
    assert "estimated mAP 100.0 if missing at random labels known" in page.visible
    known = positives_only.train.labels.counts().total
    assert f"{known[0]} present and 0 absent of {sum(known)} labels of train are known" in page.visible
    assert "To measure an accuracy: Label 24 random images in full" in page.visible
    assert "labelgap review first --random 24 labelgap evaluate first first-review" in page.visible
    assert "labelgap audit first labelgap review first" in page.visible
    assert "nan" not in page.visible.lower().split() and "None" not in page.visible


def test_an_observed_ranking_is_never_called_an_accuracy(run_of: Callable[..., Run]) -> None:
    page = Reader(write_report(run_of(select="observed", val=False)))
    assert "observed ranking (not an accuracy)" in page.visible
    assert "val mAP" not in page.visible


def test_a_run_without_truth_val_or_test_has_a_page(run_of: Callable[..., Run], data: Dataset) -> None:
    bare = Dataset("pets", replace(data.train, truth=None))
    run = run_of(select="last", val=False, test=False, truth=False)
    for given in (None, bare):
        page = Reader(write_report(run, data=given))
        assert "There is no test split" in page.visible
        assert "false negative" not in page.visible and "test mAP" not in page.visible
        assert "Which unknown labels are truly present is not known here" in page.visible
        assert "How many of them are truly present is not known here" in page.visible
        assert ("whether it is right is not known" in page.visible) is (given is not None)
        assert "the observed positives can only be compared with all unknown labels" in page.visible
        assert "AUC" not in page.visible and "separable" not in page.visible, "a section without numbers is left out"


def test_images_that_a_network_held_out_are_no_labels_that_it_saw(run_of: Callable[..., Run], data: Dataset) -> None:
    unsplit = replace(data, val=None, test=None, findings=(NoSplit(len(data.train)),))
    trained = hold_out_val(unsplit)
    assert trained.val is not None and len(trained.train) < len(data.train)
    run = run_of(trained, select="last", val=False, test=False)
    page = Reader(write_report(run, data=unsplit))
    present, absent, unknown = trained.train.labels.counts().total
    assert f"train {len(trained.train)} {present} {absent} {unknown} (" in page.visible
    assert f"val {len(trained.val)} " in page.visible


@pytest.mark.parametrize(("select", "chosen"), [("clean", "the epoch and the thresholds"), ("last", "the thresholds")])
def test_what_val_did_not_choose_is_not_said_of_it(
    run_of: Callable[..., Run], data: Dataset, select: str, chosen: str
) -> None:
    page = Reader(write_report(run_of(select=select, test=False), data=replace(data, test=None)))
    assert f"val (used to select {chosen})" in page.visible and f"Val chose {chosen}" in page.visible


def test_a_run_without_a_trace_says_how_to_get_one(run_of: Callable[..., Run], data: Dataset) -> None:
    for given, told in ((None, False), (data, True)):
        page = Reader(write_report(run_of(trace="off"), data=given))
        assert "false negative" not in page.visible and ("--trace all" in page.visible) is told


def test_the_losses_of_kinds_of_labels_and_what_was_modified_are_in_tables(
    run_of: Callable[..., Run], study: Study, data: Dataset
) -> None:
    assert data.train.truth is not None
    observed, truth = (table.to_dense().ravel().tolist() for table in (data.train.labels, data.train.truth))
    pairs = list(zip(observed, truth, strict=True))
    hidden, absent = pairs.count((UNKNOWN, 1)), pairs.count((UNKNOWN, 0))
    page = Reader(write_report(run_of()))
    ends = 2.4 * math.exp(-0.08 * 5), 0.6 * math.exp(-0.5 * 5)  # the losses of make_trace in its last epoch
    assert f"(false negative) {hidden} 2.400 {ends[0]:.3f} 100.0" in page.visible
    assert f"(true negative) {absent} 0.600 {ends[1]:.3f} 100.0" in page.visible
    assert "1 0.0 – 0.0 2 " in page.visible, "nothing is modified in the first epoch"
    assert f"6 {100 * hidden / (hidden + absent):.1f} 100.0 100.0" in page.visible
    assert "TP FN TN an 100.0 100.0 100.0 ll 100.0 100.0 100.0" in Reader(write_report(study)).visible


def test_scores_of_labels_by_kind_and_how_separable_classes_are_is_shown(
    run_of: Callable[..., Run], study: Study, data: Dataset
) -> None:
    assert data.train.truth is not None and data.test is not None
    run = run_of()
    page = Reader(write_report(run, data=data))
    missing = int(data.train.truth.counts().present.sum() - data.train.labels.counts().present.sum())
    unknown = int(data.train.labels.counts().unknown.sum())
    first, kept, last = (2.4 * math.exp(-0.08 * epoch) for epoch in (0, 2, 5))  # the logits of make_trace
    cells = f"{missing} {first:.2f} {last:.2f} {1 / (1 + math.exp(-kept)):.2f}"
    assert f"unknown, truly present {cells} unknown, truly absent" in page.visible
    assert "in the batches of epoch 3" in page.visible
    scores = read_predictions(run.path, "test", data.test.labels.images, data.classes)
    assert scores is not None
    auc, overlap = class_separability(scores, data.test.evaluation_labels.to_dense()).mean()
    assert f"Test: mean AUC {auc:.2f}, mean overlap {overlap:.2f}, over " in page.visible
    assert "Train, unknown labels: mean AUC 1.00" in page.visible
    share = f"({100 * missing / unknown:.1f} %)"
    assert f"{missing} of the {unknown} unknown training labels are truly present {share}" in page.visible
    low, high = (1 / (1 + math.exp(-value)) for value in (0.6 * math.exp(-0.5 * 2), 2.4 * math.exp(-0.45 * 2)))
    assert f" an {low:.2f} {high:.2f} 1.00 0." in Reader(write_report(study, data=data)).visible


def test_a_run_that_is_not_finished_says_so(run_of: Callable[..., Run], data: Dataset) -> None:
    page = Reader(write_report(run_of(finished=False), data=data))
    assert "This run is not finished: 6 of 6 epochs are done" in page.visible
    assert "epoch kept" not in page.visible


def test_revisions_are_counted_by_source(run_of: Callable[..., Run]) -> None:
    run = run_of(method="ll-cp")
    assert "No label was revised" in Reader(write_report(run)).visible
    revised = [Revision(f"train-{row:03d}.jpg", "cat", PRESENT, "ll-cp", epoch=2) for row in range(3)]
    Revisions(revised).to_parquet(run.path / "revisions.parquet")
    assert "3 labels were revised (3 by ll-cp)" in Reader(write_report(Path(run.path))).visible


def test_only_the_last_part_of_a_path_is_shown(run_of: Callable[..., Run], study: Study) -> None:
    for what in (run_of(), study):
        text = write_report(what).read_text()
        assert "tags.csv" in text and "private" not in text


def test_a_study_says_what_missing_labels_cost_and_what_was_recovered(study: Study) -> None:
    page = Reader(write_report(study))
    top, low, best = (study.run(study.members[place]).metrics["test"]["map"] for place in (0, 1, 2))
    assert (
        f"costs {100 * (top - low):.1f} points of mAP here; ll recovers {100 * (best - low):.1f} of them"
        in page.visible
    )
    assert "Each row is one training run with one seed" in page.visible
    assert "runs that saw labels hidden from the others (all_labels)" in page.visible


def test_a_page_that_cannot_be_written_leaves_the_old_one_whole(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of()
    path = write_report(run)
    before = path.read_bytes()

    def fail(number: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk is full"):
        write_report(run)
    assert path.read_bytes() == before
    assert not list(run.path.glob(".*partial*"))


def test_the_same_run_gives_the_same_page(run_of: Callable[..., Run], data: Dataset) -> None:
    run = run_of()
    assert write_report(run, data=data).read_bytes() == write_report(run.path, data=data).read_bytes()


def test_a_folder_that_is_neither_run_nor_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="neither a run nor a study"):
        write_report(tmp_path)


def test_data_of_other_classes_are_refused(run_of: Callable[..., Run], data: Dataset) -> None:
    with pytest.raises(InputError, match="other classes"):
        write_report(run_of(), data=renamed(data, ("a", "b", "c", "d")))


def test_the_figure_of_a_study_has_a_panel_for_each_method_and_the_comparison(study: Study, tmp_path: Path) -> None:
    figure = study_figure(study)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["an", "ll", ""]
    for axis in figure.axes[:2]:
        assert axis.get_ylim()[1] > 2.4 > 2 > float(np.max(np.asarray(axis.lines[1].get_ydata())))
    figure.savefig(tmp_path / "study.png", dpi=50)
    assert (tmp_path / "study.png").stat().st_size > 1000

"""The page as a whole: self-contained, safe, honest, and written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.reporting.conftest import Recipe, make_study

from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import NoSplit
from labelgap.data.split import hold_out_val
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, Revision, Revisions
from labelgap.reporting import class_separability, study_table, write_report
from labelgap.reporting.pages.study import STUDY_COLUMNS, study_notes, study_rows
from labelgap.studies import Study, StudyMember
from labelgap.training import Run
from labelgap.training.run_folder import read_predictions

EVIL = '<script>alert("1")</script>'


class Reader(HTMLParser):
    """Collects tags, addresses and visible words of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags, self.addresses, self.words = list[str](), list[str](), list[str]()
        self._hidden, self.text = False, path.read_text(encoding="utf-8")
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


def test_the_page_of_a_run_needs_nothing_but_itself_and_escapes_what_users_named(
    run_of: Callable[..., Run], data: Dataset, drawn: None
) -> None:
    evil = renamed(data, (EVIL, "dog", "owl", "$x$"))
    page = Reader(write_report(run_of(evil, select="observed"), data=evil))
    check_self_contained(page)
    assert EVIL not in page.text and EVIL in page.visible
    assert "observed ranking (not an accuracy)" in page.visible and "mAP, " not in page.visible


def test_the_page_of_a_study_needs_nothing_but_itself_and_links_to_the_pages_of_its_runs_that_exist(
    study: Study, data: Dataset
) -> None:
    members = [StudyMember(EVIL + member.label, member.folder, member.extra_labels) for member in study.members]
    harmful = study.path / "javascript:alert(1)"
    (study.path / "an").rename(harmful)
    members[1] = StudyMember("an", harmful.name)
    for folder in ("ll", harmful.name):
        (study.path / folder / "report.html").touch()
    page = Reader(write_report(Study(study.path, EVIL, members), data=data))
    check_self_contained(page)
    assert EVIL not in page.text and EVIL in page.visible
    links = {address for address in page.addresses if address.endswith("report.html")}
    assert links == {"ll/report.html", "javascript%3Aalert%281%29/report.html"}


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
    present, absent, unknown = data.train.labels.counts().total
    assert f"train 24 {present} {absent} {unknown} (" in page.visible
    for words in ("all 4 classes, measured on 24 images", "4 measured on val", "blank means unknown", "val mAP"):
        assert words in page.visible
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
    assert "labelgap review first --random 24 labelgap evaluate first first-review" in page.visible
    assert "labelgap audit first labelgap review first" in page.visible
    assert "nan" not in page.visible.lower().split() and "None" not in page.visible


def test_a_run_without_truth_val_or_test_has_a_page(run_of: Callable[..., Run], data: Dataset) -> None:
    bare = Dataset("pets", replace(data.train, truth=None))
    run = run_of(select="last", val=False, test=False, truth=False)
    for given in (None, bare):
        page = Reader(write_report(run, data=given))
        for words in ("false negative", "test mAP", "AUC", "separable"):
            assert words not in page.visible, "a number or a section that is not supported is left out"
        assert ("whether it is right is not known" in page.visible) is (given is not None)


def test_images_that_a_network_held_out_are_no_labels_that_it_saw(run_of: Callable[..., Run], data: Dataset) -> None:
    unsplit = replace(data, val=None, test=None, findings=(NoSplit(len(data.train)),))
    trained = hold_out_val(unsplit)
    assert trained.val is not None and len(trained.train) < len(data.train)
    run = run_of(trained, select="last", val=False, test=False)
    page = Reader(write_report(run, data=unsplit))
    present, absent, unknown = trained.train.labels.counts().total
    assert f"train {len(trained.train)} {present} {absent} {unknown} (" in page.visible


@pytest.mark.parametrize(("select", "chosen"), [("clean", "the epoch and the thresholds"), ("last", "the thresholds")])
def test_what_val_did_not_choose_is_not_said_of_it(
    run_of: Callable[..., Run], data: Dataset, select: str, chosen: str
) -> None:
    page = Reader(write_report(run_of(select=select, test=False), data=replace(data, test=None)))
    assert f"val (used to select {chosen})" in page.visible and f"Val chose {chosen}" in page.visible
    assert "val AP*" in page.visible


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
    share = hidden / (hidden + absent)
    assert f"ll-r 1 0 0 {share:.4g} ll-r 2 " in page.visible, "nothing is modified in the first epoch"
    assert f"ll-r 6 {share:.4g} 1 1 {share:.4g}" in page.visible
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


def test_an_unfinished_run_and_revisions_by_source_are_told(run_of: Callable[..., Run], data: Dataset) -> None:
    page = Reader(write_report(run_of(finished=False), data=data))
    assert "6 of 6 epochs are done" in page.visible and "epoch kept" not in page.visible
    run = run_of(method="ll-cp")
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
    assert f"costs {100 * (top - low):.1f} points, of which ll recovers {100 * (best - low):.1f}." in page.visible


def test_a_page_that_cannot_be_written_leaves_the_old_one_whole(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of()
    before = write_report(run).read_bytes()
    path = write_report(run.path)
    assert path.read_bytes() == before, "the same run gives the same page"

    def fail(number: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk is full"):
        write_report(run)
    assert path.read_bytes() == before
    assert not list(run.path.glob(".*partial*"))


def test_a_folder_that_is_no_result_and_data_of_other_classes_are_refused(
    run_of: Callable[..., Run], data: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="neither a run nor a study"):
        write_report(tmp_path)
    with pytest.raises(InputError, match="other classes"):
        write_report(run_of(), data=renamed(data, ("a", "b", "c", "d")))


def printed(study: Study) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(study_table(study))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_the_table_of_a_study_has_the_numbers_of_its_runs_and_ceilings_come_last(study: Study) -> None:
    rows, text = study_rows(study), printed(study)
    assert [(row.member.label, row.shown.bold) for row in rows] == [("an", False), ("ll", True), ("all_labels", False)]
    for row in rows:
        test, cells = study.run(row.member).metrics["test"], row.shown.cells
        assert row.map == test["map"]
        assert [cells[0], cells[1], *cells[3:]] == [
            *(f"{100 * test[name]:.1f}" for name in ("map", "f1_micro")), "4 of 4", "3 of 6", "9.0 s"
        ]  # fmt: skip
        line = next(line for line in text.splitlines() if line.startswith(f"{row.member.label} "))
        assert all(cell in line for cell in cells) and len(cells) == len(STUDY_COLUMNS)
    named = Study(study.path, "[bold]a[/nothing]", [StudyMember("[red]an[/]", "an")])
    assert "[red]an[/]" in printed(named) and "[bold]a[/nothing]" in printed(named)


def test_what_the_rows_of_a_study_do_not_support_is_a_dash_with_a_footnote(
    study: Study, positives_only: Dataset, tmp_path: Path
) -> None:
    made = make_study(tmp_path / "other", positives_only, an=Recipe(method="an", select="last", val=False))
    assert study_rows(made)[0].shown.cells[:4] == ("–", "–", "–", "0 of 4")
    assert any("no class has both" in note for note in study_notes(study_rows(made)))
    path = study.path / "an" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    rows = study_rows(study)
    assert rows[0].shown.cells == ("–",) * 6
    rows[1].run.metrics["test"] |= {"classes_counted": 3}
    notes = " ".join(study_notes(rows))
    assert "not finished" in notes and "must not be compared" in notes

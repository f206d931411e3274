"""The page as a whole: self-contained, safe, honest, and written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tests.reporting.conftest import Recipe, make_study

import labelgap
from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset, Split
from labelgap.data.findings import NoSplit
from labelgap.data.split import hold_out_val
from labelgap.labels import PRESENT, LabelTable, Revision, Revisions
from labelgap.reporting import study_table, write_report
from labelgap.reporting.pages.study import study_notes, study_rows
from labelgap.studies import Study, StudyMember
from labelgap.training import Run

BLOCKS, BREAK = {"caption", "details", "div", "figcaption", "h1", "h2", "h3", "li", "p", "section", "tr"}, "\x1e"
EVIL = '<script>alert("1")</script>'


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


def variants(
    run_of: Callable[..., Run], data: Dataset, positives_only: Dataset
) -> dict[str, tuple[Run, Dataset | None]]:
    """Runs of which more or less is known, each in a folder of its own, and the data beside their pages."""
    unsplit = replace(data, val=None, test=None, findings=(NoSplit(len(data.train)),))
    blind, unmeasured = {"val": False, "test": False}, replace(data, test=None)
    corrected = run_of(folder="corrected", method="ll-cp")
    revised = [Revision(f"train-{row:03d}.jpg", "cat", PRESENT, "ll-cp", epoch=2) for row in range(3)]
    Revisions(revised).to_parquet(corrected.path / "revisions.parquet")
    run, untruthful = run_of(), run_of(folder="untruthful", select="last", truth=False, **blind)
    untraced, bare = run_of(folder="untraced", trace="off"), Dataset("pets", replace(data.train, truth=None))
    return {
        "no data": (run, None),
        "positives alone": (run_of(positives_only, "positives", select="last", val=False), positives_only),
        "no truth": (untruthful, bare),
        "no truth, no data": (untruthful, None),
        "held-out val": (run_of(hold_out_val(unsplit), "held-out", select="last", **blind), unsplit),
        "no test": (run_of(folder="no-test", test=False), unmeasured),
        "no test, the last epoch": (run_of(folder="last", select="last", test=False), unmeasured),
        "no trace": (untraced, data),
        "no trace, no data": (untraced, None),
        "unfinished": (run_of(folder="unfinished", finished=False), data),
        "revisions": (corrected, None),
    }


def test_a_page_says_what_was_measured_and_nothing_that_the_labels_do_not_support(
    run_of: Callable[..., Run], data: Dataset, positives_only: Dataset, snapshot: SnapshotAssertion
) -> None:
    base = Reader(write_report(run_of(), data=data)).shown
    assert base == snapshot(name="a run")
    for name, (run, beside) in variants(run_of, data, positives_only).items():
        page = Reader(write_report(run, data=beside))
        titles = re.findall("<h2>(.+?)</h2>", page.text)
        assert [*titles, *(line for line in page.shown.splitlines() if line not in base)] == snapshot(name=name)
        assert "nan" not in page.shown.lower().split() and "None" not in page.shown
        assert "private" not in page.text, "only the last part of a path is shown"


def test_the_page_and_the_table_of_a_study(study: Study, data: Dataset, snapshot: SnapshotAssertion) -> None:
    page = Reader(write_report(study, data=data))
    assert page.shown == snapshot(name="page") and "private" not in page.text
    top, low, best = (study.run(study.members[place]).metrics["test"]["map"] for place in (0, 1, 2))
    assert f"costs {100 * (top - low):.1f} points, of which ll recovers {100 * (best - low):.1f}." in page.shown
    assert printed(study) == snapshot(name="table")
    named = Study(study.path, "[bold]a[/nothing]", [StudyMember("[red]an[/]", "an")])
    assert "[red]an[/]" in printed(named) and "[bold]a[/nothing]" in printed(named)


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

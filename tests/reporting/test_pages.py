"""The page as a whole: self-contained, safe, honest, and written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from tests.reporting.conftest import EveryRun, Reader, Recipe, RunMaker, make_study, renamed

from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Dataset
from labelgap.reporting import study_table, write_report
from labelgap.reporting.pages.study import study_notes, study_rows
from labelgap.studies import Study, StudyMember

EVIL = '<script>alert("1")</script>'


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


def test_the_page_of_a_run_is_self_contained_and_escaped(run_of: RunMaker, data: Dataset, drawn: None) -> None:
    evil = renamed(data, (EVIL, "dog", "owl", "$x$"))
    page = Reader(write_report(run_of(evil, select="observed"), data=evil))
    check_self_contained(page)
    assert EVIL not in page.text and EVIL in page.visible
    assert "observed ranking (not an accuracy)" in page.visible and "mAP, " not in page.visible


def test_the_page_of_a_study_links_to_pages_that_exist(study: Study, data: Dataset) -> None:
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


def test_images_are_in_it_unless_they_are_left_out(run_of: RunMaker, study: Study, data: Dataset) -> None:
    for what in (run_of(), study):
        assert "data:image/" in write_report(what, data=data).read_text()
        without = Reader(write_report(what, data=data, images=False))
        assert "data:image/" not in without.text and "img" not in without.tags
        assert ("Labels as they change" in without.visible) is (what is not study)
        assert "data:image/" not in write_report(what).read_text()


def test_a_page_says_what_was_measured(every_run: EveryRun, snapshot: SnapshotAssertion) -> None:
    """The whole page of a run; of the others its titles, and the lines that are not on the first."""
    first = ""
    for name, (run, beside) in every_run.items():
        page = Reader(write_report(run, data=beside))
        titles = re.findall("<h2>(.+?)</h2>", page.text)
        lines = [*titles, *(line for line in page.shown.splitlines() if line not in first)]
        first = first or page.shown
        assert "\n".join(lines) == snapshot(name=name)
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


def test_no_result_and_other_classes_are_refused(run_of: RunMaker, data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(RunError):
        write_report(tmp_path)
    with pytest.raises(InputError):
        write_report(run_of(), data=renamed(data, ("a", "b", "c", "d")))


def printed(study: Study) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(study_table(study))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_what_rows_do_not_support_is_a_dash(study: Study, positives_only: Dataset, tmp_path: Path) -> None:
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


def test_a_page_that_fails_leaves_the_old_one_whole(run_of: RunMaker, monkeypatch: pytest.MonkeyPatch) -> None:
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

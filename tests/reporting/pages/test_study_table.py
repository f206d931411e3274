"""The table of a study: ceilings apart, dashes where nothing is supported, and footnotes that say why."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from labelgap.data.dataset import Dataset
from labelgap.reporting import study_rows, study_table
from labelgap.reporting.pages.study import STUDY_COLUMNS, study_notes
from labelgap.studies import Study, StudyMember


def printed(study: Study) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(study_table(study))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_rows_hold_the_numbers_of_their_runs_and_ceilings_come_last(study: Study) -> None:
    rows = study_rows(study)
    assert [row.label for row in rows] == ["an", "ll", "all_labels"]
    for row in rows:
        run = study.run(next(member for member in study.members if member.label == row.label))
        assert row.map == run.metrics["test"]["map"]
        assert row.cells[0] == f"{100 * run.metrics['test']['map']:.1f}"
        assert row.cells[1] == f"{100 * run.metrics['test']['f1_micro']:.1f}"
        assert row.cells[3:] == ("4 of 4", "3 of 6", "9.0 s")
        assert len(row.cells) == len(STUDY_COLUMNS)


def test_the_best_is_the_best_of_those_that_saw_the_same_labels(study: Study) -> None:
    assert [row.best for row in study_rows(study)] == [False, True, False]


def test_the_terminal_shows_what_the_rows_say(study: Study) -> None:
    text = printed(study)
    assert "What do missing labels cost?" in text
    for row in study_rows(study):
        line = next(line for line in text.splitlines() if line.startswith(f"{row.label} "))
        assert all(cell in line for cell in row.cells)


def test_a_label_that_looks_like_markup_is_printed_as_it_is(study: Study) -> None:
    named = Study(study.path, "[bold]a[/nothing]", [StudyMember("[red]an[/]", "an")])
    assert "[red]an[/]" in printed(named) and "[bold]a[/nothing]" in printed(named)


def test_a_number_that_the_known_labels_do_not_support_is_a_dash_with_a_footnote(
    positives_only: Dataset, study_on: Callable[[Dataset], Study]
) -> None:
    made = study_on(positives_only)
    rows = study_rows(made)
    assert rows[0].cells[:4] == ("–", "–", "–", "0 of 4")
    assert any("no class has both a known present and a known absent" in note for note in study_notes(rows))
    assert "–" in printed(made)


def test_a_study_of_a_run_that_is_not_finished_says_so(study: Study) -> None:
    path = study.path / "an" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    rows = study_rows(study)
    assert rows[0].cells == ("–",) * 6
    assert any("not finished" in note for note in study_notes(rows))


def test_means_over_different_classes_are_not_to_be_compared(study: Study) -> None:
    rows = study_rows(study)
    changed = [rows[0], type(rows[1])(**{**vars(rows[1]), "classes_counted": 3})]
    assert any("must not be compared" in note for note in study_notes(changed))

from __future__ import annotations

import json
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from tests.mutations import mutations
from tests.training.untrained_run import make_run

from labelgap.core.errors import RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.labels import PRESENT, UNKNOWN
from labelgap.reporting import write_report
from labelgap.studies import Study, StudyMember, demo, open_study, run_demo
from labelgap.studies.demo import FoundLabels, count_found
from labelgap.training import Run
from labelgap.training.progress import Reporter


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path / "study", "Which?", [StudyMember("an", "an"), StudyMember("all", "all", extra_labels=True)])
    for member in made.members:
        make_run(made.path / member.folder)
    made.write()
    return made


def test_a_study_is_read_back_as_it_was_and_a_change_is_noticed(study: Study) -> None:
    opened, path = open_study(study.path), study.path / "study.json"
    assert opened.members == study.members and opened.title == study.title and len(opened.runs) == 2
    path.write_text(path.read_text(encoding="utf-8").replace("Which", "Whose"), encoding="utf-8")
    with pytest.raises(RunError, match=r"study\.json"):
        open_study(study.path)


@pytest.mark.parametrize(
    "folder", ["../other", "/other", "..", ".", "", ".hidden", "an/../../other", "a\\b", "an/", "a\0b", "x" * 300, 5]
)
def test_a_study_names_runs_inside_its_folder_only(study: Study, folder: Any) -> None:
    rewrite(study, [{"label": "an", "folder": folder, "extra_labels": False}])
    with pytest.raises(RunError, match=r"study\.json"):
        open_study(study.path)


def test_a_link_that_leads_out_of_the_study_is_not_followed(study: Study, tmp_path: Path) -> None:
    make_run(tmp_path / "outside")
    (study.path / "link").symlink_to(tmp_path / "outside")
    rewrite(study, [{"label": "an", "folder": "link", "extra_labels": False}])
    with pytest.raises(RunError, match="link"):
        _ = open_study(study.path).runs


def test_a_damaged_study_is_a_run_error(study: Study) -> None:
    (study.path / MANIFEST_FILE).unlink()
    path = study.path / "study.json"
    for content in (b"", b"[]", b"{}", b"[" * 10**6, *mutations(path.read_bytes(), 300)):
        path.write_bytes(content)
        try:
            _ = open_study(study.path).runs
        except RunError as error:
            assert str(study.path) in str(error)


def rewrite(study: Study, members: list[dict[str, Any]]) -> None:
    (study.path / MANIFEST_FILE).unlink()
    stored = {"format": 1, "title": "t", "members": members}
    (study.path / "study.json").write_text(json.dumps(stored), encoding="utf-8")


SIZES = (8, 8, 8)
"""So few scenes that an epoch is one step."""


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_processes_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "METHODS", ("ll-r",))
    start = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: start("fork"))  # nothing is loaded again
    calls: list[str] = []
    study = run_demo(
        tmp_path / "demo",
        epochs=1,
        device="cpu",
        processes=2,
        sizes=SIZES,
        callback=lambda label, run: calls.append(f"{label} {run.config.method}"),
        report=print,
    )
    assert calls == ["all labels bce", "ll-r ll-r"]
    assert capfd.readouterr().out.count(f"Run('{study.path}") == 2  # each in the process that trained it
    assert count_found(study.runs[1][1]) == expected_found(study.runs[1][1])
    opened = open_study(study.path)
    assert opened.members == study.members and opened.title == study.title
    assert [member.extra_labels for member, _ in opened.runs] == [True, False]
    assert all(run.finished for _, run in opened.runs)


def expected_found(run: Run) -> FoundLabels:
    """Count over single labels, from the tables and the recorded logits."""
    train, trace = run.load_data().train, run.trace
    assert train.truth is not None
    known, truth = train.labels.to_dense(), train.truth.to_dense()
    logits = {(r, c): x for r, c, x in zip(trace["row"], trace["column"], trace["logit"][0], strict=True)}
    unknown = sorted(zip(*np.nonzero(known == UNKNOWN), strict=True), key=lambda place: -logits[place])
    missing = [place for place in unknown if truth[place] == PRESENT]
    return FoundLabels(len(unknown), len(missing), len(set(missing) & set(unknown[: len(missing)])))


@pytest.mark.parametrize("steps", [3, 0])
def test_ctrl_c_keeps_what_has_an_epoch(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reporter, "move_to", Mock(side_effect=[*[None] * steps, *[KeyboardInterrupt] * 9]))
    asked = partial(run_demo, tmp_path / "demo", epochs=2, device="cpu", processes=1, sizes=SIZES)
    if not steps:
        with pytest.raises(KeyboardInterrupt):
            asked()
        assert not (tmp_path / "demo" / "study.json").exists()
        return
    study = asked()
    assert [member.label for member in study.members] == ["all labels", "an"]
    assert [run.metrics["interrupted"] for _, run in study.runs] == [False, True]
    assert write_report(open_study(tmp_path / "demo")).exists()

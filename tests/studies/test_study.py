"""``study.json``: which runs it may name, and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.mutations import mutations
from tests.training.untrained_run import make_run

from labelgap.core.errors import RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.studies import Study, StudyMember, open_study


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
    with pytest.raises(RunError, match="not as it was written"):
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
    with pytest.raises(RunError, match="leads out of the study"):
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
    (study.path / "study.json").write_text(
        json.dumps({"format": 1, "title": "t", "members": members}), encoding="utf-8"
    )

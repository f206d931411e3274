from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.audit.small_runs import train, write
from tests.cli.conftest import undraw
from tests.mutations import mutations
from tests.studies.compare.small_features import features
from tests.training.untrained_run import make_run

import labelgap as lg
from labelgap.core.errors import RunError
from labelgap.core.manifest import MANIFEST_FILE
from labelgap.core.trust import is_trusted
from labelgap.studies import Study, StudyMember
from labelgap.studies.compare import compare
from labelgap.studies.reproduce import Reproduction
from labelgap.verification import Verification, accept_changes, trust_folder, verify_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a trace, revisions, predictions, candidates and a report."""
    folder = tmp_path_factory.mktemp("trained")
    data = lg.load("features", write(folder))
    run = train(folder, data, "ll-cp", trace="all", options={"delta_rel": 5.0})
    lg.find_missing(run, quiet=True, folds=2)
    with pytest.MonkeyPatch.context() as patch:
        undraw(patch)
        lg.write_report(run, data=data)
    return run.path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def problems(result: Verification) -> dict[str, str]:
    return {file.name: file.problem for file in result.problems}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def edit_config(run: Path, **changes: Any) -> None:
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")


def test_one_flipped_bit_in_any_file_is_found_and_named_and_nothing_is_written(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    result = verify_run(run)
    assert result.intact and result.finished and result.kind == "run"
    names = {file.name for file in result.files}
    assert {"config.json", "metrics.jsonl", "best.safetensors", "predictions.parquet", "traces.npz"} < names
    assert {"revisions.parquet", "candidates.parquet", "report.html", "MODEL_CARD.md"} < names
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    for name in names:
        content = (run / name).read_bytes()
        flip(run / name)
        assert name in problems(verify_run(run)), name
        (run / name).write_bytes(content)
    assert verify_run(run).intact


IMPORTED = """
import sys
from labelgap import verification
assert verification.verify_run(sys.argv[1]).intact and not verification.foreign_names(sys.argv[1])
print([name for name in "torch scipy sklearn matplotlib jinja2 fastapi".split() if name in sys.modules])
"""


def test_a_run_and_its_audit_are_verified_without_what_trains_and_draws(trained: Path) -> None:
    found = subprocess.run([sys.executable, "-c", IMPORTED, trained], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_without_digests_each_file_is_still_read_and_no_mutation_is_another_error(run: Path) -> None:
    (run / MANIFEST_FILE).unlink()
    assert problems(verify_run(run)).keys() == {MANIFEST_FILE}
    halved = {"config.json", "metrics.jsonl", "best.safetensors", "traces.npz", "predictions.parquet"}
    for path in sorted(run.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        assert path.name in problems(verify_run(run)) or path.name not in halved
        for damaged in mutations(content, 12):
            path.write_bytes(damaged)
            verify_run(run)
        path.write_bytes(content)


def test_a_damaged_manifest_and_changed_files_are_accepted_but_not_other_weights(run: Path, tmp_path: Path) -> None:
    manifest = json.loads((run / MANIFEST_FILE).read_text())
    del manifest["files"]["best.safetensors"]
    (run / MANIFEST_FILE).write_text(json.dumps(manifest))
    assert problems(verify_run(run)).keys() == {"best.safetensors"}
    (run / MANIFEST_FILE).write_text("{", encoding="utf-8")
    assert problems(verify_run(run)).keys() == {MANIFEST_FILE}
    accept_changes(run)
    (run / "MODEL_CARD.md").write_text("My own words.", encoding="utf-8")
    (run / "report.html").unlink()
    assert problems(verify_run(run)).keys() == {"MODEL_CARD.md", "report.html"}
    accept_changes(run)
    assert verify_run(run).intact and "report.html" not in {file.name for file in verify_run(run).files}
    shutil.copy(make_run(tmp_path / "other", backbone="features", width=7).path / "best.safetensors", run)
    accept_changes(run)
    assert problems(verify_run(run)).keys() == {"best.safetensors"}


def test_files_of_killed_processes_and_links_out_of_the_folder_are_told(run: Path, tmp_path: Path) -> None:
    left = {".best-0123456789abcdef.partial.safetensors", ".tmpIIw9I1", "last.previous.pt"}
    for name in (*left, "notes.txt"):
        (run / name).write_bytes(b"")
    assert set(problems(verify_run(run))) == left
    edit_config(run, signature=None)
    (run / "link").symlink_to(tmp_path)
    (run / "inside").symlink_to("notes.txt")
    accept_changes(run)
    assert "link" in problems(verify_run(run)) and "inside" not in problems(verify_run(run))


def test_a_foreign_run_is_trusted_after_it_has_shown_what_it_names(run: Path, tmp_path: Path) -> None:
    edit_config(run, signature="0" * 64, method="mallory.losses:Loss", weights="/somewhere/w.safetensors")
    accept_changes(run)
    assert not is_trusted(run / "config.json")
    named = trust_folder(run)
    assert [each.split()[1] for each in named] == ["data", "class", "weights"]
    assert is_trusted(run / "config.json") and verify_run(run).intact


def test_an_unfinished_run_is_read_without_digests(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    result = verify_run(run.path)
    assert result.intact and not result.finished
    with pytest.raises(RunError, match="not finished"):
        accept_changes(run.path)
    tables = Reproduction(tmp_path / "tables")
    tables.path.mkdir()
    tables.write()
    shutil.copytree(run.path, tables.path / "runs" / "first")
    shutil.copytree(make_run(tmp_path / "finished").path, tables.path / "runs" / "second")
    (tables.path / "results.csv").write_text("mine", encoding="utf-8")
    assert set(problems(verify_run(tables.path))) == {"results.csv", "runs/second/manifest.json"}
    accept_changes(tables.path)
    assert verify_run(tables.path).intact and not (tables.path / "runs" / "first" / MANIFEST_FILE).exists()
    assert (tables.path / MANIFEST_FILE).exists() and not verify_run(tables.path).finished, "a run is to be resumed"


def test_a_study_is_verified_with_all_its_runs(run: Path, tmp_path: Path) -> None:
    study = Study(tmp_path / "study", "Which?", [StudyMember("a", "a"), StudyMember("b", "b"), StudyMember("c", "c")])
    for name in "abc":
        shutil.copytree(run, study.path / name)
    study.write()
    assert verify_run(study.path).intact and "b/config.json" in {file.name for file in verify_run(study.path).files}
    flip(study.path / "a" / "best.safetensors")
    (study.path / "b" / "config.json").unlink()
    shutil.rmtree(study.path / "c")
    (study.path / "c").symlink_to(run)
    found = problems(verify_run(study.path))
    assert found.keys() == {"a/best.safetensors", "b", "c"}


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_is_verified_with_its_heads(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"seeds": 1, "epochs": 1, "device": "cpu", "quiet": True, "learning_rates": [1e-2]}
    made = compare(features(), ["an"], out=tmp_path / "c", grid="small", baseline=False, **settings)
    lg.write_report(made)
    result = verify_run(made.path)
    assert result.intact and result.kind == "comparison" and len(result.files) == 5
    (head,) = (made.path / "heads").iterdir()
    flip(head)
    assert list(problems(verify_run(made.path))) == [f"heads/{head.name}"]
    accept_changes(made.path)
    assert "digest" in problems(verify_run(made.path))[f"heads/{head.name}"], "it carries a digest of its own"


def test_a_review_of_random_images_is_verified(tmp_path: Path) -> None:
    from labelgap.review import Review, create_random_review

    folder = create_random_review(lg.load("digits", train=8, val=8, test=4), "train", 4, 0, tmp_path / "review")
    Review(folder).close()
    result = verify_run(folder.path)
    assert result.intact and {"review.json", "candidates.parquet"} <= {file.name for file in result.files}
    accept_changes(folder.path)
    flip(folder.path / "candidates.parquet")
    assert list(problems(verify_run(folder.path))) == ["candidates.parquet"]
    (folder.path / MANIFEST_FILE).unlink()
    (folder.path / "review.json").write_text("[]", encoding="utf-8")
    assert "review.json" in problems(verify_run(folder.path))


def test_what_is_nothing_of_these_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for path in (tmp_path, tmp_path / "file", tmp_path / "x"):
        with pytest.raises(RunError, match=path.name):
            verify_run(os.fspath(path))

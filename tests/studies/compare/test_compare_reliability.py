from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.killing import killed_at_every_operation
from tests.mutations import mutations
from tests.racing import race
from tests.studies.compare.small_features import features

from labelgap.core.errors import RunError
from labelgap.core.lock import LOCK_FILE
from labelgap.data.images import FeatureVectors
from labelgap.reporting import comparison_table, write_report
from labelgap.reporting.pages.comparison import method_command, missing_label_cost, ranking_summary
from labelgap.studies.compare import Comparison, compare
from labelgap.studies.compare import heads as compare_heads


def run(out: Path, **settings: Any) -> Comparison:
    given: dict[str, Any] = {"seeds": 2, "epochs": 1, "grid": "small", "learning_rates": [1e-2], "baseline": False}
    given |= {"device": "cpu", "quiet": True, **settings}
    return compare(features(), ["an", "em"], out=out, **given)


def results(folder: Path) -> dict[str, Any]:
    """Everything that a comparison wrote, without times."""
    stored = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    rows = stored["methods"]
    for timed in (stored, *rows, *(seed for row in rows for seed in row["seeds"])):
        del timed["seconds"]
    table = re.sub(r",[\d.]+$", "", (folder / "compare.csv").read_text(encoding="utf-8"), flags=re.M)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return {"compare.json": stored, "compare.csv": table, "files": files}


def test_killed_at_every_operation_it_ends_with_the_same_results_and_leaves_nothing(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    whole, kills = results(tmp_path / "whole"), 0
    for kills in killed_at_every_operation(lambda: run(tmp_path / "c"), tmp_path / "c", step=5):
        run(tmp_path / "c")
        assert results(tmp_path / "c") == whole, f"after a kill at operation {kills}"
        for path in sorted((tmp_path / "c").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "c").rmdir()
    assert kills > 20


def compare_when_refused(wait: Callable[[], None], out: str) -> None:
    real = FeatureVectors.fingerprint

    def fingerprint(self: FeatureVectors) -> str:
        wait()
        return real(self)

    FeatureVectors.fingerprint = fingerprint  # type: ignore[method-assign]
    run(Path(out))


def test_of_two_comparisons_into_one_folder_one_is_refused_and_names_the_other(tmp_path: Path) -> None:
    refused, done = race(compare_when_refused, str(tmp_path / "c"))
    assert done == "done" and "(comparing methods, process" in refused
    run(tmp_path / "whole")
    assert results(tmp_path / "c") == results(tmp_path / "whole") and not (tmp_path / "c" / LOCK_FILE).exists()


def test_a_damaged_head_or_another_one_is_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "c")
    whole = results(tmp_path / "c")
    first, second, *_ = sorted((tmp_path / "c" / "heads").iterdir())
    content = first.read_bytes()
    for damaged in (second.read_bytes(), b"", *mutations(content, 8)):
        first.write_bytes(damaged)
        run(tmp_path / "c", quiet=False)
        assert f"{first.name} is damaged" in re.sub(r"\s+", " ", capsys.readouterr().err)
        assert results(tmp_path / "c") == whole and compare_heads.StoredHead.load(first, (4, 6)).failed is None


def test_a_damaged_compare_json_is_a_run_error_or_can_be_shown(tmp_path: Path, written: dict[str, Any]) -> None:
    path, pages = tmp_path / "compare.json", 0
    for content in (b"", b"[]", b"{}", b"[" * 10**6, *mutations(json.dumps(written).encode(), 150)):
        path.write_bytes(content)
        try:
            opened = Comparison.open(tmp_path)
        except RunError as error:
            assert "compare.json" in str(error)
            continue
        comparison_table(opened)
        assert ranking_summary(opened) and missing_label_cost(opened) is not None
        pages += 1
        if pages <= 2:
            write_report(opened)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("rule",), "best"),
        (("seconds",), float("inf")),
        (("metadata", "seeds"), "3"),
        (("metadata", "recipe", "steps"), [{"__class__": {}}]),
        (("metadata", "recipe", "path"), "https://example.com/x.csv"),
        (("methods", 0, "gap"), None),
        (("methods", 0, "seeds", 0, "value"), 1e300),
        (("methods", 0, "seeds", 0, "test", "f1_micro"), {}),
        (("methods", 0, "seeds", 0, "test", "estimated"), {"a": ["x", 0.1]}),
        (("methods", 1, "batch_size"), True),
        (("code",), "os.system"),
    ],
)
def test_other_values_are_refused(tmp_path: Path, written: dict[str, Any], keys: tuple[Any, ...], value: Any) -> None:
    stored = json.loads(json.dumps(written))
    place = stored
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / "compare.json").write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(RunError, match=r"compare\.json"):
        Comparison.open(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compared") / "c"
    run(folder)
    stored: dict[str, Any] = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    return stored


def test_names_of_a_foreign_comparison_are_quoted_in_the_command(tmp_path: Path, written: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(written))
    stored["methods"][0]["method"] = "an; rm -rf x"
    stored["metadata"]["backbone"] = "$(touch x)"
    odd: list[Any] = [{"images": 5}, {"classes": [1]}, {"rename": {"a": 1}}, {"classes": [[]]}, {"aliases": ["x"]}]
    for options in (stored["metadata"]["recipe"]["options"], *odd):
        stored["metadata"]["recipe"]["options"] = options
        (tmp_path / "compare.json").write_text(json.dumps(stored), encoding="utf-8")
        opened = Comparison.open(tmp_path)
        words = shlex.split(method_command(opened, opened.methods[0]))
        values = {name: words[words.index(name) + 1] for name in ("--method", "--backbone", "--out")}
        assert values == {"--method": "an; rm -rf x", "--backbone": "$(touch x)", "--out": "runs/an; rm -rf x"}


def test_a_folder_with_a_link_that_leads_out_of_it_is_not_written_to(tmp_path: Path, written: dict[str, Any]) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "c"
    outside.mkdir()
    folder.mkdir()
    (folder / "heads").symlink_to(outside)
    with pytest.raises(RunError, match="heads"):
        run(folder)
    (folder / "compare.json").write_text(json.dumps(written), encoding="utf-8")
    (folder / "report.html").symlink_to(outside / "precious.html")
    with pytest.raises(RunError, match=r"report\.html"):
        write_report(folder)
    assert not list(outside.iterdir())

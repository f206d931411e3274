"""``labelgap linear-eval`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Refused, call
from tests.studies.compare.small_features import write


def test_features_are_measured_with_all_known_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], drawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("vectors.npz"))
    assert call("linear-eval", "vectors.npz", "--device", "cpu") == 2
    everything = ("--observe", "positives=all,negatives=all", "--device", "cpu")
    assert "--observe positives=all,negatives=all" in capsys.readouterr().err
    assert call("linear-eval", "vectors.npz", *everything) == 0
    said = capsys.readouterr().out
    assert (
        "chosen on val" in said and "best on test: the paper's rule" in said and "45 values" in said and "1e+05" in said
    )
    assert call("verify", "runs/linear-eval") == call("report", "runs/linear-eval") == 0
    page = Path("runs/linear-eval/report.html").read_text(encoding="utf-8")
    classes = json.loads(Path("runs/linear-eval/linear_eval.json").read_text(encoding="utf-8"))["class_results"]
    lowest = min(classes, key=lambda each: each["val"])
    row = f'<th scope="row">{lowest["name"]}</th><td data-name="present in train">{lowest["present"]}</td>'
    assert f'{row}<td data-name="val">{100 * lowest["val"]:.1f}' in page and "penalty λ" in page
    capsys.readouterr()
    assert call("linear-eval", "vectors.npz", *everything, "--penalties", "0.1,10", "--json") == 0
    stored = json.loads(capsys.readouterr().out)
    assert [each["penalty"] for each in stored["results"]] == [0.1, 10] and stored["metric"] == "mAP"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "single"], "Did you mean 'single-label'"),
        (["--penalties", "0,1"], "above 0"),
        (["--penalties", "many"], "comma-separated"),
        (["--precision", "float16"], "float32 or float64"),
        (["--tolerance", "2"], "between 0 and 1"),
        (["--backbone", "small-cn"], "Did you mean 'small-cnn'"),
        (["--observe", "positive=1"], "Did you mean 'positives'"),
    ],
)
def test_a_mistake_is_one_message_before_data_are_read(refused: Refused, arguments: list[str], message: str) -> None:
    assert message in refused("linear-eval", "nowhere.npz", *arguments)

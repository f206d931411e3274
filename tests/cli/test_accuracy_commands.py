"""Where there is no accuracy, the output and the pages end with the commands that get one."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from tests.cli.conftest import QUICK, call
from tests.cli.copied_commands import check_command, copied_commands
from tests.sample_photos import write_color_photos

RUN = "my runs/it's first"
QUOTED = "'my runs/it'\"'\"'s first'"


@pytest.fixture
def tagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """DATA whose labels are present or unknown, and its options."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(tmp_path)
    write_color_photos("my photos", "my tags.csv")
    return ("my tags.csv", "--images", "my photos", "--zeros", "unknown", "--duplicates", "off")


def test_train_evaluate_and_the_pages_end_with_commands_that_run(
    tagged: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("train", *tagged, *QUICK, "--out", RUN) == 0
    said = capsys.readouterr().out
    review, evaluate = copied_commands(said)
    audit = f"next      labelgap audit {QUOTED}    ranks the labels that are probably missing"
    assert said.endswith(f"{review}\n          {evaluate}\n{audit}\n") and "accuracy  not measured" in said
    words = check_command(review, f"review {QUOTED} --random 4")
    check_command(evaluate, f"evaluate {QUOTED} ")
    for page in (Path(RUN, "MODEL_CARD.md"), Path(RUN, "report.html")):
        text = html.unescape(re.sub(r"</?(?:pre|code)[^>]*>", "\n", page.read_text(encoding="utf-8")))
        assert copied_commands(text)[:2] == [review, evaluate], page
    assert call(*words, "--no-browser", "--summary") == 0
    assert (Path(f"{RUN}-review") / "review.json").is_file(), "the folder that the second command names"
    capsys.readouterr()
    assert call("evaluate", RUN, *tagged, "--split", "val", "--resamples", "0", "--device", "cpu") == 0
    assert capsys.readouterr().out.endswith(f"{review}\n          {evaluate}\n")


def test_compare_ends_with_commands_that_run(tagged: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--methods", "an", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--out", "my study")
    assert call("compare", *tagged, *options) == 0
    said = capsys.readouterr().out
    review, apply = copied_commands(said)
    assert said.endswith(f"{review}\n          {apply}\n") and "accuracy  not measured" in said
    words = check_command(review, "review 'csv=my tags.csv' --images 'my photos'")
    check_command(apply, "apply 'my study-review' --out 'my study-better.csv'")
    page = html.unescape(Path("my study", "report.html").read_text(encoding="utf-8"))
    assert "labelgap review 'csv=my tags.csv' --images 'my photos'" in page
    assert call(*words, "--no-browser", "--summary") == 0
    assert Path("my study-review", "review.json").is_file()


def test_where_every_label_is_known_nothing_is_left_to_review(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("few.csv").write_text("image,split,red,green\n0.jpg,train,1,0\n1.jpg,train,0,1\n2.jpg,val,1,0\n")
    data = ("few.csv", "--images", "photos", "--duplicates", "off")
    assert call("train", *data, *QUICK, "--out", "runs/a") == 0
    said = capsys.readouterr().out
    assert said.endswith("labelgap evaluate runs/a DATA\n")
    assert "labelgap review" not in said + Path("runs/a/MODEL_CARD.md").read_text(encoding="utf-8")

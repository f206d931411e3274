"""``labelgap evaluate`` as a person meets it."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.cli.copied_commands import check_command, copied_commands
from tests.training.untrained_run import make_run

import labelgap as lg
from labelgap.review import Review, open_review_folder


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of cat, dog and owl, and a table that knows cat well, dog hardly, and of owls only presents."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/a"))
    Path("photos").mkdir()
    random = np.random.default_rng(0)
    rows = ["image,split,owl,cat,dog,ostrich"]
    for number in range(40):
        Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(f"photos/{number}.png")
        split = "train" if number < 4 else "test"
        dog = {5: "1", **dict.fromkeys(range(6, 12), "0")}.get(number, "")
        rows.append(f"{number}.png,{split},{'1' if number % 5 == 0 else ''},{number // 2 % 2},{dog},1")
    Path("tags.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_numbers_have_intervals_and_classes_a_row(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("evaluate", "runs/a", "tags.csv", "--images", "photos", "--duplicates", "off", "--device", "cpu")
    assert call(*arguments) == 0
    said = capsys.readouterr().out
    assert re.search(r"^test +mAP \d+\.\d\d \[\d+\.\d, \d+\.\d\] over 2 of 3 classes", said, re.M)
    assert re.search(r"F1 micro \d+\.\d\d \[\d", said)
    assert re.search(r"^cat +18 +18 +\d+\.\d\d +\[\d+\.\d, \d+\.\d\] +0\.400 +measured +\d", said, re.M)
    assert re.search(r"^dog +1 +6 +\d+\.\d\d +0\.500 +estimated", said, re.M)
    assert re.search(r"^owl +7 +0 +– +0\.500 +default +– +– +–$", said, re.M)
    assert re.search(r"^no number +owl: no known absent$", said, re.M)
    assert re.search(r"^few +dog: fewer than 5", said, re.M)
    assert re.search(r"^left out +ostrich: not a class of the run$", said, re.M)
    review, evaluate = copied_commands(said)
    assert re.search(r"^to get it +label random images in full, then evaluate again:$", said, re.M)
    check_command(review, "review tags.csv --images photos --duplicates off --random 300 --split test")
    check_command(evaluate, "evaluate runs/a runs/a-tags-review")
    assert "1,000 resamples of 36 images" in said
    assert call(*arguments, "--json", "--resamples", "50") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["intervals"]["resamples"] == 50 and len(found["per_class"]) == 3
    assert found["classes_extra"] == ["ostrich"] and found["per_class"][2]["average_precision"] is None


def test_a_class_that_chance_ranks_well_says_why_it_has_no_number(
    pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path("tags.csv").read_text()
    Path("tags.csv").write_text(text.replace("\n6.png,test,,", "\n6.png,test,0,"))
    arguments = ("evaluate", "runs/a", "tags.csv", "--images", "photos", "--duplicates", "off", "--device", "cpu")
    assert call(*arguments, "--resamples", "0") == 0
    said = capsys.readouterr().out
    assert re.search(r"^owl +7 +1 +– ", said, re.M) and re.search(r"^few +dog: ", said, re.M)
    assert re.search(r"^no number +owl: so few known absent beside the present that random scores", said, re.M)


def test_a_review_of_random_images_is_measured_on_what_was_decided(
    pets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = ("review", "tags.csv", "--images", "photos", "--duplicates", "off", "--classes", "cat,dog,owl")
    assert call(*drawn, "--random", "30", "--split", "test", "--out", "random", "--summary") == 0
    assert call("evaluate", "runs/a", "random", "--device", "cpu") == 0, "cat is known for all images"
    said = capsys.readouterr().out
    assert re.search(r"^cat +17 +13 +\d", said, re.M) and re.search(r"^no number +owl: no known", said, re.M)
    assert copied_commands(said) == ["labelgap review random", "labelgap evaluate runs/a random"]
    with closing(Review(open_review_folder("random"))) as review:
        made = [review.decision(row, row % 2, f"request-{row:04d}", 0) for row in range(len(review.candidates))]
        review.store.append(made, reviewer="anna", client="window-1")
    assert call("evaluate", "runs/a", "random", "--device", "cpu") == 0
    assert "to get it" not in capsys.readouterr().out, "every label is known"
    assert call("evaluate", "runs/a", "random", "--device", "cpu", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == 30 and found["classes_counted"] == 3 and found["per_class"][1]["unknown"] == 0
    assert call("evaluate", "runs/a", "random", "--split", "test") == 2
    assert "leave out --split" in capsys.readouterr().err


def test_classes_that_are_not_there_are_named(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("evaluate", "runs/a", "tags.csv", "--images", "photos", "--duplicates", "off", "--device", "cpu")
    assert call(*common, "--classes", "cat", "--split", "all") == 0
    said = capsys.readouterr().out
    assert re.search(r"^no number +dog, owl: not a class of these data \(--rename old=new\)$", said, re.M)
    assert "to get it" not in said and "of 40 images" in said
    assert call(*common, "--classes", "ostrich") == 2
    said = capsys.readouterr().err
    assert "no class of the run is in these data" in said and "cat, dog, owl" in said and "Traceback" not in said


def test_labels_that_support_nothing_say_so(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("evaluate", "runs/a", "tags.csv", "--images", "photos", "--duplicates", "off", "--device", "cpu")
    assert call(*common, "--zeros", "unknown") == 0
    said = capsys.readouterr().out
    assert "no class has a known present and enough known absents: no accuracy can be measured here" in said
    assert "to get it" in said


def test_images_that_the_run_was_trained_on_are_counted(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("tags.csv", "--images", "photos", "--duplicates", "off")
    assert call("train", *data, "--out", "runs/a", "--epochs", "1", "--method", "an", "--device", "cpu") == 0
    Path("other.csv").write_text(Path("tags.csv").read_text())
    other = ("other.csv", *data[1:])
    capsys.readouterr()
    trained = len(lg.load("csv", "tags.csv", images="photos", duplicates="off").train)
    chosen = ((data, 0), ((*data, "--split", "all"), trained), (other, 0), ((*other, "--split", "train"), trained))
    for arguments, count in chosen:
        assert call("evaluate", "runs/a", *arguments, "--device", "cpu", "--resamples", "0") == 0
        warned = re.findall(r"^warning +the run was trained on (\d+) of these images", capsys.readouterr().out, re.M)
        assert warned == ([str(count)] if count else [])
    Path("tags.csv").unlink()
    assert call("evaluate", "runs/a", *other, "--split", "train", "--device", "cpu", "--resamples", "0") == 0
    assert f"trained on {trained} of these images" in capsys.readouterr().out, "the run knows them by itself"

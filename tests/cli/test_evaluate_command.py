from __future__ import annotations

import html
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from syrupy.assertion import SnapshotAssertion
from tests.cli.conftest import QUICK, Printed, Screen, call, check_command, copied_commands
from tests.sample_photos import write_color_photos
from tests.training.untrained_run import make_run

from labelgap.review import Review, open_review_folder


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """A run of cat, dog and owl, and a table that knows cat well, dog hardly, and of owls only presents."""
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


EVALUATE = ("evaluate", "runs/a", "tags.csv", "--images", "photos", "--duplicates", "off", "--device", "cpu")


def test_numbers_have_intervals_and_classes_a_row(pets: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    said = screen(*EVALUATE)
    assert said == snapshot
    review, evaluate = copied_commands(said)
    check_command(review, "review tags.csv --images photos --duplicates off --random 300 --split test")
    check_command(evaluate, "evaluate runs/a runs/a-tags-review")
    found = screen.json(*EVALUATE, "--resamples", "50")
    assert found["intervals"]["resamples"] == 50 and len(found["per_class"]) == 3
    assert found["classes_extra"] == ["ostrich"] and found["per_class"][2]["average_precision"] is None


def test_what_has_no_number_says_why(pets: Path, screen: Screen, snapshot: SnapshotAssertion) -> None:
    text = Path("tags.csv").read_text()
    Path("tags.csv").write_text(text.replace("\n6.png,test,,", "\n6.png,test,0,"))
    assert screen(*EVALUATE, "--resamples", "0") == snapshot(name="chance ranks a class well")
    Path("tags.csv").write_text(text)
    assert screen(*EVALUATE, "--classes", "cat", "--split", "all") == snapshot(name="classes are missing")
    assert screen(*EVALUATE, "--zeros", "unknown") == snapshot(name="no accuracy")
    assert screen.errors("evaluate runs/a tags.csv --images photos", "--classes ostrich") == snapshot(name="no class")


def test_a_review_is_measured_on_what_was_decided(pets: Path, printed: Printed, screen: Screen) -> None:
    drawn = ("review", "tags.csv", "--images", "photos", "--duplicates", "off", "--classes", "cat,dog,owl")
    assert call(*drawn, "--random", "30", "--split", "test", "--out", "random", "--summary") == 0
    said = printed("evaluate", "runs/a", "random", "--device", "cpu")
    assert re.search(r"^cat +17 +13 +\d", said, re.M) and re.search(r"^no number +owl: no known", said, re.M)
    assert copied_commands(said) == ["labelgap review random", "labelgap evaluate runs/a random"]
    with closing(Review(open_review_folder("random"))) as review:
        made = [review.decision(row, row % 2, f"request-{row:04d}", 0) for row in range(len(review.candidates))]
        review.store.append(made, reviewer="anna", client="window-1")
    assert "to get it" not in printed("evaluate", "runs/a", "random", "--device", "cpu"), "every label is known"
    found = screen.json("evaluate", "runs/a", "random", "--device", "cpu")
    assert found["images"] == 30 and found["classes_counted"] == 3 and found["per_class"][1]["unknown"] == 0
    assert "leave out --split" in printed("evaluate", "runs/a", "random", "--split", "test", code=2)


RUN = "my runs/it's first"
QUOTED = "'my runs/it'\"'\"'s first'"


@pytest.fixture
def tagged(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """DATA whose labels are present or unknown, and its options."""
    monkeypatch.setenv("COLUMNS", "60")
    write_color_photos("my photos", "my tags.csv")
    return ("my tags.csv", "--images", "my photos", "--zeros", "unknown", "--duplicates", "off")


def test_train_and_evaluate_end_with_commands_that_run(tagged: tuple[str, ...], printed: Printed) -> None:
    said = printed("train", *tagged, *QUICK, "--out", RUN)
    review, evaluate = copied_commands(said)
    assert f"{review}\n          {evaluate}\nnext      labelgap audit {QUOTED} " in said and "\naccuracy " in said
    words = check_command(review, f"review {QUOTED} --random 4")
    check_command(evaluate, f"evaluate {QUOTED} ")
    for page in (Path(RUN, "MODEL_CARD.md"), Path(RUN, "report.html")):
        text = html.unescape(re.sub(r"</?(?:pre|code)[^>]*>", "\n", page.read_text(encoding="utf-8")))
        assert copied_commands(text)[:2] == [review, evaluate], page
    assert call(*words, "--no-browser", "--summary") == 0
    assert (Path(f"{RUN}-review") / "review.json").is_file(), "the folder that the second command names"
    assert printed("evaluate", RUN, *tagged, "--split", "val", "--resamples", "0", "--device", "cpu").endswith(
        f"{review}\n          {evaluate}\n"
    )


def test_compare_ends_with_commands_that_run(tagged: tuple[str, ...], printed: Printed) -> None:
    options = ("--methods", "an", "--seeds", "1", "--epochs", "1", "--device", "cpu", "--out", "my study")
    said = printed("compare", *tagged, *options)
    review, apply = copied_commands(said)
    assert said.endswith(f"{review}\n          {apply}\n")
    words = check_command(review, "review 'csv=my tags.csv' --images 'my photos'")
    check_command(apply, "apply 'my study-review' --out 'my study-better.csv'")
    page = html.unescape(Path("my study", "report.html").read_text(encoding="utf-8"))
    assert "labelgap review 'csv=my tags.csv' --images 'my photos'" in page
    assert call(*words, "--no-browser", "--summary") == 0
    assert Path("my study-review", "review.json").is_file()


def test_where_every_label_is_known_nothing_is_left_to_review(photos: Path, printed: Printed) -> None:
    Path("few.csv").write_text("image,split,red,green\n0.jpg,train,1,0\n1.jpg,train,0,1\n2.jpg,val,1,0\n")
    data = ("few.csv", "--images", "photos", "--duplicates", "off")
    said = printed("train", *data, *QUICK, "--out", "runs/a")
    assert said.endswith("labelgap evaluate runs/a DATA\n")
    assert "labelgap review" not in said + Path("runs/a/MODEL_CARD.md").read_text(encoding="utf-8")

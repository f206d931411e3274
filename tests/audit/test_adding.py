"""A run gets more images: its album, its head, its audit and its review afterwards, also where it was killed."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.killing import killed_at_every_operation
from tests.review.samples import decide

import labelgap as lg
from labelgap.core.errors import InputError, ProblemsError, RunError
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.folder import drawn_rows
from labelgap.training.features import _MissingFeatures

OLD, NEW = 24, 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audited run on lists of tags without a split; the album has more photos than the table."""
    place = tmp_path_factory.mktemp("album")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELGAP_CACHE", str(place / "cache"))
        _take_photos(place / "photos", OLD + NEW)
        rows = [f"{number:02}.png,{'bright' if number % 3 == 0 else ''}" for number in range(OLD)]
        rows[1:3] = ["01.png,dark", "02.png,dark;odd"]
        (place / "tags.csv").write_text("image,present\n" + "\n".join(rows))
        _train(place / "tags.csv", place / "run", weight_decay=1.0)
        lg.find_missing(place / "run", quiet=True)
    return place


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELGAP_CACHE", str(trained / "cache"))
    (tmp_path / "more.csv").write_text("image,present\n24.png,bright\n25.png,dark;odd\n26.png,\n")
    return shutil.copytree(trained / "run", tmp_path / "run")


def _take_photos(folder: Path, count: int) -> None:
    random = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        color = random.integers(170, 220, 3) if number % 3 == 0 else random.integers(20, 120, 3)
        pixels = np.clip(color + random.normal(0, 25, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02}.png")


def _train(table: Path, out: Path, method: str = "an", **options: Any) -> lg.Run:
    data = lg.load(str(table), images=table.parent / "photos", **{"duplicates": "off", **options.pop("data", {})})
    return lg.fit(data, method, backbone="efficientnet-lite0", out=out, epochs=1, quiet=True, **options)


def _add(run: Path, table: Path, images: Path | None = None) -> lg.Run:
    return lg.add_images(run, table, images, quiet=True)


def test_only_the_features_of_new_images_are_computed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, compute = Counter[str](), _MissingFeatures.compute

    def count(self: _MissingFeatures, *arguments: Any) -> Counter[str]:
        counted.update(made := compute(self, *arguments))
        return made

    monkeypatch.setattr(_MissingFeatures, "compute", count)
    before = lg.open_run(run)
    images = before.load_data().train
    scores = before.predict(images)
    after = _add(run, run.parent / "more.csv")
    assert counted["computed"] == 3
    assert len(after.load_data().train) == OLD + 3 and after.path == run
    same = before.config.model_copy(update={"data": after.config.data, "why": None, "batch_size": OLD + 3})
    assert after.config.model_copy(update={"batch_size": OLD + 3}) == same
    assert not np.array_equal(scores, after.predict(images))
    assert lg.verify_run(run).intact


def test_decisions_stay_and_are_applied_to_old_and_new_rows(run: Path, tmp_path: Path) -> None:
    with closing(Review(open_review_folder(run))) as review:
        decide(review, [0, 1], ABSENT)
    old = decisions(run)
    _add(run, tmp_path / "more.csv")
    assert [*decisions(run)] == [*old]
    with closing(Review(open_review_folder(run))) as review:
        new = [number for number, (_, name) in enumerate(review.candidates.columns.images) if name >= f"{OLD}"]
        number = int(np.flatnonzero(np.isin(review.candidates.columns.image, new))[0])
        decide(review, [number], PRESENT)
        assert review.progress().decided == 3
        _, image, name = review.candidates.key(number)
    made = apply_decisions(open_review_folder(run), tmp_path / "better.csv")
    table = lg.load(str(tmp_path / "better.csv"), images=made.data.train.images.root, duplicates="off").train.labels  # type: ignore[attr-defined]
    assert len(table) == OLD + 3 and made.decided == 3
    assert table.codes_at([table.images.index(image)], [table.classes.index(name)]).tolist() == [PRESENT]
    assert table.codes_at([OLD, OLD + 1, OLD + 2], [0, 2, 1]).tolist() == [PRESENT, PRESENT, UNKNOWN]


def test_random_answers_of_the_old_draw_are_counted_as_decisions_alone(run: Path, tmp_path: Path) -> None:
    def random_answers() -> tuple[int, int]:
        with closing(Review(open_review_folder(run))) as review:
            total = review.estimate()
            assert total is not None
            return total.reviewed, review.progress().decided

    def answer(review: Review) -> None:
        for number in range(3):
            drawn = np.flatnonzero(
                review.candidates.columns.random_rank * (review.candidates.columns.class_number == number)
            )
            first = drawn[np.argsort(review.candidates.columns.random_rank[drawn])]
            decide(review, first, ABSENT, "random")

    with closing(Review(open_review_folder(run))) as review:
        answer(review)
    before = random_answers()
    assert before[0] == before[1] > 0
    _add(run, tmp_path / "more.csv")
    assert random_answers() == (0, before[1])
    with closing(Review(open_review_folder(run), read_only=True)) as review:
        assert review.estimates().total is not None and review.progress().decided == before[1]
    with closing(Review(open_review_folder(run))) as review:
        decided = review.current.decided.copy()
        answer(review)
        drawn = int(((review.candidates.columns.random_rank > 0) & ~decided).sum())
    assert 0 < random_answers()[0] <= drawn


def test_a_review_of_random_images_stays_with_its_images(run: Path, tmp_path: Path) -> None:
    _add(run, tmp_path / "more.csv")
    drawn = create_random_review(lg.open_run(run).load_data(), "train", 9, 0, tmp_path / "review")
    before = drawn_rows(drawn).tolist()
    _add(run, _photo(run, 0).parent)
    assert drawn_rows(open_review_folder(tmp_path / "review")).tolist() == before
    assert create_random_review(lg.open_run(run).load_data(), "train", 9, 0, tmp_path / "review").random


def test_all_mistakes_of_a_table_are_reported_at_once_and_nothing_changes(run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    table = tmp_path / "more.csv"
    table.write_text("image,present\n24.png,bright\n3.png,\nnone.png,dark\n05.png,dark\n24.png,odd\n")
    with pytest.raises(ProblemsError) as caught:
        _add(run, table)
    assert [problem.line for problem in caught.value.problems] == [3, 4, 5, 6] and caught.value.path == table
    assert "05.png is in tags.csv already" in str(caught.value)
    table.write_text("image,present\n24.png,bright\n25.png,owl\n")
    with pytest.raises(InputError, match="owl as a class"):
        _add(run, table)
    (tmp_path / "other").mkdir()
    shutil.copy(_photo(run, 24), tmp_path / "other" / "24.png")
    with pytest.raises(InputError, match="Copy it there: cp -r"):
        _add(run, table, tmp_path / "other")
    table.write_text("image,split,present\n24.png,val,bright\n")
    with pytest.raises(InputError, match="no column 'split'"):
        _add(run, table)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def _photo(run: Path, number: int) -> Path:
    images: Any = lg.open_run(run).load_data().train.images
    return Path(images.root) / f"{number:02}.png"


def test_a_table_that_was_added_is_not_added_again(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "more.csv"
    after = _add(run, table)
    weights = (run / "best.safetensors").read_bytes()
    assert _add(run, table).metrics == after.metrics and (run / "best.safetensors").read_bytes() == weights
    table.write_text("image,present\n24.png,dark\n")
    with pytest.raises(ProblemsError, match=r"24\.png is in .* already"):
        _add(run, table)


def test_killed_anywhere_the_old_or_the_new_run_is_there_and_the_command_is_repeated(run: Path, tmp_path: Path) -> None:
    sizes = []
    for _ in killed_at_every_operation(partial(_add, run, tmp_path / "more.csv"), run, step=23):
        opened = lg.open_run(run)
        assert lg.verify_run(run).intact or (run / ".growing").exists()
        sizes.append(len(opened.load_data().train))
        assert (run / "candidates.parquet").exists() and opened.finished
    assert len(sizes) > 1 and sizes[0] == OLD and sizes[-1] == OLD + 3
    assert len(_add(run, tmp_path / "more.csv").load_data().train) == OLD + 3
    assert lg.verify_run(run).intact


@pytest.mark.parametrize("wide", [True, False])
def test_rows_take_the_form_of_the_runs_own_table(wide: bool, trained: Path, run: Path, tmp_path: Path) -> None:
    names = [f"{number:02}.png" for number in range(12)]
    (tmp_path / "photos").symlink_to(trained / "photos")
    if wide:
        cells = [
            f"{name};{'val' if row > 8 else 'train'};{row % 2};{'' if row % 3 else 1}" for row, name in enumerate(names)
        ]
        (tmp_path / "own.csv").write_text("image;split;bright;dark\r\n" + "\r\n".join(cells))
        _train(tmp_path / "own.csv", tmp_path / "own", data={"zeros": "unknown"})
    else:
        present = [["bright"] if row % 2 else [] for row in range(12)]
        present[0] = ["dark"]
        table = lg.LabelTable.from_lists(present, [[]] * 12, classes=["dark", "bright", "odd"], images=names)
        table.to_parquet(tmp_path / "own.parquet")
        _train(tmp_path / "own.parquet", tmp_path / "own")
    more = tmp_path / ("more.parquet" if wide else "more.csv")
    written = ["image,split,dark,bright", "24.png,val,1,1", "25.png,train,,1"]
    if not wide:
        written = ["image,dark,bright", "24.png,0,1", "25.png,,1"]
    (tmp_path / "new.csv").write_text("\n".join(written))
    if wide:
        pq.write_table(pyarrow.csv.read_csv(tmp_path / "new.csv"), more)
    else:
        (tmp_path / "new.csv").replace(more)
    data = _add(tmp_path / "own", more).load_data()
    labels = {
        image: row
        for split in data.splits
        for image, row in zip(split.labels.images, split.labels.to_dense().tolist(), strict=True)
    }
    dark, bright = data.classes.index("dark"), data.classes.index("bright")
    assert (labels["24.png"][dark], labels["24.png"][bright]) == ((PRESENT, PRESENT) if wide else (ABSENT, PRESENT))
    assert (labels["25.png"][dark], labels["25.png"][bright]) == (UNKNOWN, PRESENT)
    assert labels["02.png"][bright] == UNKNOWN and len(labels) == 14
    if wide:
        assert data.val is not None and "24.png" in data.val.labels.images and "zeros" not in data.recipe["options"]


def test_a_copy_of_an_image_of_val_is_not_trained_on(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "photos", tmp_path / "photos")
    shutil.copy(tmp_path / "photos" / "05.png", tmp_path / "photos" / "copy.png")
    rows = [f"{number:02}.png,{'val' if number > 3 else 'train'},{number % 2}" for number in range(6)]
    (tmp_path / "own.csv").write_text("image,split,bright\n" + "\n".join(rows))
    _train(tmp_path / "own.csv", tmp_path / "own", data={"duplicates": "exact"})
    (tmp_path / "more.csv").write_text("image,bright\ncopy.png,1\n")
    with pytest.raises(ProblemsError, match=r"05\.png \(val\) is the same file as copy\.png \(train\)") as caught:
        _add(tmp_path / "own", tmp_path / "more.csv")
    assert caught.value.path == tmp_path / "more.csv" and not (tmp_path / "own" / ".growing").exists()


def test_a_folder_gives_all_its_new_images_without_labels(run: Path) -> None:
    folder = _photo(run, 0).parent
    data = _add(run, folder).load_data()
    assert len(data.train) == OLD + NEW
    assert (data.train.labels.to_dense()[OLD:] == UNKNOWN).all()


def test_the_first_known_labels_do_not_join_a_run_that_learned_from_its_prior_alone(run: Path, tmp_path: Path) -> None:
    photos = _photo(run, 0).parent
    (tmp_path / "blank.csv").write_text("image,bright\n" + "".join(f"{number:02}.png,\n" for number in range(OLD)))
    said = "".join(f"{number:02}.png,bright,{0.9 if number % 3 == 0 else 0.1}\n" for number in range(OLD + NEW))
    (tmp_path / "said.csv").write_text("image,class,probability\n" + said)
    data = lg.load(str(tmp_path / "blank.csv"), images=photos, prior=tmp_path / "said.csv", duplicates="off")
    alone = lg.fit(data, backbone="efficientnet-lite0", protocol="linear", out=tmp_path / "alone", epochs=1, quiet=True)
    (tmp_path / "first.csv").write_text("image,bright\n" + "".join(f"{OLD + number}.png,1\n" for number in range(NEW)))
    with pytest.raises(RunError, match=r"prior alone.*new run"):
        _add(alone.path, tmp_path / "first.csv")
    (tmp_path / "first.csv").write_text("image,bright\n24.png,1\n")  # too few to judge the prior by
    assert len(_add(alone.path, tmp_path / "first.csv").load_data().train) == OLD + 1


def test_a_run_of_another_kind_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = lg.load("digits", train=12, val=4, test=4)
    run = lg.fit(data, "an", out=tmp_path / "digits", epochs=1, quiet=True)
    with pytest.raises(RunError, match=r"protocol end-to-end.*train a new run"):
        _add(run.path, tmp_path)
    run = lg.fit(data, "an", out=tmp_path / "linear", protocol="linear", epochs=1, quiet=True)
    with pytest.raises(RunError, match=r"hidden.*train a new run|convert"):
        _add(run.path, tmp_path)


def test_the_command_adds_and_refuses_other_settings(
    run: Path, tmp_path: Path, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    add = ["train", str(run), "--add", str(tmp_path / "more.csv")]
    assert call(*add, "--epochs", "3") == 2 and "leave --epochs out" in capsys.readouterr().err
    assert call(*add) == 0
    said = capsys.readouterr().out
    assert f"labelgap review {run}" in said and f"labelgap audit {run}" not in said, "which is made again already"
    assert (run / "report.html").exists()

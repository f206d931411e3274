from __future__ import annotations

import csv
import json
import re
import stat
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.special import expit
from tests.killing import killed_at_every_operation
from tests.mutations import mutations
from tests.racing import race
from tests.training.untrained_run import CLASSES, MARKS, make_run, predict_many, predict_when_refused

import labelgap as lg
from labelgap.core.errors import InputError, LabelGapError, RunError
from labelgap.core.text import unquote_formula
from labelgap.data import ArrayImages, FeatureVectors, FileImages
from labelgap.inference import predict as predict_module
from labelgap.inference.columns import LABELS, labels_from_scores
from labelgap.inference.predict import predict_to_file
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.metrics import Thresholds
from labelgap.metrics.label_model import PlattCalibration
from labelgap.models import inference
from labelgap.training import Run


def expected_label(score: float, threshold: float, mark: str, scale: float) -> str:
    if mark == "default":
        return "unsure"
    ratio = ((score / (1 - score)) / (threshold / (1 - threshold))) ** scale
    within = 1.2 if mark == "measured" else 1.3
    return "present" if ratio >= within else "absent" if ratio < 1 / within else "unsure"


def test_a_wide_parquet_has_a_row_per_image_and_metadata(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    summary = predict_to_file(run, images, tmp_path / "a.parquet", layout="wide", device="cpu", batch_size=32)
    table = pq.read_table(summary.path)
    assert table.column_names == [
        "image",
        *(f"score.{name}" for name in CLASSES),
        *("probability.cat", "probability.owl"),
        *(f"label.{name}" for name in CLASSES),
        *(f"mark.{name}" for name in CLASSES),
    ]
    assert table["image"].to_pylist() == list(images.names) and summary.images == 150
    scores = np.stack([table[f"score.{name}"].to_numpy() for name in CLASSES], axis=1)
    np.testing.assert_allclose(scores, run.predict(images, device="cpu"), atol=1e-6)
    logits = np.log(scores / (1 - scores))
    np.testing.assert_allclose(table["probability.owl"], 1 / (1 + np.exp(0.5 - 2 * logits[:, 2])), atol=1e-5)
    for column, (name, mark) in enumerate(zip(CLASSES, MARKS, strict=True)):
        assert table[f"mark.{name}"].unique().to_pylist() == [mark]
        threshold = run.thresholds.values[column]
        expected = [expected_label(float(score), threshold, mark, 2.0) for score in scores[:, column]]
        assert table[f"label.{name}"].to_pylist() == expected
    stored = json.loads(table.schema.metadata[b"labelgap"])
    assert stored["classes"] == list(CLASSES) and stored["marks"] == list(MARKS)
    assert summary.present + summary.absent + summary.unsure == 450 and summary.unreadable == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_lists_of_tags_are_read_back_as_labels(run: Run, photos: FileImages, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"a.{suffix}"
    summary = predict_to_file(run, photos, out, device="cpu")
    read = lg.load(suffix, out, images=photos.root, on_bad_image="skip", duplicates="off")
    wide = predict_to_file(run, photos, tmp_path / "wide.parquet", layout="wide", device="cpu")
    codes = {"present": PRESENT, "absent": ABSENT, "unsure": UNKNOWN}
    rows = {row["image"]: row for row in pq.read_table(wide.path).to_pylist() if row["score.cat"] is not None}
    named = {name for row in rows.values() for name in CLASSES if row[f"label.{name}"] != "unsure"}
    assert set(read.classes) == (named if suffix == "csv" else set(CLASSES))
    seen = 0
    for split in read.splits:
        for name, labels in zip(split.labels.images, split.labels.to_dense(), strict=True):
            assert labels.tolist() == [codes[rows[name][f"label.{each}"]] for each in read.classes]
            seen += 1
    assert seen == len(rows) == 24 - summary.unreadable == 21


def test_a_class_with_a_semicolon_does_not_fit_into_lists_of_a_csv(images: ArrayImages, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", classes=["a;b", "c", "d"])
    with pytest.raises(InputError, match=r"'a;b' has a ';'.*parquet"):
        predict_to_file(run, images, tmp_path / "a.csv", device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    table = pq.read_table(predict_to_file(run, images, tmp_path / "a.parquet", device="cpu").path)
    assert table["unsure"][0].as_py() == ["a;b", "c", "d"]


def test_csv_and_parquet_hold_the_same_values(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    plain = make_run(tmp_path / "run", marks=("measured",) * 3)
    for layout in ("wide", "long"):
        names = pq.read_schema(predict_to_file(plain, images, tmp_path / f"{layout}-plain.parquet", layout=layout).path)
        assert not [name for name in names.names if "probability" in name], "without a calibration there is none"
        for suffix in ("csv", "parquet"):
            predict_to_file(run, images, tmp_path / f"{layout}.{suffix}", layout=layout, device="cpu")
        table = pq.read_table(tmp_path / f"{layout}.parquet")
        with (tmp_path / f"{layout}.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == table.column_names
        for name in table.column_names:
            values = table[name].to_pylist()
            if name.startswith(("score", "probability")):
                read = [float(row[name]) if row[name] else None for row in rows]
                assert values == pytest.approx(read, abs=1e-6)
            else:
                assert values == [row[name] for row in rows]
    assert len(rows) == 450 and list(rows[0]) == ["image", "class", "score", "probability", "label", "mark"]
    assert [row["class"] for row in rows[:4]] == ["cat", "dog", "owl", "cat"] and rows[3]["image"] == "photo 1.png"
    assert [row["probability"] == "" for row in rows[:3]] == [False, True, False]
    scores = run.predict(images, device="cpu")
    np.testing.assert_allclose([float(row["score"]) for row in rows], scores.ravel(), atol=1e-6)
    assert {row["label"] for row in rows if row["class"] == "owl"} == {"unsure"}


def test_names_that_begin_as_formulas_are_quoted_in_csv_and_not_in_parquet(run: Run, tmp_path: Path) -> None:
    names = ["=1+1.png", "'=2.png", "@a", "-5", "b.png"]
    photos = ArrayImages(np.zeros((5, 64, 64), dtype=np.uint8), names)
    for layout, repeated in (("lists", 1), ("wide", 1), ("long", 3)):
        predict_to_file(run, photos, tmp_path / f"{layout}.csv", layout=layout, device="cpu")
        predict_to_file(run, photos, tmp_path / f"{layout}.parquet", layout=layout, device="cpu")
        with (tmp_path / f"{layout}.csv").open(newline="", encoding="utf-8") as file:
            cells = [row["image"] for row in csv.DictReader(file)][::repeated]
        assert cells == ["'=1+1.png", "''=2.png", "'@a", "-5", "b.png"]
        assert [unquote_formula(cell) for cell in cells] == names
        assert pq.read_table(tmp_path / f"{layout}.parquet")["image"].to_pylist()[::repeated] == names


def test_labels_follow_the_rule_at_its_limits() -> None:
    cuts = Thresholds(np.array([0.5, 0.5, 0.5, 0.0, 1.0]), ("measured", "estimated", "default", "measured", "measured"))
    limits = (1.2001 / 2.2001, 1.1999 / 2.1999, 1 / 2.1999, 1 / 2.2001, 0, 1)
    scores = np.repeat(np.array(limits, dtype=np.float32)[:, None], 5, axis=1)
    named = [[LABELS[code] for code in row] for row in labels_from_scores(scores, cuts)]
    assert [row[0] for row in named] == ["present", "unsure", "unsure", "absent", "absent", "present"]
    assert [row[1] for row in named] == ["unsure", "unsure", "unsure", "unsure", "absent", "present"]
    assert {row[2] for row in named} == {"unsure"}
    assert [row[3] for row in named] == ["present"] * 6
    assert [row[4] for row in named] == ["absent"] * 5 + ["present"]
    steep = PlattCalibration(100.0, (0.0,) * 5, (True,) * 5, 5, 5, 1.0)
    named = [[LABELS[row[0]]] for row in labels_from_scores(scores, cuts, steep)]
    assert [row[0] for row in named] == ["present"] * 2 + ["absent"] * 3 + ["present"]


BAD = ("05.png", "11.png", "12.png")


@pytest.fixture
def photos(tmp_path: Path) -> FileImages:
    """Twenty-four photos, three of which cannot be read."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    names = [f"{number:02d}.png" for number in range(24)]
    for name in names:
        Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(folder / name)
    (folder / "05.png").write_bytes(b"")
    (folder / "11.png").unlink()
    (folder / "12.png").write_text("no picture")
    return FileImages(folder, names)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("small_chunks")
def test_unreadable_images_have_blank_rows(run: Run, photos: FileImages, tmp_path: Path, workers: int) -> None:
    out = tmp_path / "a.parquet"
    summary = predict_to_file(run, photos, out, layout="wide", device="cpu", batch_size=8, workers=workers)
    rows = {row["image"]: row for row in pq.read_table(out).to_pylist()}
    bad = {name for name, row in rows.items() if row["score.cat"] is None}
    assert bad == {*BAD} and summary.unreadable == 3
    assert all(value is None for key, value in rows["11.png"].items() if key != "image")
    good = [row for row in range(24) if photos.names[row] not in bad]
    expected = run.predict(photos.select(good), device="cpu")
    np.testing.assert_allclose([rows[photos.names[row]]["score.dog"] for row in good], expected[:, 1], atol=1e-5)
    assert [word for reason, word in zip(summary.errors, ("empty", "exist", "picture"), strict=True) if word in reason]
    assert summary.error_file == tmp_path / "a-unreadable.csv"
    with summary.error_file.open(newline="", encoding="utf-8") as file:
        assert [row["image"] for row in csv.DictReader(file)] == sorted(bad)


@pytest.mark.usefixtures("small_chunks")
def test_with_error_unreadable_images_are_named(run: Run, photos: FileImages, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    with pytest.raises(InputError, match="3 images") as caught:
        predict_to_file(run, photos, out, device="cpu", batch_size=8, on_bad_image="error")
    assert all(name in str(caught.value) for name in BAD)
    assert not out.exists() and (tmp_path / "a.csv.partial").exists()
    for name in BAD:
        Image.new("RGB", (20, 20)).save(photos.root / name)
    summary = predict_to_file(run, photos, out, device="cpu", batch_size=8, on_bad_image="error")
    assert summary.unreadable == 0 and not (tmp_path / "a.csv.partial").exists()
    whole = predict_to_file(run, photos, tmp_path / "b.csv", device="cpu", batch_size=8)
    assert out.read_bytes() == whole.path.read_bytes()


def test_several_sources_follow_each_other(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    both = [images.select(range(70)), images.select(range(70, 150))]
    predict_to_file(run, both, tmp_path / "a.csv", device="cpu", batch_size=10)
    predict_to_file(run, images, tmp_path / "b.csv", device="cpu", batch_size=10)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(("protocol", "precision"), [("linear", "float32"), ("linear", "bf16"), ("end-to-end", "bf16")])
def test_evaluate_and_predict_score_alike(
    tmp_path: Path, protocol: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "cpu_precision", lambda: "bfloat16")
    run = make_run(tmp_path / "run", backbone="efficientnet-lite0", protocol=protocol, precision=precision, size=32)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    evaluated = run.logits(ArrayImages(pixels), device="cpu", cached=True)  # of evaluate; it fills the cache
    np.testing.assert_allclose(run.logits(ArrayImages(pixels), device="cpu"), evaluated, rtol=0, atol=1e-5)
    for name, images in (("cached", pixels), ("computed", pixels[:, ::-1])):
        predict_to_file(run, ArrayImages(images.copy()), tmp_path / f"{name}.parquet", device="cpu", layout="wide")
        found = pq.read_table(tmp_path / f"{name}.parquet").select([f"score.{each}" for each in CLASSES])
        expected = expit(run.logits(ArrayImages(images.copy()), device="cpu"))
        np.testing.assert_allclose(np.column_stack(found.columns), expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        exact = run.model.eval()(run.model.normalize(torch.from_numpy(pixels).permute(0, 3, 1, 2))).numpy()
    difference = np.abs(evaluated - exact).max()
    rounded = run.config.feature_precision == "bfloat16"
    assert 1e-3 < difference < 0.3 if rounded else difference < 2e-4
    assert rounded == ((protocol, precision) == ("linear", "bf16"))


def test_features_are_predicted_like_images(tmp_path: Path, images: ArrayImages) -> None:
    run = make_run(tmp_path / "run", backbone="features", width=5)
    vectors = FeatureVectors(np.random.default_rng(0).normal(size=(129, 5)))  # the last batch has one
    summary = predict_to_file(run, vectors, tmp_path / "a.parquet", layout="wide", device="cpu")
    scores = pq.read_table(summary.path)["score.cat"].to_numpy()
    np.testing.assert_allclose(scores, run.predict(vectors, device="cpu")[:, 0], atol=1e-6)
    with pytest.raises(InputError, match="cannot read images"):
        predict_to_file(run, images, tmp_path / "b.parquet", device="cpu")


def test_wrong_arguments_are_rejected_before_anything_is_written(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("kept")
    unfinished = make_run(tmp_path / "unfinished", finished=False)
    cases: list[tuple[str, Run, dict[str, Any], type[LabelGapError]]] = [
        ("a.txt", run, {}, InputError),
        ("there.csv", run, {}, InputError),
        *(("a.csv", run, {name: 0}, InputError) for name in ("layout", "on_bad_image", "batch_size")),
        ("a.csv", unfinished, {}, RunError),
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    for name, run_, options, error in cases:
        with pytest.raises(error):
            predict_to_file(run_, images, tmp_path / name, device="cpu", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (tmp_path / "there.csv").read_text() == "kept"
    (tmp_path / "there.csv").chmod(0o640)
    predict_to_file(run, images, tmp_path / "there.csv", device="cpu", force=True)
    assert stat.S_IMODE((tmp_path / "there.csv").stat().st_mode) == 0o640
    predict_to_file(run, images, tmp_path / "new" / "folder" / "a.csv", device="cpu")
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "new" / "folder" / "a.csv").read_bytes()
    assert (tmp_path / "there.csv").read_text().startswith('"image"')


class GeneratedImages:
    """Many images, each generated when it is read."""

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def names(self) -> Sequence[str]:
        return GeneratedNames(self.count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        return np.full((64, 64, 1), row % 251, dtype=np.uint8)

    def select(self, rows: ArrayLike) -> ArrayImages:
        return ArrayImages(np.zeros((len(np.asarray(rows)), 1, 1), dtype=np.uint8))

    def fingerprint(self) -> str:
        return str(self.count)


class GeneratedNames(Sequence[str]):
    """The names 0, 1, 2 … without storing them."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [str(number) for number in range(*place.indices(self.total))]
        return str(place)


def test_memory_does_not_grow_with_the_number_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand images of forty classes, by a network that only averages pixels."""
    run = make_run(tmp_path / "run", classes=[f"class {number}" for number in range(40)])
    monkeypatch.setattr(predict_module, "MAX_IMAGES", 256)
    monkeypatch.setattr(predict_module, "MAX_ENTRIES", 40 * 512)
    monkeypatch.setattr(type(run.model), "forward", lambda self, images: images.mean(dim=(2, 3)).repeat(1, 40))
    predict_to_file(run, GeneratedImages(300), tmp_path / "a.csv", layout="wide", device="cpu", batch_size=128)
    peaks = []
    for count in (1_000, 10_000):
        tracemalloc.start()
        out = tmp_path / f"{count}.csv"
        summary = predict_to_file(run, GeneratedImages(count), out, layout="wide", device="cpu", batch_size=128)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert summary.images == count
    with summary.path.open(encoding="utf-8") as file:
        lines = sum(1 for _ in file)
    assert lines == 10_001
    scores = 10_000 * 40 * 4
    assert peaks[1] - peaks[0] < scores / 10, f"{peaks} bytes, and all scores would be {scores}"


class KilledError(Exception):
    """Simulates the end of a process."""


class InterruptedImages:
    """Images of which one raises, the first time."""

    def __init__(self, images: ArrayImages, at: int) -> None:
        self.images, self.at = images, at
        self.names = images.names
        self.rows_read: list[int] = []

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        self.rows_read.append(row)
        if row == self.at:
            self.interrupt()
        return self.images[row]

    def interrupt(self) -> None:
        raise KilledError

    def select(self, rows: ArrayLike) -> ArrayImages:
        return self.images.select(rows)

    def fingerprint(self) -> str:
        return self.images.fingerprint()


@pytest.mark.usefixtures("small_chunks")
def test_an_interrupted_prediction_resumes_after_its_last_chunk(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    source = InterruptedImages(images, at=100)
    with pytest.raises(KilledError):
        predict_to_file(run, source, out, device="cpu", batch_size=8)
    assert not out.exists()
    source.at, source.rows_read = 10**9, []
    predict_to_file(run, source, out, device="cpu", batch_size=8)
    assert source.rows_read[0] == 96 and len(source.rows_read) == 54
    predict_to_file(run, images, tmp_path / "b.csv", device="cpu", batch_size=8)
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.usefixtures("small_chunks")
def test_chunks_of_another_prediction_are_not_resumed(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    other = make_run(tmp_path / "other", head="boostlu")
    for run_, source, size, message in (
        (other, images, 8, "another run"),
        (run, images.select(range(149, -1, -1)), 8, "other images"),
        (run, images.select(range(100)), 8, "other images"),
        (run, images, 4, "another batch size"),
    ):
        with pytest.raises(RunError, match=message):
            predict_to_file(run_, source, out, device="cpu", batch_size=size)
    predict_to_file(other, images, out, device="cpu", batch_size=8, restart=True)
    predict_to_file(other, images, tmp_path / "b.csv", device="cpu", batch_size=8)
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_foreign_folder_is_not_touched(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    folder = tmp_path / "a.csv.partial"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    for restart in (False, True):
        with pytest.raises(RunError, match="and is no prediction"):
            predict_to_file(run, images, tmp_path / "a.csv", device="cpu", restart=restart)
    assert (folder / "thesis.txt").read_text() == "precious"


@pytest.mark.usefixtures("small_chunks")
def test_killed_at_every_operation_it_ends_with_the_same_bytes(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    folder, whole = tmp_path / "killed", tmp_path / "whole.csv"
    folder.mkdir()
    out, kills = folder / "a.csv", 0
    images = images.select(range(30))
    predict_to_file(run, images, whole, device="cpu", batch_size=8)
    for kills in killed_at_every_operation(
        lambda: predict_to_file(run, images, out, device="cpu", batch_size=8), folder, step=2
    ):
        try:
            predict_to_file(run, images, out, device="cpu", batch_size=8)
        except InputError as error:
            assert "exists already" in str(error)
        assert out.read_bytes() == whole.read_bytes()
        assert [path.name for path in folder.iterdir()] == [out.name], f"after a kill at operation {kills}"
        out.unlink()
    assert kills > 15


@pytest.mark.usefixtures("small_chunks")
def test_damaged_chunks_are_redone(
    run: Run, images: ArrayImages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "a.csv", tmp_path / "a.csv.partial"
    whole = predict_to_file(run, images, tmp_path / "whole.csv", device="cpu", batch_size=8).path.read_bytes()
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    chunk = kept["part-000002.parquet"]
    swapped = kept["part-000003.parquet"]
    for content in (swapped, b"", *mutations(chunk, 5)):
        folder.mkdir(exist_ok=True)
        for name, original in kept.items():
            (folder / name).write_bytes(original)
        (folder / "part-000002.parquet").write_bytes(content)
        source = InterruptedImages(images, at=10**9)
        predict_to_file(run, source, out, device="cpu", batch_size=8, quiet=False)
        assert out.read_bytes() == whole and not folder.exists()
        assert source.rows_read[:16] == list(range(32, 48)) and len(source.rows_read) == 16 + 54
        assert "part-000002.parquet is damaged or incomplete" in re.sub(r"\s+", " ", capsys.readouterr().err)
        out.unlink()


def test_a_damaged_description_is_discarded_by_restart(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out, folder = tmp_path / "a.csv", tmp_path / "a.csv.partial"
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    path = folder / "_prediction.json"
    for content in (b"", b"[]", b"{}", b"[" * 100_000, b'{"format": 1e999}', *mutations(path.read_bytes(), 60)):
        path.write_bytes(content)
        with pytest.raises(RunError, match="restart"):
            predict_to_file(run, InterruptedImages(images, at=0), out, device="cpu", batch_size=8)
    predict_to_file(run, images, out, device="cpu", batch_size=8, restart=True)
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


@pytest.mark.usefixtures("small_chunks")
def test_nothing_is_written_through_a_link_in_place_of_a_chunk(run: Run, images: ArrayImages, tmp_path: Path) -> None:
    out, folder, other = tmp_path / "a.csv", tmp_path / "a.csv.partial", tmp_path / "other"
    with pytest.raises(KilledError):
        predict_to_file(run, InterruptedImages(images, at=100), out, device="cpu", batch_size=8)
    other.write_text("mine")
    (folder / "part-000002.parquet").unlink()
    (folder / "part-000002.parquet").symlink_to(other)
    with pytest.raises(RunError, match="part-000002"):
        predict_to_file(run, images, out, device="cpu", batch_size=8)
    assert other.read_text() == "mine" and not out.exists()


def test_of_two_predictions_into_one_file_one_is_refused_and_names_the_other(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    refused, done = race(predict_when_refused, str(run.path), str(out))
    assert done == "done" and "a.csv.partial is in use by another process (predicting, process" in refused
    predict_many(str(run.path), str(tmp_path / "b.csv"), 40)
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]

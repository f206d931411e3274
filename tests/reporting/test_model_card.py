"""``MODEL_CARD.md``: a stranger understands the run from it, and finds no number that the labels do not support."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import labelgap as lg
from labelgap.data.dataset import Dataset
from labelgap.metrics.validation import expected_random_precision
from labelgap.reporting.model_card import render_model_card
from labelgap.reporting.page import escape_markdown


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return lg.load("digits", train=96, val=40, test=40)


@pytest.fixture(scope="module")
def run(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    out = tmp_path_factory.mktemp("runs") / "digits"
    return lg.fit(digits, "ll-cp", {"delta_rel": 20}, out=out, epochs=2, device="cpu", quiet=True)


def again(run: lg.Run, **metrics: Any) -> lg.Run:
    """The same run with something else in its summary."""
    opened = lg.open_run(run.path)
    opened.metrics = opened.metrics | metrics
    return opened


def sections(text: str) -> dict[str, str]:
    """The card's parts by their titles; under "" what stands before the first."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the tables in a text, by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


def test_write_report_writes_the_card_with_every_section(run: lg.Run, digits: Dataset) -> None:
    path = run.path / "MODEL_CARD.md"
    assert not path.exists()
    lg.write_report(run)
    lg.write_report(run, data=digits)
    text = path.read_text(encoding="utf-8")
    assert text == render_model_card(run, digits) and text.endswith(".\n") and "\n\n\n" not in text
    lg.write_report(run)
    assert path.read_text(encoding="utf-8") == text
    titles = ["", "Results", "Use", "Intended use and limits", "Data", "Method", "Settings"]
    assert list(sections(text)) == [*titles, "Reproduce", "Licenses"]


def test_the_numbers_are_those_of_the_run(run: lg.Run, digits: Dataset) -> None:
    found = rows(sections(render_model_card(run, digits))["Results"])
    for split in ("test", "val", "train"):
        measured = run.metrics[split]
        numbers = [f"{100 * measured[name]:.1f}" for name in ("map", "map_samples", "f1_micro", "f1_macro")]
        assert found[split] == [str(measured["images"]), numbers[0], "10 of 10 classes", *numbers[1:]]
    each = run.metrics["test"]["average_precision"]
    shown = [name.removesuffix(r" \*") for name in found if name.removesuffix(r" \*") in each]
    assert shown == sorted(each, key=lambda name: -each[name])
    assert digits.test is not None
    few = digits.test.labels.counts().present < 10
    assert {name for name in found if name.endswith("*")} == {rf"{k} \*" for k in np.flatnonzero(few)}


def test_chance_what_flatters_and_the_states_of_the_labels_are_told(run: lg.Run, digits: Dataset) -> None:
    card = sections(render_model_card(run, digits))
    assert digits.test is not None
    counts = digits.test.labels.counts()
    chance = expected_random_precision(counts.present, counts.absent).mean()
    assert f"an mAP of about {100 * chance:.1f}." in card["Results"]
    assert "The epoch and the thresholds were selected on val" in card["Results"]
    assert f"Epoch {run.metrics['best_epoch']} of 2 was kept." in card["Results"]
    assert rows(card["Data"])["train"] == ["96", "96", "0", "864 (90 %)"]
    assert all(f"- {escape_markdown(str(finding))}\n" in card["Data"] for finding in digits.findings)


def test_revisions_are_counted_and_judged_where_the_truth_is_known(run: lg.Run, digits: Dataset) -> None:
    quality = run.metrics["revisions"]
    said = sections(render_model_card(run, digits))["Method"]
    assert quality["revised"] > 0 and f"It made {len(run.revisions)} revisions" in said
    assert f"{100 * quality['precision']:.1f} % of them are correct ({quality['correct']} of " in said
    stopped = render_model_card(again(run, revisions=None, interrupted=True, epochs=1), digits)
    assert "are correct" not in sections(stopped)["Method"] and "interrupted after 1 of 2 epochs.**" in stopped


def test_method_paper_reason_and_settings_are_told(run: lg.Run, digits: Dataset) -> None:
    text = render_model_card(run, digits)
    said = sections(text)
    assert 'Kim et al., "Large Loss Matters' in said["Method"] and "requested by name" in said["Method"]
    settings = rows(said["Settings"])
    assert settings["options"] == [r"delta\_rel 20, base unknown"] and settings["preset"] == ["none"]
    assert settings["images"] == ["resized to 64 × 64 pixels"] and settings["head"] == ["linear"]
    assert "data = lg.load('digits', train=96, val=40, test=40)" in said["Reproduce"]


def test_licenses_of_weights_and_data_are_those_that_were_recorded(run: lg.Run, digits: Dataset) -> None:
    found = sections(render_model_card(run, digits))["Licenses"]
    assert "license unknown to labelgap" in found
    weights = {"source": "a friend", "license": "MIT"}
    assert "a friend; MIT." in sections(render_model_card(again(run, weights=weights), digits))["Licenses"]
    licensed = replace(digits, recipe={**digits.recipe, "license": "cc-by-4.0"})
    text = render_model_card(run, licensed)
    assert "(digits): cc-by-4.0." in text and 'license: "cc-by-4.0"\n' in text


def test_the_hub_can_read_the_front_matter(run: lg.Run, digits: Dataset) -> None:
    yaml = pytest.importorskip("yaml")
    front = yaml.safe_load(render_model_card(run, digits).split("---\n")[1])
    assert front["library_name"] == "labelgap" and front["pipeline_tag"] == "image-classification"
    assert front["license"] == "unknown" and {"labelgap", "multi-label-classification", "ll-cp"} <= set(front["tags"])
    result = front["model-index"][0]["results"][0]
    assert result["task"]["type"] == "image-classification" and result["dataset"]["split"] == "test"
    assert result["metrics"][0]["value"] == pytest.approx(run.metrics["test"]["map"], abs=1e-4)


def test_positives_alone_have_no_number_anywhere(digits: Dataset, tmp_path: Path) -> None:
    assert digits.val is not None
    val = lg.Split("val", digits.val.images, digits.val.labels.observe(1, 0))
    blind = Dataset("blind", digits.train, val)
    run = lg.fit(blind, "an", backbone="small-cnn", protocol="end-to-end", out=tmp_path / "run", epochs=2, quiet=True)
    text = render_model_card(run, blind)
    said = sections(text)
    assert "support no accuracy, so none is claimed" in said[""] and "model-index" not in text
    assert "val" not in rows(said["Results"]) and "random ranking" not in said["Results"]
    assert "the rule *observed*" in said["Results"]
    score = run.history[run.metrics["best_epoch"] - 1]["score"]
    assert f"{100 * score:.1f}" not in said["Results"].replace("train", "")


def test_a_card_without_val_and_test_measures_nothing(digits: Dataset, tmp_path: Path) -> None:
    alone = Dataset("alone", replace(digits.train, truth=None))
    settings: dict[str, Any] = {"backbone": "small-cnn", "protocol": "end-to-end", "epochs": 1, "quiet": True}
    run = lg.fit(alone, "an", out=tmp_path / "run", **settings)
    said = sections(render_model_card(run, alone))
    assert "Nothing was measured" in said["Results"]
    assert "10 left at 0.5 because the known labels support none." in said["Use"]


def test_thresholds_of_a_run_without_val_come_from_the_folds(digits: Dataset, tmp_path: Path) -> None:
    assert digits.train.truth is not None
    known = Dataset("known", replace(digits.train, labels=digits.train.truth, truth=None))
    run = lg.fit(known, "bce", backbone="small-cnn", protocol="linear", out=tmp_path / "run", epochs=1, quiet=True)
    page = lg.write_report(run, data=known).read_text(encoding="utf-8")
    said = sections(render_model_card(run, known))
    for text in (said["Use"], page):
        assert "10 measured out of fold" in text and "on val" not in text
    lines = [line for line in said["Results"].splitlines() if line.startswith("|")]
    table = lines[lines.index("|  | average precision | known present in train | threshold (score) |") :]
    assert {line.count("|") for line in table} == {5} and len(table) == 2 + len(known.classes)


def test_names_that_people_made_up_cannot_break_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    strange = ['<script>alert("x")</script>', "a|b", "# *c* `d`"]
    header = ",".join('"' + name.replace('"', '""') + '"' for name in strange)
    lines = [f"image,split,{header}"]
    for number in range(9):
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{('train', 'val', 'test')[number % 3]},{number // 3 % 2},{int(number < 5)},1")
    (tmp_path / "my tags.csv").write_text("\n".join(lines) + "\n")
    data = lg.load("csv", tmp_path / "my tags.csv")
    run = lg.fit(data, backbone="small-cnn", protocol="linear", out=tmp_path / 'my "run"', epochs=1, quiet=True)
    text = render_model_card(run, data)
    assert "<script>" not in text and r"\<script\>" in text
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in text.splitlines() if r"a\|b |" in line)
    assert str(tmp_path) not in text and "Folders are removed from paths here" in text
    assert "labelgap train 'csv=my tags.csv' \\\n  --method " in text
    assert "labelgap predict 'my \"run\"' photos/" in text and 'lg.open_run("my \\"run\\"")' in text
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(text.split("---\n")[1])["model-index"][0]["name"] == 'my "run"'


def test_many_classes_show_their_ends_and_rare_ones_are_named(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {"classes": np.array([f"class {number}" for number in range(14)])}
    for split, count in (("train", 60), ("val", 30), ("test", 30)):
        labels = (random.random((count, 14)) < 0.4).astype(np.int8)
        if split == "train":
            labels[:, 0] = 0
            labels[3:, 1] = 0
            labels[:3, 1] = 1
        parts |= {f"{split}_features": random.normal(size=(count, 6)).astype(np.float32), f"{split}_labels": labels}
    np.savez(tmp_path / "features.npz", **parts)
    data = lg.load("features", tmp_path / "features.npz")
    run = lg.fit(data, out=tmp_path / "run", epochs=1, quiet=True)
    text = render_model_card(run, data)
    said = sections(text)
    assert "the 5 best and the 5 worst classes" in said["Results"]
    assert len([name for name in rows(said["Results"]) if name.startswith("class ")]) == 10
    assert "Never present in the training labels, so no useful prediction can be expected: class 0." in text
    assert "fewer than 10 training images, so predictions are weak: class 1." in text
    assert "pipeline_tag" not in text and "present in a feature vector" in text and "run.predict(vectors)" in text
    assert rows(said["Settings"])["backbone"] == ["none, the data are features"]

"""Settings in words, and a run as it shows itself in a notebook."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import labelgap as lg
from labelgap.training.checkpoints.checkpoint import TrainingState
from labelgap.training.checkpoints.history import write_history
from labelgap.training.config.describe import describe_settings
from labelgap.training.config.schema import LinearPhase, RunConfig, write_config
from labelgap.training.html_repr import run_html

PLAIN: dict[str, Any] = {
    "data": {"name": "csv"},
    "classes": ("cat", "dog"),
    "method": "ll-r",
    "why": "as asked",
    "backbone": "small-cnn",
    "protocol": "end-to-end",
    "epochs": 4,
    "lr": 0.003,
    "backbone_lr": 0.003,
    "batch_size": 64,
    "flip": False,
    "seed": 0,
    "select": "clean",
    "trace": "off",
}


def told(everything: bool = False, **settings: Any) -> dict[str, str]:
    return dict(describe_settings(RunConfig.checked(**PLAIN | settings), everything=everything))


def test_a_plain_run_has_few_words() -> None:
    assert list(told()) == [
        "method", "options", "backbone", "pictures", "protocol", "epochs", "batch size", "optimizer", "learning rate",
        "precision", "epoch chosen by", "seed",
    ]  # fmt: skip


def test_asked_for_everything_it_says_what_goes_without_saying() -> None:
    words = told(everything=True)
    assert words["head"] == "linear" and words["preset"] == "none" and words["schedule"] == "the rate stays the same"
    assert words["gradients"] == "as they come" and words["weights kept"] == "those of the epoch"
    assert "first phase" not in words


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"head": "boostlu"}, "head", "boostlu"),
        ({"preset": "kim2022"}, "preset", "kim2022: that paper's settings where nothing else was said"),
        ({"options": {"delta_rel": 0.3}}, "options", "delta_rel 0.3, base unknown"),
        ({"backbone_lr": 1e-5}, "learning rate", "head 0.003, backbone 1e-05"),
        ({"backbone_lr": 1e-5, "protocol": "linear"}, "learning rate", "0.003"),
        ({"schedule": "cosine", "warmup": 2}, "schedule", "rising over 2 epochs, then down to nothing along a cosine"),
        ({"warmup": 1}, "schedule", "rising over 1 epoch"),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, "optimizer", "SGD, momentum 0.9, Nesterov's"),
        ({"weight_decay": 1e-4, "momentum": 0.9}, "optimizer", "Adam, weight decay 0.0001"),
        ({"clip": 1.0}, "gradients", "cut to a norm of 1"),
        ({"ema": 0.999}, "weights kept", "a moving average, decay 0.999"),
        ({"accumulate": 4}, "batch size", "64, and the gradients of 4 batches make one step"),
        ({"stop_below": 0.03}, "epochs", "4 at most; it ends 3 points of the val score below the best"),
        ({"size": 448, "flip": True}, "pictures", "squashed to 448 × 448 pixels, mirrored at random"),
        ({"transform": "crop"}, "pictures", "random parts in random light, at the backbone's own size"),
        ({"precision": "bf16"}, "precision", "bfloat16 where that is safe, else float32"),
        ({"precision": "bf16", "protocol": "linear"}, "precision", "float32"),
        ({"weights": str(Path("/") / "a" / "b.pth")}, "backbone", "small-cnn, weights of b.pth"),
        ({"method": "somebody's", "options": {"a": 1}}, "options", "a 1"),
        (
            {"protocol": "linear-init", "linear": LinearPhase(epochs=25, lr=1e-3, batch_size=16)},
            "first phase",
            "the head alone: 25 epochs of Adam at 0.001, batches of 16",
        ),
    ],
)
def test_a_setting_that_is_not_plain_is_said(settings: dict[str, Any], name: str, words: str) -> None:
    assert told(**settings)[name] == words


def made(folder: Path, scores: list[float | None], summary: dict[str, Any] | None, **settings: Any) -> lg.Run:
    """Write a run folder by hand, and open it."""
    folder.mkdir()
    write_config(folder, RunConfig.checked(**PLAIN | settings))
    history = [{"epoch": epoch, "loss": 1.0, "score": score} for epoch, score in enumerate(scores, start=1)]
    write_history(folder, TrainingState(epoch=len(scores), history=history), summary)
    return lg.open_run(folder)


def measured(value: float | None) -> dict[str, Any]:
    return {"map": value, "classes_counted": 2 if value else 0, "classes": 2, "f1_micro": value, "f1_macro": value}


def text_of(run: lg.Run) -> tuple[ElementTree.Element, str]:
    page = ElementTree.fromstring(run_html(run))
    return page, " ".join(page.itertext())


def test_a_notebook_shows_the_numbers_and_a_line_with_a_dot_at_the_epoch_kept(tmp_path: Path) -> None:
    summary = {"best_epoch": 2, "epochs": 3, "val": measured(0.5), "test": measured(0.456)}
    page, text = text_of(made(tmp_path / "run", [0.2, 0.5, 0.3], summary))
    assert "mAP 45.6 over 2 of 2 classes; F1 micro 45.6, F1 macro 45.6" in text and "epoch 2 of 3 kept" in text
    assert "val mAP by epoch: 20.0 to 50.0" in text and str(tmp_path / "run") in text
    line, dot = page.find(".//polyline"), page.find(".//circle")
    assert line is not None and dot is not None
    points = line.attrib["points"].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(points) == 3 and heights[1] < heights[2] < heights[0]
    assert f"{dot.attrib['cx']},{dot.attrib['cy']}" == points[1]


def test_an_order_of_epochs_is_drawn_without_a_number(tmp_path: Path) -> None:
    summary = {"best_epoch": 2, "epochs": 2, "val": measured(None)}
    page, text = text_of(made(tmp_path / "run", [0.2, 0.5], summary, select="observed"))
    assert page.find(".//polyline") is not None and "is no accuracy" in text
    assert "the known labels support no accuracy" in text
    assert not re.search(r"\b(20|50)\.0\b", text)


@pytest.mark.parametrize(("scores", "select"), [([], "clean"), ([0.5], "clean"), ([None, None], "last")])
def test_without_two_scores_there_is_no_line(scores: list[float | None], select: str, tmp_path: Path) -> None:
    page, text = text_of(made(tmp_path / "run", scores, None, select=select))
    assert page.find(".//svg") is None and f"{len(scores)} of 4 so far, not finished" in text


def test_scores_that_are_all_the_same_make_a_level_line(tmp_path: Path) -> None:
    page, _ = text_of(made(tmp_path / "run", [0.4, 0.4], None))
    line = page.find(".//polyline")
    assert line is not None and len({point.split(",")[1] for point in line.attrib["points"].split()}) == 1


def test_what_people_made_up_is_escaped(tmp_path: Path) -> None:
    evil = '<img src=x onerror="alert(1)">&'
    run = made(tmp_path / "a<b>&c", [0.1, 0.2], None, method=evil, why=evil, data={"name": evil}, backbone=evil)
    page, text = text_of(run)
    assert page.find(".//img") is None and text.count(evil) == 4 and "a<b>&c" in text


def test_an_interrupted_run_says_where_it_was_stopped(tmp_path: Path) -> None:
    summary = {"best_epoch": 1, "epochs": 1, "interrupted": True}
    assert "epoch 1 of 1 kept; stopped before 4" in run_html(made(tmp_path / "run", [0.2], summary))

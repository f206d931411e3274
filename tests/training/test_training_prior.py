"""Training with a prior: calibration per source and class, soft targets, what auto decides, and a killed run."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit
from tests.killing import run_forked
from tests.training.some_prior import teach, with_prior

import labelgap as lg
from labelgap.core.errors import InputError, RunError
from labelgap.data.dataset import Split
from labelgap.data.images import FeatureVectors
from labelgap.data.summary import summarize
from labelgap.labels import UNKNOWN
from labelgap.training.loop.linear_trainer import LinearTrainer
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.prior import believe, calibrate, class_slopes


def album(images: int = 500, classes: int = 6, seed: int = 0) -> lg.Dataset:
    """Features that tell the classes apart, and one known positive per image."""
    random = np.random.default_rng(seed)
    truth = random.random((images, classes)) < 0.25
    truth[np.arange(images), random.integers(classes, size=images)] = True
    features = truth @ random.normal(size=(classes, 12)) + 1.5 * random.normal(size=(images, 12))
    names = [f"{row}.jpg" for row in range(images)]
    whole = lg.LabelTable.from_dense(truth.astype(np.int8), images=names)
    pixels = FeatureVectors(features.astype(np.float32), names)
    parts = {"train": np.arange(240), "test": np.arange(240, images)}
    train, test = (Split(name, pixels.select(rows), whole.select(rows)) for name, rows in parts.items())
    data = lg.Dataset("album", train, None, test, backbone="features", protocol="linear", flip=False)
    return data.observe(positives=1, negatives=0, seed=1)


@pytest.fixture(scope="module")
def data() -> lg.Dataset:
    return album()


def fit(data: lg.Dataset, out: Path, method: str = "an", **settings: Any) -> lg.Run:
    return lg.fit(data, method, out=out, quiet=True, **settings)


def logits_of(data: lg.Dataset) -> NDArray[np.float32]:
    """What a model of middling quality says."""
    truth = data.train.evaluation_labels.to_dense() == lg.PRESENT
    return np.asarray(2.0 * truth - 2 + np.random.default_rng(3).normal(size=truth.shape), dtype=np.float32)


def test_slopes_of_a_class_are_those_of_a_posterior() -> None:
    random = np.random.default_rng(0)
    scores, offset, center = random.normal(size=(2, 300)), random.normal(size=300), np.array([0.6, 0.0])
    present = random.random(300) < expit(offset - 2 + 1.2 * scores[0] - 0.8 * scores[1])

    def cost(theta: NDArray[np.float64]) -> float:
        odds = offset + theta[0] + theta[1:] @ scores
        fit = np.sum(np.logaddexp(0, odds) - present * odds)
        return float(fit + 0.5 * 1e-4 * theta[0] ** 2 + 0.5 * np.sum((theta[1:] - center) ** 2) / 0.25)

    best = minimize(cost, np.zeros(3), method="BFGS", options={"gtol": 1e-8})
    p = expit(offset + best.x[0] + best.x[1:] @ scores)
    design = np.vstack([np.ones(300), scores])
    error = np.sqrt(np.diag(np.linalg.inv((design * p * (1 - p)) @ design.T + np.diag([1e-4, 4, 4]))))[1:]
    np.testing.assert_allclose(class_slopes(offset, scores, present, center), (best.x[1:], error), atol=1e-4)


def test_each_source_counts_where_it_is_right_and_says_nothing_elsewhere(data: lg.Dataset) -> None:
    good = teach(data)
    half = good[:, [0, 1, 2, 4, 5, 3]]
    seen = with_prior(data, good=good, half=half, noise=np.random.default_rng(0).random(good.shape))
    assert seen.prior is not None
    found = calibrate(seen.prior, data.train.labels, logits_of(data))
    of_good, of_half, of_noise = (np.array(each.slopes) for each in found.sources)
    assert (of_good > 0).all()
    assert of_half[3:].max() < 0.2 * of_half[:3].min() or not of_half[3:].any()
    assert of_noise.max() < 0.2 * of_good.mean()
    unknown = data.train.labels.to_dense() == UNKNOWN
    truth = data.train.evaluation_labels.to_dense() == lg.PRESENT
    (target, weight), (every, share), chance = found.soft(every=False), found.soft(every=True), found.chance
    assert (target[weight > 0] == 1).all() and not weight[~unknown | (target < 0.5)].any()
    np.testing.assert_allclose(weight[unknown], np.maximum(0, 2 * chance[unknown] - 1), atol=1e-6)
    np.testing.assert_allclose(every, chance, atol=1e-6)
    assert (share == unknown).all()
    assert abs(chance[unknown].mean() - truth[unknown].mean()) < 0.1
    assert abs(chance[weight > 0].mean() - truth[weight > 0].mean()) < 0.1
    assert chance[unknown & truth].mean() > 2 * chance[unknown & ~truth].mean()
    right = found.sources[0].right
    assert right is not None and right > 0.5 > (found.sources[2].right or 0.0)


def test_the_report_says_of_each_source_what_it_is_worth(data: lg.Dataset, tmp_path: Path) -> None:
    good = teach(data)
    run = fit(with_prior(data, good=good, reversed=1 - good), tmp_path / "run")
    page = lg.write_report(run, data=data).read_text(encoding="utf-8")
    section = page[page.index("<h2>The prior") :]
    rows = {name: section[section.index(f">{name}</th>") :].split("</tr>")[0] for name in ("good", "reversed")}
    assert "says nothing" in rows["reversed"] and "says nothing" not in rows["good"]
    assert "<h2>The prior" not in lg.write_report(fit(data, tmp_path / "plain")).read_text(encoding="utf-8")


def test_a_label_of_which_no_source_says_anything_has_no_weight(data: lg.Dataset) -> None:
    good = teach(data)
    good[:100] = np.nan
    seen = with_prior(data, good=good)
    assert seen.prior is not None
    told = calibrate(seen.prior, data.train.labels, logits_of(data)).told
    assert not told[:100].any() and told[100:].any()


def test_sources_that_say_nothing_change_nothing(data: lg.Dataset, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    good = teach(data)
    bad = with_prior(data, reversed=1 - good, noise=random.random(good.shape), constant=0 * good + 0.3)
    plain, run = fit(data, tmp_path / "plain"), fit(bad, tmp_path / "bad")
    assert run.metrics["prior"]["used"] is False
    assert plain.metrics["score"] == run.metrics["score"] and plain.config == run.config
    assert (plain.path / "best.safetensors").read_bytes() == (run.path / "best.safetensors").read_bytes()


@pytest.mark.parametrize("method", ["an", "em", "role", "gpr"])
def test_a_good_teacher_helps_a_linear_head(method: str, data: lg.Dataset, tmp_path: Path) -> None:
    options = {"expected_positives": 2.0} if method == "role" else {}
    settings: dict[str, Any] = {"options": options, "epochs": 15} if method in ("role", "gpr") else {}
    plain = fit(data, tmp_path / "plain", method, **settings)
    run = fit(with_prior(data, teacher=teach(data)), tmp_path / "prior", method, **settings)
    record = run.metrics["prior"]
    assert record["used"] and record["score"] > record["score_without"]
    assert run.metrics["test"]["map"] > plain.metrics["test"]["map"]


def test_auto_takes_a_prior_only_if_it_helps(data: lg.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = with_prior(data, teacher=teach(data))
    assert fit(seen, tmp_path / "auto", "auto").metrics["prior"]["used"]
    plain = fit(data, tmp_path / "plain", "auto")
    monkeypatch.setattr("labelgap.training.prior.calibrate", flattered)
    run = fit(seen, tmp_path / "flattered", "auto")
    assert not run.metrics["prior"]["used"] and run.metrics["prior"]["score"] < run.metrics["prior"]["score_without"]
    assert run.metrics["score"] == plain.metrics["score"]
    assert fit(seen, tmp_path / "named", "an").metrics["prior"]["used"], "the method was named"


def flattered(*arguments: Any) -> Any:
    """A calibration that believes the opposite of what was found."""
    found = calibrate(*arguments)
    return replace(found, chance=1 - found.chance)


def test_a_method_that_takes_no_prior_says_so(data: lg.Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="asl"):
        fit(with_prior(data, teacher=teach(data)), tmp_path / "run", "asl")
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("method", ["em", "gpr"])
def test_a_killed_run_continues_with_the_soft_labels_it_began_with(
    method: str, data: lg.Dataset, tmp_path: Path
) -> None:
    seen = with_prior(data, teacher=teach(data))
    settings: dict[str, Any] = {"epochs": 5, "optimizer": "adam", "lr": 0.01, "batch_size": 16, "folds": 0}
    whole = fit(seen, tmp_path / "whole", method, **settings)

    def train_until_killed() -> None:
        train_epoch = LinearTrainer.train_epoch

        def kill(self: LinearTrainer, state: Any, epoch: int) -> None:
            if epoch == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            train_epoch(self, state, epoch)

        LinearTrainer.train_epoch = kill  # type: ignore[method-assign]
        fit(seen, tmp_path / "killed", method, **settings)

    assert run_forked(train_until_killed) == -signal.SIGKILL
    with pytest.raises(RunError, match="another prior"):
        fit(with_prior(data, teacher=teach(data, seed=1)), tmp_path / "killed", method, resume=True, **settings)
    run = fit(seen, tmp_path / "killed", method, resume=True, **settings)
    assert [record["loss"] for record in run.history] == [record["loss"] for record in whole.history]
    assert (run.path / "best.safetensors").read_bytes() == (whole.path / "best.safetensors").read_bytes()
    assert run.metrics["prior"] == whole.metrics["prior"]


def test_auto_compares_methods_that_take_the_prior_it_uses(data: lg.Dataset, tmp_path: Path) -> None:
    run = fit(with_prior(data, teacher=teach(data)), tmp_path / "run", "auto")
    compared = {line["method"] for line in run.metrics["cross_validation"]["compared"]}
    assert compared == {"em"} and run.config.method == "em"


def test_a_prior_counts_as_unused_where_val_prefers_a_method_without(
    data: lg.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data.test is not None
    monkeypatch.setattr("labelgap.training.plan.auto_methods", lambda data: ("gr",))
    monkeypatch.setattr("labelgap.training.fit.EVERY", "gr")
    seen = with_prior(replace(data, val=replace(data.test, name="val"), test=None), teacher=teach(data))
    record = fit(seen, tmp_path / "run", "auto").metrics["prior"]
    assert record["score"] > record["score_without"] and not record["used"]


def test_auto_trains_a_network_with_gpr(data: lg.Dataset) -> None:
    network = TrainingRequest("auto", protocol="end-to-end", backbone="efficientnet-lite0")
    digits = lg.load("digits", train=12, val=8, test=8).observe(1, 0, seed=0)
    assert plan_training(with_prior(digits, teacher=teach(digits)), network).config.method == "gpr"
    assert plan_training(digits, network).config.method == "gr"


def test_a_prior_is_judged_by_a_head_that_takes_it_where_absents_are_known(tmp_path: Path) -> None:
    data = album().observe(positives=1, negatives=2, seed=1)
    run = fit(with_prior(data, teacher=teach(data)), tmp_path / "run", "auto")
    assert run.metrics["prior"]["score"] > run.metrics["prior"]["score_without"]


def test_where_nothing_is_known_the_prior_is_believed_as_it_stands(data: lg.Dataset, tmp_path: Path) -> None:
    blank = data.observe(positives=0, negatives=0, seed=1)
    with pytest.raises(InputError, match="--prior"):
        fit(blank, tmp_path / "refused", "auto")
    told = with_prior(data, good=teach(data)).prior
    assert told is not None
    with pytest.raises(InputError, match="--prior"):
        fit(replace(blank, prior=replace(told, images={"other.jpg": 0})), tmp_path / "refused", "auto")
    good = teach(data)
    good[:10] = np.nan
    seen = with_prior(blank, good=good, weaker=teach(data, noise=3.0, seed=1))
    assert seen.prior is not None
    soft = believe(seen.prior, seen.train.labels).soft
    assert soft is not None and (soft.weight == 1).all()
    said = np.nanmean([[*good], [*teach(data, noise=3.0, seed=1)]], axis=0)
    np.testing.assert_allclose(soft.target, 0.05 + 0.9 * said, atol=1e-6)
    run = fit(seen, tmp_path / "run", "auto")
    assert run.metrics["prior"]["used"] and not run.metrics["prior"]["calibrated"]
    assert run.metrics["test"]["map"] > 0.6
    assert {each["right"] for each in run.metrics["prior"]["sources"]} == {None} and run.config.why is not None
    assert "<figure" not in lg.write_report(run).read_text("utf-8").split("<h2>The prior")[1].split("<h2>")[0]
    facts = lg.find_missing(run, data=seen, quiet=True).facts()
    prior = [str(lines) for heading, lines in facts if heading == "prior"]
    assert len(prior) == 2 and not any("do not follow" in line for line in prior), "there is none that it could follow"


def test_labels_of_a_prior_alone_can_be_trained_on_and_inspect_says_so(data: lg.Dataset) -> None:
    blank = data.observe(positives=0, negatives=0, seed=1)
    allowed, without = summarize(with_prior(blank, teacher=teach(data))), summarize(blank)
    assert allowed.next and not any(each.startswith("train:") for each in allowed.cannot)
    assert not without.next and any(each.startswith("train:") for each in without.cannot)


def test_where_few_images_are_labeled_in_full_each_unknown_label_has_its_probability_as_target(
    data: lg.Dataset, tmp_path: Path
) -> None:
    codes = data.train.evaluation_labels.to_dense().copy()
    codes[25:] = UNKNOWN
    table = lg.LabelTable.from_dense(codes, classes=data.classes, images=data.train.labels.images)
    few = replace(data, train=replace(data.train, labels=table))
    plain = fit(few, tmp_path / "plain", "auto")
    run = fit(with_prior(few, good=teach(data)), tmp_path / "prior", "auto")
    assert run.metrics["prior"]["used"] and run.metrics["prior"]["every"] and run.config.method == "iu"
    assert run.metrics["test"]["map"] > plain.metrics["test"]["map"] + 0.05


@pytest.mark.parametrize("images", [1, 4, 5, 6])
def test_a_few_images_are_trained_on_with_a_prior_too(images: int, tmp_path: Path) -> None:
    whole = album()
    few = replace(whole, train=whole.train.select(np.arange(images)), test=None)
    run = fit(with_prior(few, good=teach(few)), tmp_path / "run", epochs=2)
    assert run.metrics["prior"]["calibrated"] is (images >= 5)


def test_labels_of_other_images_do_not_judge_a_prior(data: lg.Dataset, tmp_path: Path) -> None:
    codes = data.train.labels.to_dense().copy()
    codes[30:] = UNKNOWN
    table = lg.LabelTable.from_dense(codes, classes=data.classes, images=data.train.labels.images)
    others = replace(data, train=data.train.select(np.arange(30, len(table))))
    prior = with_prior(others, good=teach(others)).prior
    run = fit(replace(data, train=replace(data.train, labels=table), prior=prior), tmp_path / "run", "auto")
    assert not run.metrics["prior"]["calibrated"] and run.config.method == "bce-ls"
    assert run.metrics["test"]["map"] > 0.6

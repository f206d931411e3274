"""Runs without a val split: folds, settings and accuracy from out-of-fold scores, a final head on all images."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tests.killing import run_forked
from tests.sample_photos import write_small_photos

import labelgap as lg
from labelgap.core.errors import InputError, RunError
from labelgap.core.seeds import derive_seed
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import FeatureVectors
from labelgap.labels import ABSENT, LabelTable, Revision
from labelgap.labels.revisions import ProvenanceEntry, provenance_path, write_provenance
from labelgap.losses import methods
from labelgap.metrics import average_precision, choose_thresholds
from labelgap.training.auto import SearchSpace, auto_methods, candidate_configs, choose_method, neighbors, resolve_folds
from labelgap.training.config import RunConfig
from labelgap.training.folds import FoldTask, assign_folds, duplicate_groups, out_of_fold_logits, train_configs
from labelgap.training.loop.linear_trainer import LinearTrainer
from labelgap.training.plan import TrainingRequest, plan_training
from labelgap.training.rerun import fit_arguments
from labelgap.training.reviewed_labels import leave_out_ranked_absents
from labelgap.training.run_folder import read_predictions
from labelgap.training.search import Search, _Best, _simplest, search_heads
from labelgap.training.selection import choose_selection

IMAGES, WIDTH, CLASSES = 80, 12, 3


def album(*, absents: bool = False, complete: bool = False, images: int = IMAGES, seed: int = 0) -> Dataset:
    """Features from which the classes can be told; half of the presents are known, and a few absents if asked for."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(images, WIDTH)).astype(np.float32)
    truth = (features[:, :CLASSES] + 0.5 * random.normal(size=(images, CLASSES)) > 0.5).astype(np.int8)
    chance = random.random(truth.shape)
    shown = np.where((truth == 1) & (chance < 0.5), 1, np.where((truth == 0) & (chance < 0.6) & absents, 0, -1))
    names = [f"{number}.jpg" for number in range(images)]
    table = LabelTable.from_dense(truth if complete else shown, images=names)
    return Dataset("album", Split("train", FeatureVectors(features, names), table), backbone="features")


def config_for(data: Dataset, **settings: Any) -> RunConfig:
    own = {"method": "an", "backbone": "features", "protocol": "linear", "epochs": 2, "lr": 1.0, "backbone_lr": 1.0}
    own |= {"data": {}, "classes": data.classes, "flip": False, "seed": 0, "select": "last", "trace": "off"}
    own |= {"batch_size": 16, "optimizer": "newton", "standardize": True, "folds": 4}
    return RunConfig.checked(**{**own, **settings})


FOLD = np.arange(IMAGES) % 4
CPU = torch.device("cpu")


def vectors_of(data: Dataset) -> torch.Tensor:
    assert isinstance(data.train.images, FeatureVectors)
    return torch.from_numpy(data.train.images.vectors)


def out_of_fold(data: Dataset, *configs: RunConfig, labels: LabelTable | None = None) -> list[Any]:
    tasks = [FoldTask(each, labels or data.train.labels, FOLD) for each in configs]
    return list(out_of_fold_logits(vectors_of(data), tasks, CPU))


def test_an_image_is_scored_by_a_head_that_has_not_seen_its_labels() -> None:
    data, fold = album(), FOLD
    configs = [config_for(data, weight_decay=decay) for decay in (0.01, 1.0)]
    codes = data.train.labels.to_dense()
    changed = LabelTable.from_dense(np.where(fold[:, None] == 1, 1 - np.abs(codes), codes))
    before, after = out_of_fold(data, *configs), out_of_fold(data, *configs, labels=changed)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old[fold == 1], new[fold == 1])
        assert not np.allclose(old[fold == 0], new[fold == 0])


@pytest.mark.parametrize("standardize", [False, True])
def test_the_head_of_a_fold_is_the_one_that_its_images_give_alone(standardize: bool) -> None:
    """Standardized by all images, the held-out ones have another mean than those that Adam learns from."""
    data, fold = album(), FOLD
    features, labels = vectors_of(data), data.train.labels
    config = config_for(data, optimizer="adam", standardize=standardize, lr=1e-2, epochs=3, weight_decay=0.01)
    (logits,) = out_of_fold(data, config)
    for number in range(4):
        seen = np.flatnonzero(fold != number)
        how: dict[str, Any] = {"order_seed": derive_seed(0, "fold"), "device": CPU, "images": IMAGES}
        last = choose_selection(None, None, "last")
        (head,) = train_configs({"train": features[seen]}, labels.select(seen), [config], last, **how)
        expected = features[fold == number].numpy() @ head.weight.T + head.bias
        np.testing.assert_allclose(logits[fold == number], expected, atol=1e-5)


def test_the_best_candidate_is_chosen_and_one_that_fails_is_not() -> None:
    data, fold = album(), FOLD
    features, fails = vectors_of(data), {"optimizer": "adam", "epochs": 3, "lr": 1e38, "backbone_lr": 1e38}
    wishes: list[dict[str, Any]] = [fails, {"weight_decay": 100.0}, {"weight_decay": 0.01, "epochs": 10}]
    configs = [config_for(data, **each) for each in wishes]
    found = search_heads({"train": features}, data.train.labels, configs, fold, device=CPU)
    assert found.settings["weight_decay"] == 0.01 and found.compared[0]["score"] is None
    assert found.logits is not None and np.isfinite(found.logits).all() and found.reason is not None
    with pytest.raises(RunError, match="every fold"):
        search_heads({"train": features}, data.train.labels, configs[:1], fold, device=CPU)


def test_many_images_are_searched_in_part_and_scored_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelgap.training.search.MIN_SEARCH_IMAGES", 40)
    monkeypatch.setattr("labelgap.training.search.MAX_SEARCH_VALUES", 0)
    data, features = album(), vectors_of(album())
    configs = [config_for(data, weight_decay=decay) for decay in (0.01, 100.0)]
    found = search_heads({"train": features}, data.train.labels, configs, FOLD, device=CPU)
    np.testing.assert_array_equal(found.logits, out_of_fold(data, configs[0])[0])
    part, rows = data.train.labels.select(np.arange(40)), features[:40]
    (of_all,) = out_of_fold_logits(rows, [FoldTask(configs[0], part, FOLD[:40])], CPU, images=IMAGES)
    double = config_for(data, weight_decay=0.02)  # the same penalty, relative to the loss of half of the images
    (expected,) = out_of_fold_logits(rows, [FoldTask(double, part, FOLD[:40])], CPU)
    np.testing.assert_allclose(of_all, expected)


@pytest.mark.parametrize("absents", [False, True], ids=["presents", "absents too"])
def test_a_run_without_val_is_cross_validated(tmp_path: Path, absents: bool) -> None:
    data = album(absents=absents)
    run = lg.fit(data, out=tmp_path / "run", device="cpu", quiet=True)
    compared = run.metrics["cross_validation"]["compared"]
    assert {line["method"] for line in compared} == set(auto_methods(data))
    best = max(compared, key=lambda line: line["score"])
    assert (run.config.method, run.config.weight_decay) == (best["method"], best["weight_decay"])
    assert run.config.folds == 5 and run.config.standardize and run.config.why is not None
    names = data.train.labels.images
    scores = read_predictions(run.path, "train", names, data.classes)
    assert scores is not None
    own = run.predict(data.train.images)
    assert not np.allclose(scores, own)
    expected = choose_thresholds(scores, data.train.labels.to_dense())
    np.testing.assert_allclose(run.thresholds.values, expected.values, atol=1e-6)
    assert (run.metrics["train"]["map"] is not None) == absents
    test = album(seed=1, images=300, complete=True).train
    assert lg.average_precision(run.predict(test.images), test.labels) > 0.7


def test_the_final_head_is_trained_on_all_images_and_those_of_folds_with_the_same_penalty(tmp_path: Path) -> None:
    data, peer = album(), LogisticRegression(C=1 / (0.05 * IMAGES * CLASSES), tol=1e-8, max_iter=1000)
    run = lg.fit(data, "an", out=tmp_path / "run", device="cpu", quiet=True, weight_decay=0.05, epochs=30)
    assert len(run.metrics["cross_validation"]["compared"]) == 1 and run.config.why is None
    vectors = vectors_of(data).numpy()
    scaled, labels = StandardScaler().fit_transform(vectors), data.train.labels.to_dense() == 1
    for number in range(CLASSES):
        expected = expit(peer.fit(scaled, labels[:, number]).decision_function(scaled))
        np.testing.assert_allclose(run.predict(vectors)[:, number], expected, atol=1e-3)
    (logits,) = out_of_fold(data, config_for(data, weight_decay=0.05, epochs=20, standardize=False))
    seen = FOLD != 2  # the penalty of a fold is that of all images
    peer.fit(vectors[seen], labels[seen, 0])
    np.testing.assert_allclose(logits[~seen, 0], peer.decision_function(vectors[~seen]), atol=2e-3)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"folds": 1}, "2 to the 80"),
        ({"optimizer": "newton", "batch_size": 16}, "80 images"),
        ({"method": "role", "optimizer": "newton"}, "--optimizer adam"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        lg.fit(album(), out=tmp_path / "run", device="cpu", quiet=True, **settings)


def test_the_neighbors_of_the_best_of_each_close_method_are_compared_next() -> None:
    data, space = album(), SearchSpace(decay=True, rate=True)
    first = candidate_configs(config_for(data), data.train.labels, WIDTH, space)
    strengths = [each.weight_decay * IMAGES * CLASSES / WIDTH for each in first]  # penalties per feature
    assert strengths == pytest.approx([0.15, 0.015, 1.5], rel=1e-3)
    configs = [config_for(data, method=method, weight_decay=decay) for method in ("an", "em") for decay in (0.1, 1.0)]
    found = neighbors(configs, [0.5, 0.7, 0.695, 0.2], space)
    assert [(each.method, each.weight_decay) for each in found] == [
        *(("an", 0.3162), ("an", 3.162)),
        *(("em", 0.03162), ("em", 0.3162)),
    ]
    behind = neighbors([*configs, *found[:2]], [0.5, 0.7, 0.6, 0.2, 0.65, float("nan")], space)
    assert behind == [], "the penalties around the best one were compared, and the other method is not close"
    assert neighbors(configs, [float("nan")] * 4, space) == []
    adam = config_for(data, optimizer="adam", lr=1e-3, backbone_lr=1e-3, weight_decay=0.1)
    assert {each.lr for each in neighbors([adam], [0.5], SearchSpace(rate=True))} == {1e-2, 1e-4}


@pytest.mark.parametrize(
    ("row", "images", "methods"),
    [
        ([1, 0], 20, ["bce"]),
        ([1, -1], 20, ["em", "gr"]),
        ([1, 0, -1], 40, ["gr", "wan", "iu"]),
        ([1, 0, -1, -1, -1, -1, -1], 40, ["wan"]),
        ([1, 1, 0, -1, -1, -1, -1, -1, -1, -1], 80, ["gr", "wan"]),
    ],
)
def test_auto_compares_what_the_number_of_known_labels_allows(row: list[int], images: int, methods: list[str]) -> None:
    def compared(rows: list[list[int]]) -> list[str]:
        vectors = FeatureVectors(np.zeros((len(rows), 1), dtype=np.float32))
        return list(auto_methods(Dataset("x", Split("train", vectors, LabelTable.from_dense(rows)))))

    assert compared([row] * images) == methods
    if 0 in row and -1 in row:
        untagged = [[-1 if label == 1 else label for label in row]] * (2 * images)
        assert compared([row] * images + untagged) == ["iu"], "a third is tagged"


def with_val(*, absents: bool = False, complete: bool = True) -> Dataset:
    """An album whose features have another scale each, with a val."""
    parts = {"train": album(absents=absents), "val": album(images=60, seed=1, complete=complete)}
    scale = 10.0 ** np.arange(-3, 9, dtype=np.float32)
    train, val = (
        Split(name, FeatureVectors(vectors_of(data).numpy() * scale), data.train.labels) for name, data in parts.items()
    )
    return Dataset("album", train, val, backbone="features", protocol="linear")


def test_a_run_with_val_searches_its_penalty_on_it(tmp_path: Path) -> None:
    data = with_val(absents=True)
    run = lg.fit(data, out=tmp_path / "run", device="cpu", quiet=True)
    compared = run.metrics["search"]["compared"]
    assert {line["method"] for line in compared} == {"an", "gr", "iu"} == set(auto_methods(data))
    best = max((line for line in compared if line["method"] == run.config.method), key=lambda line: line["score"])
    assert run.config.weight_decay == best["weight_decay"] and run.config.why is not None
    assert run.metrics["score"] == pytest.approx(best["score"], abs=1e-6)
    assert run.config.standardize and run.config.optimizer == "newton" and not run.config.folds
    again = lg.fit(data, out=tmp_path / "again", device="cpu", quiet=True, **fit_arguments(run.config))
    assert "search" not in again.metrics, "a repeated run states what was found"
    np.testing.assert_allclose(again.predict(data.train.images), run.predict(data.train.images), atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "searched"),
    [
        ({"method": "an", "weight_decay": 0.1}, False),
        ({"method": "an", "lr": 0.01, "standardize": False}, True),
        ({"method": "an", "preset": "cole2021"}, False),
    ],
    ids=["penalty given", "rate given", "preset"],
)
def test_what_is_given_is_not_searched(tmp_path: Path, settings: dict[str, Any], searched: bool) -> None:
    run = lg.fit(with_val(), out=tmp_path / "run", device="cpu", quiet=True, epochs=2, **settings)
    assert ("search" in run.metrics) == searched
    for name in {"weight_decay", "lr", "standardize"} & set(settings):
        assert getattr(run.config, name) == settings[name]
    assert run.config.standardize == ("preset" not in settings and settings.get("standardize", True))


QUICK: dict[str, Any] = {"folds": 2, "epochs": 2, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> lg.Run:
    return lg.fit(album(), out=tmp_path_factory.mktemp("runs") / "unbroken", **QUICK)


@pytest.mark.parametrize("stage", ["folds", "storing", "training"])
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path: Path, stage: str, unbroken: lg.Run) -> None:
    def stop(*arguments: Any, **settings: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def train_until_killed() -> None:
        save = Search.save
        if stage == "folds":
            sys.modules[lg.fit.__module__].search_settings = stop  # type: ignore[attr-defined]
        elif stage == "storing":
            Search.save = lambda *arguments: stop(save(*arguments))  # type: ignore[method-assign]
        else:
            LinearTrainer.train_epoch = stop  # type: ignore[method-assign]
        lg.fit(album(), out=tmp_path / "a", **QUICK)

    assert run_forked(train_until_killed) == -signal.SIGKILL
    resumed = lg.fit(album(), out=tmp_path / "a", **QUICK, resume=True)
    first, second = ({**run.metrics, "seconds": 0} for run in (resumed, unbroken))
    assert json.dumps(first) == json.dumps(second) and resumed.config == unbroken.config


@pytest.mark.parametrize(
    "settings",
    [{"backbone": "os:abort"}, {"method": "os:abort"}, {"lr": -1.0}, {"options": 3}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_are_no_choice_of_ours_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    data, chosen = album(), {"method": "an", "options": {}, "weight_decay": 0.1, "lr": 1.0, "backbone_lr": 1.0}
    logits = np.zeros((IMAGES, CLASSES), dtype=np.float32)
    Search({**chosen, **settings}, [{**chosen, "score": 0.5}], logits).save(tmp_path, "mark")
    with pytest.raises(RunError, match="new folder"):
        Search.load(tmp_path, "mark", data.train.labels, ["an"])
    Search(chosen, [{**chosen, "score": None}], logits).save(tmp_path, "mark")
    assert Search.load(tmp_path, "mark", data.train.labels, ["an"]) is not None
    with pytest.raises(RunError, match="images"):
        Search.load(tmp_path, "mark", album(images=5).train.labels, ["an"])


def test_copies_leave_fewer_folds() -> None:
    data = album(images=12)
    plan = plan_training(data, TrainingRequest(method="an", training={"folds": 0}))
    assert plan.search is None and plan.config.optimizer == "adam" and not plan.config.standardize
    of_groups = [replace(data, train=replace(data.train, groups=np.arange(12) % count)) for count in (3, 1)]
    assert [resolve_folds(each, None, "linear") for each in (data, *of_groups)] == [5, 3, 0]
    with pytest.raises(InputError, match="2 to the 3 "):
        resolve_folds(of_groups[0], 5, "linear")


PARTIAL = LabelTable.from_dense([[1, -1, -1], [-1, 1, 0]])


def test_what_auto_chooses_depends_on_the_network_and_on_what_is_known() -> None:
    full = LabelTable.from_dense([[1, 0], [0, 1]])
    assert choose_method(full, "end-to-end")[0] == choose_method(full, "linear")[0] == "bce-ls"
    assert choose_method(full, "end-to-end", pretrained=False)[0] == "bce"
    chosen = choose_method(PARTIAL, "linear")
    assert chosen[0] in methods() and "50 %" in chosen[1]
    assert chosen == choose_method(PARTIAL, "linear-init") == choose_method(PARTIAL, "end-to-end")
    assert choose_method(PARTIAL, "end-to-end", pretrained=False)[0] != chosen[0]
    codes = np.full((10, 4), -1, dtype=np.int8)
    codes[:2, 0] = 1
    assert choose_method(LabelTable.from_dense(codes), "linear")[0] == "gr", "positives alone teach iu nothing"
    codes[:, 1] = 0
    for row, expected in ((None, "iu"), (2, "iu"), (3, "gr")):  # few images have a known present
        codes[[] if row is None else row, 2] = 1
        assert choose_method(LabelTable.from_dense(codes), "linear")[0] == expected


def single(columns: list[int], classes: int) -> lg.LabelTable:
    codes = np.full((len(columns), classes), lg.UNKNOWN)
    codes[np.arange(len(columns)), columns] = lg.PRESENT
    return lg.LabelTable.from_dense(codes)


def test_every_class_is_shared_out_as_evenly_as_its_number_allows() -> None:
    random = np.random.default_rng(0)
    columns = random.choice(5, size=503, p=[0.6, 0.2, 0.1, 0.07, 0.03])
    table = single(columns.tolist(), 5)
    fold = assign_folds(table, folds=4)
    assert np.array_equal(fold, assign_folds(table, folds=4)) and (fold != assign_folds(table, 4, seed=1)).any()
    assert set(fold.tolist()) == {0, 1, 2, 3}
    for number in range(5):
        sizes = np.bincount(fold[columns == number], minlength=4)
        assert sizes.max() - sizes.min() <= 1


def test_images_of_a_group_are_in_one_fold() -> None:
    random = np.random.default_rng(1)
    groups = random.integers(40, size=200)
    fold = assign_folds(single(random.integers(3, size=200).tolist(), 3), folds=5, groups=groups)
    for group in range(40):
        assert len(set(fold[groups == group].tolist())) <= 1
    assert np.bincount(fold).min() > 20
    for folds in (1, 9):
        with pytest.raises(InputError, match="folds"):
            assign_folds(single([0, 1] * 4, 2), folds)


def test_vectors_that_are_equal_to_the_last_bit_are_copies() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float16)
    vectors[4] = vectors[1]
    vectors[5] = np.nextafter(vectors[1], np.float16(9))
    data = lg.Dataset("made", lg.Split("train", FeatureVectors(vectors), lg.LabelTable.from_dense([[1]] * 6)))
    assert duplicate_groups(data, "train", vectors).tolist() == [0, 1, 2, 3, 1, 4]
    assert duplicate_groups(data, "train").tolist() == [0, 1, 2, 3, 4, 5]


def test_near_duplicate_photos_share_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    write_small_photos(tmp_path, 5)
    Image.open(tmp_path / "02.jpg").resize((128, 96)).save(tmp_path / "05.jpg")
    rows = [f"0{number}.jpg,train,{int(number < 3)},{int(number >= 3)}" for number in range(6)]
    (tmp_path / "tags.csv").write_text("\n".join(["image,split,a,b", *rows]))
    data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path)
    where = dict(zip(data.train.labels.images, duplicate_groups(data, data.train.name).tolist(), strict=True))
    assert where["02.jpg"] == where["05.jpg"] and len(set(where.values())) == len(where) - 1
    off = replace(data, recipe={**data.recipe, "options": {"duplicates": "off"}})
    assert len(set(duplicate_groups(off, "train").tolist())) == len(data.train)


def reviewed(folder: Path) -> tuple[lg.Dataset, np.ndarray]:
    """An album of presents in which a person decided labels absent: two likely ones, and all of the first image."""
    data = album()
    before = data.train.labels.to_dense()
    codes = before.copy()
    likely = [(row + 1, column) for row, column in np.argwhere(before[1:] == -1)[:2].tolist()]
    decided = [*likely, *((0, number) for number in np.flatnonzero(before[0] == -1))]
    for entry in decided:
        codes[entry] = ABSENT
    table = LabelTable.from_dense(codes, classes=data.classes, images=data.train.labels.images)
    about: dict[str, Any] = {"time": datetime(2026, 1, 1, tzinfo=UTC), "author": "me"}
    made = [Revision(table.images[i], table.classes[k], ABSENT, "review", **about) for i, k in decided]
    path = folder / "better.csv"
    write_provenance(provenance_path(path), [ProvenanceEntry("train", each, -1) for each in made])
    recipe = {"name": "csv", "path": str(path), "options": {}, "steps": []}
    return replace(data, train=replace(data.train, labels=table), recipe=recipe), before


def test_absents_of_images_that_are_known_in_full_stay(tmp_path: Path) -> None:
    data, before = reviewed(tmp_path)
    found, count = leave_out_ranked_absents(data)
    assert count == 2
    np.testing.assert_array_equal(found.train.labels.to_dense()[1:], before[1:])
    np.testing.assert_array_equal(found.train.labels.to_dense()[0], data.train.labels.to_dense()[0])
    provenance_path(tmp_path / "better.csv").unlink()
    assert leave_out_ranked_absents(data) == (data, 0)


def test_auto_leaves_them_out_and_the_run_is_repeated_by_its_command(tmp_path: Path) -> None:
    data, _ = reviewed(tmp_path)
    run = lg.fit(data, out=tmp_path / "a", device="cpu", quiet=True, epochs=2)
    assert run.config.reviewed_absents == "ignore"
    again = lg.fit(data, **fit_arguments(run.config), out=tmp_path / "b", device="cpu", quiet=True)
    np.testing.assert_array_equal(run.predict(data.train.images), again.predict(data.train.images))
    for settings in ({"reviewed_absents": "use"}, {"method": "gr"}):
        out = tmp_path / next(iter(settings))
        used = lg.fit(data, out=out, device="cpu", quiet=True, epochs=2, **settings)  # type: ignore[arg-type]
        assert used.config.reviewed_absents == "use"
    resumed = lg.fit(data, out=tmp_path / "a", device="cpu", quiet=True, epochs=2, resume=True)
    assert resumed.config == run.config


@pytest.mark.parametrize(("noise", "chosen"), [(0.0, "gr"), (0.02, "an")], ids=["ahead", "level"])
def test_the_first_method_is_kept_unless_another_is_ahead_by_more_than_chance(noise: float, chosen: str) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 4)).astype(np.float32)
    truth = (vectors[:, :2] + 0.3 * random.normal(size=(60, 2)) > 0.3).astype(np.int8)
    weak = np.eye(2, 4) if noise else np.eye(2, 4, k=2)
    best = {}
    for name, weight in (("an", weak), ("gr", np.eye(2, 4) + noise * random.normal(size=(2, 4)))):
        score = float(average_precision(vectors @ weight.T, truth)) + (1e-4 if name == "gr" and noise else 0)
        config = config_for(album(), method=name)
        best[name] = _Best(config, score, SimpleNamespace(weight=weight, bias=np.zeros(2)))
    selection = choose_selection(LabelTable.from_dense(truth), None)
    assert _simplest(best, "an", torch.from_numpy(vectors), selection).method == chosen

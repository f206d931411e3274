from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tests.studies.compare.small_features import CLASSES, features
from tests.training.some_prior import teach, with_prior
from torch import Tensor
from torch.nn.functional import softplus

from labelgap.core.errors import InputError, RunError
from labelgap.data import load
from labelgap.data.dataset import Dataset, Split
from labelgap.data.images import ArrayImages
from labelgap.labels import LabelTable
from labelgap.losses import ElementwiseLoss
from labelgap.models import Backbone, InputSpec
from labelgap.reporting import write_report
from labelgap.reporting.pages.comparison import comparison_notes, setting_columns
from labelgap.studies.compare import Comparison, compare
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.compare.heads import StoredHead, compute_split_features
from labelgap.studies.compare.results import GapToBest, MethodResult
from labelgap.studies.compare.settings import OPTION_GRIDS, SHORT, CompareSettings, hyperparameter_grid, method_names
from labelgap.studies.compare.statistics import draw_resamples, gaps_to_best
from labelgap.studies.sweep import sweep
from labelgap.training.fit import fit
from labelgap.training.heads import HeadPlan
from labelgap.training.history import unseen_splits
from labelgap.training.plan import default_linear_backbone
from labelgap.training.progress import Reporter


def run(data: Dataset, names: Any, out: Path, **settings: Any) -> Comparison:
    given = {"seeds": 2, "epochs": 2, "grid": "small", "baseline": False, **settings}
    return compare(data, names, out=out, device="cpu", quiet=True, **given)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    groups: list[list[str]] = []
    real = vars(compare_heads)["train_heads"]

    def counted(values: Any, plans: Any, **settings: Any) -> Any:
        groups.append([plan.method for plan in plans])
        return real(values, plans, **settings)

    monkeypatch.setattr(compare_heads, "train_heads", counted)
    return groups


def test_the_setting_with_the_highest_mean_val_score_is_selected(tmp_path: Path) -> None:
    made = run(features(), ["an", "em"], tmp_path / "c", learning_rates=[1e-1, 1e-3, 1e-5])
    assert {row.method for row in made.methods} == {"an", "em"}
    with (made.path / "settings.csv").open(encoding="utf-8") as file:
        tried = list(csv.DictReader(file))
    assert len(tried) == 2 * 3 * 2
    for row in made.methods:
        own = [each for each in tried if each["method"] == row.method]
        rates = {each["lr"]: [float(other["score"]) for other in own if other["lr"] == each["lr"]] for each in own}
        assert max(rates, key=lambda rate: sum(rates[rate])) == f"{row.lr:g}"
        assert {each["lr"] for each in own if each["selected"] == "1"} == {f"{row.lr:g}"}


def test_methods_that_need_more_labels_see_them_and_are_listed_last(tmp_path: Path) -> None:
    made = run(features(), ["an", "bce", "iun", "iu", "two-way"], tmp_path / "c")
    assert {row.method for row in made.competitors} == {"an", "two-way"}
    seen = {row.method: [word for word in row.label_view.split() if word in "0 1 90 all every"] for row in made.methods}
    assert (seen["an"], seen["bce"], seen["iun"], seen["iu"]) == (["90", "0"], ["every"], ["1", "all"], ["1", "1"])
    assert all((row.gap is None) == row.extra_labels == (place > 1) for place, row in enumerate(made.methods))
    (contrast,) = (row for row in made.methods if row.method == "two-way")
    assert contrast.options["unknown"] == "negative", "no absent is known"
    blind = run(features(truth=False, splits=("val",)), ["an", "bce", "iun", "iu", "curriculum"], tmp_path / "d")
    assert blind.metric.name == "val mAP" and blind.methods[0].seeds[0].test is None
    assert [row.method for row in blind.skipped] == ["bce", "iun", "iu", "curriculum"]
    assert blind.methods[0].method == "an" and blind.methods[0].mean_of("train_map") is None
    part = features(truth=False)
    codes = np.where(np.arange(90)[:, None] % 3 == 0, -1, np.eye(4)[np.arange(90) % 4])
    truth = LabelTable.from_dense(codes, CLASSES)
    part = replace(part, train=Split("train", part.train.images, truth.observe(1, 0), truth))
    assert "every" not in run(part, ["an", "bce"], tmp_path / "e").methods[-1].label_view, "all that is known"
    with pytest.raises(InputError, match="bce"):
        run(features(truth=False), ["bce"], tmp_path / "f")


def test_nothing_is_hidden_unless_it_is_asked_for(tmp_path: Path) -> None:
    data = features(observed=False, truth=False)
    whole = run(data, ["bce", "an"], tmp_path / "a")
    assert {(row.label_view, row.extra_labels) for row in whole.methods} == {("every label", False)}
    hidden = run(data, ["bce", "an"], tmp_path / "b", observe={"positives": 1, "negatives": 0})
    assert {row.method: row.extra_labels for row in hidden.methods} == {"bce": True, "an": False}
    assert all(row.mean_of("train_map") is not None for row in hidden.methods)


def test_a_seed_moves_the_hidden_labels_only_where_labels_are_hidden_on_purpose(tmp_path: Path) -> None:
    rule = {"positives": "rare-overlooked", "share": 0.6}
    drawn = run(features(), ["an", "iu"], tmp_path / "a", observe=rule, label_seed=7)
    assert [seed.label_seed for seed in drawn.methods[0].seeds] == [7, 8]
    views = {row.method: (row.label_view, row.extra_labels) for row in drawn.methods}
    assert all(view.startswith("rare-overlooked: 60 %") for view, _ in views.values())
    assert [views[name][1] for name in ("an", "iu")] == [False, True]
    fixed = run(features(), ["an"], tmp_path / "b")
    assert [seed.label_seed for seed in fixed.methods[0].seeds] == [None, None]
    assert len({*fixed.methods[0].values}) == 2, "the first weights differ"


def test_a_share_of_all_labels_has_its_own_absent_ones(tmp_path: Path) -> None:
    drawn = run(features(), ["iu", "iun"], tmp_path / "a", observe={"positives": "labels", "share": 0.6})
    views = {row.method: (row.label_view, row.extra_labels) for row in drawn.methods}
    assert views["iu"] == ("labels: 60 % of all labels, present and absent alike", False)
    assert views["iun"] == ("1 present and all absent labels of each image", True)


def test_what_is_trained_is_not_trained_again(tmp_path: Path, trained: list[list[str]]) -> None:
    first = run(features(), ["an", "role"], tmp_path / "c")
    assert len(trained) == 1, "both seeds together"
    again = run(features(), ["an", "role"], tmp_path / "c")
    assert len(trained) == 1
    assert [row.values for row in first.methods] == [row.values for row in again.methods]
    run(features(), ["an", "role", "wan"], tmp_path / "c", seeds=3)
    assert sorted(trained[1]) == ["an"] * 2 + ["role"] * 2 + ["wan"] * 6, "two rates, and seeds that are new"


def test_role_without_a_number_of_positives_is_listed_with_the_way_out(tmp_path: Path) -> None:
    data = features()
    assert data.val is not None
    labels = data.val.labels.to_dense()[:40]
    labels[39, 0] = -1
    few = Split("val", data.val.images.select(range(40)), LabelTable.from_dense(labels, CLASSES))
    made = run(replace(data, val=few), ["an", "role"], tmp_path / "c")
    assert [row.method for row in made.skipped] == ["role"]
    assert "expected_positives" in made.skipped[0].reason
    told = run(replace(data, val=few), ["an", "role"], tmp_path / "c", options={"role": {"expected_positives": 1.5}})
    assert {row.method: dict(row.options) for row in told.methods}["role"] == {"expected_positives": 1.5}


class Own(ElementwiseLoss):
    """Unknown labels count as absent."""

    def entries(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (labels == 1) * softplus(-logits) + (labels != 1) * softplus(logits)


def test_a_loss_of_ones_own_is_compared_by_its_class(tmp_path: Path) -> None:
    made = run(features(), ["an", f"{__name__}:Own"], tmp_path / "c", seeds=1)
    values = {row.method: row.values for row in made.methods}
    assert values["an"] == pytest.approx(values[f"{__name__}:Own"], abs=1e-6)
    assert not [path for path in (tmp_path / "c" / "heads").iterdir() if ":" in path.name]


def test_positives_alone_support_no_accuracy_and_the_order_is_called_what_it_is(tmp_path: Path) -> None:
    data = features(truth=False)
    assert data.val is not None and data.test is not None
    shown = [replace(split, labels=split.labels.observe(1, 0)) for split in (data.val, data.test)]
    made = run(replace(data, val=shown[0], test=shown[1]), ["an", "em"], tmp_path / "c")
    assert made.rule == "observed" and made.metric.name == "observed ranking on test"
    assert not made.metric.is_accuracy and "no accuracy" in made.metric.reason
    assert all(row.mean is not None and row.mean_of("map") is None for row in made.methods)


def test_without_val_the_numbers_are_those_of_a_cross_validated_run(tmp_path: Path, trained: list[list[str]]) -> None:
    data, options = features(splits=("test",)), {"role": {"expected_positives": 1.5}}
    made = run(data, ["an", "role"], tmp_path / "c", options=options)
    assert made.metric.name == "test mAP" and made.rule == "observed" and made.metadata["folds"] == 5
    for row in made.methods:
        given: dict[str, Any] = {"epochs": 2, "device": "cpu", "quiet": True, "trace": "off"}
        single = fit(data, row.method, row.options, out=tmp_path / row.method, **given)
        compared = single.metrics["cross_validation"]["compared"]
        assert row.settings_tried == len(compared) > 1
        assert row.seeds[0].score == pytest.approx(max(line["score"] for line in compared))
        chosen = single.config
        assert (row.weight_decay, row.lr, row.optimizer) == (chosen.weight_decay, chosen.lr, chosen.optimizer)
        assert row.standardize and (row.optimizer == "newton") == (row.method == "an")
        assert row.seeds[0].train_map == pytest.approx(single.metrics["train"]["map"], abs=1e-3)
        assert row.seeds[0].value == pytest.approx(single.metrics["test"]["map"], abs=1e-2)
        assert row.mean_of("f1_macro") is not None
    assert Comparison.open(made.path).methods == made.methods
    final = len(trained)
    again = run(data, ["an", "role"], tmp_path / "c", options=options)
    assert [row.values for row in again.methods] == [row.values for row in made.methods] and len(trained) == final


def test_without_val_and_test_methods_are_ordered_out_of_fold(tmp_path: Path) -> None:
    made = run(features(splits=()), ["an", "em", "bce"], tmp_path / "a", weight_decays=[0.01], standardize=False)
    assert made.metric.name == "observed ranking out of fold" and not made.metric.is_accuracy
    assert all(row.mean is not None and row.weight_decay == 0.01 and not row.standardize for row in made.methods)
    assert made.methods[-1].method == "bce" and made.methods[-1].extra_labels
    known = run(features(splits=(), observed=False), ["an"], tmp_path / "b", learning_rates=[0.1], batch_sizes=[8, 16])
    assert known.metric.name == "out-of-fold mAP" and known.metric.is_accuracy and known.methods[0].lr == 0.1
    assert known.methods[0].settings_tried >= 6 and known.methods[0].optimizer == "adam"


def test_what_varies_has_a_row_for_each_value_with_its_own_setting_and_test(tmp_path: Path) -> None:
    vary = {"delta_rel": [1, 20], "an.lr": [1e-1, 1e-4]}
    made = run(features(), ["an", "ll-ct", "bce"], tmp_path / "c", vary=vary)
    rows = {row.name: row for row in made.methods}
    assert list(rows) == [row.name for row in made.competitors] + ["bce"]
    assert {*rows} == {"an lr=0.1", "an lr=0.0001", "ll-ct delta_rel=1", "ll-ct delta_rel=20", "bce"}
    assert rows["an lr=0.1"].lr == 1e-1 and rows["an lr=0.0001"].lr == 1e-4 and rows["bce"].settings_tried == 2
    assert rows["ll-ct delta_rel=20"].options["delta_rel"] == 20 and rows["ll-ct delta_rel=20"].settings_tried == 2
    alone = run(features(), ["ll-ct"], tmp_path / "d", options={"ll-ct": {"delta_rel": 20}}).methods[0]
    assert rows["ll-ct delta_rel=20"].values == alone.values
    for row in made.methods:
        for seed in row.seeds:
            assert len(seed.scores) == 2 and max(seed.scores) == seed.score == seed.scores[seed.epoch - 1]
            assert seed.known_labels == (360 if row.method == "bce" else 90)
    assert Comparison.open(made.path).methods == made.methods
    folded = run(features(splits=()), ["an"], tmp_path / "f", vary={"weight_decay": [0.01, 1.0]})
    found = {row.name: row.weight_decay for row in folded.methods}
    assert found == {f"an weight_decay={decay}": decay for decay in (0.01, 1.0)}


def test_with_too_few_images_for_folds_nothing_is_ordered(tmp_path: Path) -> None:
    data = features(splits=())
    few = Split("train", data.train.images.select(range(9)), data.train.labels.select(range(9)))
    made = run(replace(data, train=few), ["an", "em"], tmp_path / "c")
    assert made.rule == "last" and made.metric.name == "" and all(row.mean is None for row in made.methods)
    assert made.methods[0].settings_tried == 1 and made.methods[0].lr == 1e-3 and made.methods[0].seeds[0].epoch == 2
    assert made.winner is None and "cannot be ordered" in made.metric.reason


def test_what_diverges_is_listed_and_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    made = run(features(), ["an", "em"], tmp_path / "c", learning_rates=[1e37], epochs=1)
    assert {row.method for row in made.skipped} | {row.method for row in made.methods} == {"an", "em"}
    assert all("learning rate" in row.reason for row in made.skipped)
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match=tmp_path.name):
        run(features(), ["an"], tmp_path)
    with pytest.raises(RunError, match=tmp_path.name):
        Comparison.open(tmp_path)


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["ll-tr"], {}, "'ll-r'"),
        (["all", "an"], {}, "'all'"),
        (["an"], {"grid": "fall"}, "'full'"),
        (["an"], {"options": {"em": {"alpha": 0.1}}}, "'em'"),
        (["em"], {"options": {"em": {"alfa": 0.1}}}, "'alpha'"),
        (["an"], {"seeds": 0}, "seeds=0"),
        (["an"], {"learning_rates": [0.0]}, "--lr"),
        (["an"], {"weight_decays": [-1.0]}, "--weight-decay"),
        ([], {}, "'short' or 'all'"),
        (["an"], {"select": "clear"}, "clean"),
        (["an", "ll-r"], {"vary": {"delta_rl": [1, 2]}}, "'delta_rel'"),
        (["an"], {"vary": {"ll-r.delta_rel": [1, 2]}}, "'ll-r'"),
        (["ll-r"], {"vary": {"delta_rel": [1, 1]}}, "--vary delta_rel"),
        (["ll-r"], {"vary": {"delta_rel": [1, -2]}}, "delta_rel"),
        (["an"], {"vary": {"lr": [0.1, "high"]}}, "--vary lr"),
        (["em"], {"vary": {"alpha": [0.1, 0.2]}, "options": {"em": {"alpha": 0.1}}}, "--vary alpha"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, names: list[str], settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(features(), names, tmp_path / "c", **settings)


def test_train_calls_an_accuracy_out_of_fold_as_compare_does(tmp_path: Path) -> None:
    data = features(splits=(), observed=False)
    compared = run(data, ["an"], tmp_path / "a", learning_rates=[0.1], batch_sizes=[8])
    trained = fit(data, "an", out=tmp_path / "b", epochs=2, device="cpu", quiet=True)
    assert [f"{heading} mAP" for heading in unseen_splits(trained.metrics).values()] == [compared.metric.name]


def run_default(data: Dataset, names: Any, out: Path, **settings: Any) -> Comparison:
    given = {"seeds": 2, "baseline": False, "device": "cpu", "quiet": True, **settings}
    return compare(data, names, out=out, **given)


def by_method(made: Comparison) -> dict[str, MethodResult]:
    return {row.method: row for row in made.methods}


def test_settings_are_searched_on_val_as_fit_searches_them(tmp_path: Path) -> None:
    data = features()
    rows = by_method(run_default(data, ["an", "role"], tmp_path / "c", seeds=1, epochs=3))
    for name, row in rows.items():
        single = fit(data, name, out=tmp_path / name, epochs=3, device="cpu", quiet=True, trace="off")
        chosen = single.config
        assert (row.weight_decay, row.lr, row.optimizer) == (chosen.weight_decay, chosen.lr, chosen.optimizer)
        assert row.standardize and row.settings_tried == len(single.metrics["search"]["compared"])
        assert row.seeds[0].epoch == single.metrics["best_epoch"]
        assert row.seeds[0].value == pytest.approx(single.metrics["test"]["map"], abs=1e-3)
        assert row.mean_of("train_map") == pytest.approx(single.metrics["train"]["map"], abs=1e-3)
        assert row.mean_of("f1_macro") == pytest.approx(single.metrics["test"]["f1_macro"], abs=2e-2)
    assert rows["an"].optimizer == "newton" and rows["role"].optimizer == "adam"


@pytest.mark.parametrize("splits", [("val", "test"), ("test",)], ids=["val", "folds"])
def test_a_grid_is_extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...]) -> None:
    monkeypatch.setattr("labelgap.training.auto.STRENGTHS", (300.0, 3000.0))
    made = run_default(features(splits=splits), ["an"], tmp_path / "c", seeds=1)
    decays = {trial["weight_decay"] for trial in made.trials}
    assert {5.0, 50.0} < decays and (min(decays) < 2 or max(decays) > 150)


def test_a_choice_at_the_edge_is_told_everywhere(tmp_path: Path) -> None:
    lowest = {"weight_decays": [1e-5, 1.0], "learning_rates": [1e-4, 1e-2]}
    made = run_default(features(), ["role", "an"], tmp_path / "c", epochs=2, grid="small", **lowest)
    row = made.methods[0]
    assert row.at_edge["lr"] == "highest" and row.at_edge["weight_decay"] in ("lowest", "highest")
    assert Comparison.open(made.path).methods == made.methods
    with (made.path / "compare.csv").open(encoding="utf-8") as file:
        assert "lr=highest" in next(csv.DictReader(file))["at_edge"]
    assert any("*" in cell for cell in [cells[0] for cells in setting_columns(made).values()])
    assert ("°" in " ".join(comparison_notes(made))) == any("epoch" in each.at_edge for each in made.methods)
    assert "1e-2*" in write_report(made).read_text(encoding="utf-8")
    (one,) = run_default(
        features(), ["an"], tmp_path / "d", learning_rates=[1e-2], weight_decays=[0.0], epochs=2
    ).methods
    assert not {"lr", "weight_decay"} & one.at_edge.keys(), "nothing was compared"


@pytest.mark.parametrize("splits", [("val", "test"), ("test",)], ids=["val", "folds"])
def test_the_baseline_is_scikit_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...]) -> None:
    heads: list[tuple[HeadPlan, StoredHead]] = []
    real = vars(compare_heads)["_write"]

    def written(path: Path, result: Any, seconds: float) -> Any:
        heads.append((result.plan, real(path, result, seconds)))
        return heads[-1][1]

    monkeypatch.setattr(compare_heads, "_write", written)
    data = features(splits=splits)
    made = run_default(data, ["em"], tmp_path / "c", baseline=True)
    row = by_method(made)["logistic regression"]
    assert row.baseline and row.gap is not None and row.settings_tried > 7 and row.standardize
    assert len(set(row.values)) == 1 and not by_method(made)["em"].baseline
    train, labels = data.train.images.vectors, data.train.labels.to_dense()  # type: ignore[attr-defined]
    scaled = StandardScaler().fit_transform(train.astype(np.float64))
    chosen = [head for plan, head in heads if (plan.method, plan.weight_decay) == ("an", row.weight_decay)]
    weight, bias = chosen[0].weights()
    scores = train @ weight.numpy().T + bias.numpy()
    for number in range(len(CLASSES)):
        peer = LogisticRegression(C=1 / (row.weight_decay * labels.size), tol=1e-8, max_iter=1000)
        peer.fit(scaled, labels[:, number] == 1)
        np.testing.assert_allclose(scores[:, number], peer.decision_function(scaled), atol=2e-3)
    heads.clear()
    again = run_default(data, ["em"], tmp_path / "c", baseline=True)
    assert not heads and [row.values for row in again.methods] == [row.values for row in made.methods]


CPU = torch.device("cpu")


class Means(Backbone):
    """Means over the colours of a picture."""

    def __init__(self) -> None:
        super().__init__(num_features=3, input_spec=InputSpec(size=4, mean=(0.5,) * 3, std=(0.5,) * 3, channels=3))

    def feature_maps(self, images: torch.Tensor) -> torch.Tensor:
        return images


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compare_heads, "create_backbone", lambda name, weights, size: Means())
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        pixels = random.integers(0, 255, (40, 6, 6, 3), dtype=np.uint8)
        table = LabelTable.from_dense(pixels.mean(axis=(1, 2)) > 127)
        parts[name] = Split(name, ArrayImages(pixels), table)
    return Dataset("colours", **parts)


def test_an_untrained_network_is_refused_and_never_the_default() -> None:
    digits = load("digits", train=10, val=10, test=10)
    assert digits.backbone == "small-cnn" and default_linear_backbone(digits) == "efficientnet-lite0"
    assert default_linear_backbone(features()) == "features"
    with pytest.raises(InputError, match="no pretrained weights"):
        compute_split_features(digits, "small-cnn", None, CPU, 0, Reporter(quiet=True))


def test_other_weights_in_the_same_file_are_another_network(photos: Dataset, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    fingerprints = []
    for content in (b"one", b"two", b"one"):
        file.write_bytes(content)
        _, fingerprint = compute_split_features(photos, "resnet50", str(file), CPU, 0, Reporter(quiet=True))
        fingerprints.append(fingerprint)
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]


def test_samples_are_drawn_alike_and_the_short_list_depends_on_what_is_known() -> None:
    drawn = draw_resamples(50, 4, 3)
    assert (drawn.sum(axis=0) == 50).all() and drawn.shape[1] == 100
    assert np.array_equal(drawn, draw_resamples(50, 4, 3))
    assert draw_resamples(60, 4, 10**12).shape == (60, 40)
    presents, both = LabelTable.from_dense([[1, -1]]), LabelTable.from_dense([[1, -1], [-1, 0]])
    assert method_names("short", both) == list(SHORT)
    assert method_names("short", presents) == [name for name in SHORT if name != "iu"]
    assert "bce" in method_names("short", LabelTable.from_dense([[1, 0]]))
    assert set(method_names("short")) < set(method_names("all"))


def test_the_interval_is_the_formula() -> None:
    values = {"a": [0.80, 0.82, 0.81], "b": [0.78, 0.79, 0.80]}
    samples = {"a": np.array([0.80, 0.82, 0.81, 0.83]), "b": np.array([0.79, 0.79, 0.80, 0.80])}
    gaps, images = [0.02, 0.03, 0.01], [0.01, 0.03, 0.01, 0.03]
    mean = sum(gaps) / 3
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / 2)
    spread = math.sqrt(sum((gap - 0.02) ** 2 for gap in images) / 3)
    half = math.hypot(4.302652729911275 * deviation / math.sqrt(3), 1.96 * spread)
    found = gaps_to_best(values, samples)
    assert list(found) == ["a", "b"] and found["a"] == GapToBest(0.0, 0.0)
    assert found["b"].mean == pytest.approx(mean) and found["b"].half_width == pytest.approx(half)
    assert not found["b"].significant
    many = gaps_to_best({"a": [0.9, 0.91, 0.9], "b": [0.5, 0.51, 0.5]}, None)
    assert many["b"].significant and not many["a"].significant
    one = gaps_to_best({"a": [0.9], "b": [0.5]}, None)
    assert one["b"].half_width is None and not one["b"].significant, "a single seed never is"


def test_the_grids_are_the_papers() -> None:
    full, small = CompareSettings(grid="full"), CompareSettings(grid="small")
    assert {(each["lr"], each["batch_size"]) for each in hyperparameter_grid("bce", full, {})} == {
        (lr, batch) for lr in (1e-2, 1e-3, 1e-4, 1e-5) for batch in (8, 16)
    }
    assert [each["options"] for each in hyperparameter_grid("em", small, {"alpha": 0.2})] == [{"alpha": 0.2}] * 2
    searched = {each["options"]["alpha"] for each in hyperparameter_grid("em", full, {"alpha": 0.2})}
    assert searched == {0.01, 0.02, 0.1, 0.2, 0.4, 0.9}
    given = CompareSettings(grid="full", learning_rates=[1e-3], batch_sizes=[16])
    fixed = hyperparameter_grid("em-apl", given, {"alpha": 0.3}, fixed=["alpha"])
    assert {each["options"]["alpha"] for each in fixed} == {0.3} and len(fixed) == 6
    assert OPTION_GRIDS["asl"] == {"gamma_neg": (1.0, 2.0), "margin": (0.0, 0.05, 0.2)}


def test_a_prior_that_heads_would_not_see_is_refused(tmp_path: Path) -> None:
    taught = with_prior(data := features(), teacher=teach(data))
    for study in (compare, sweep):
        with pytest.raises(InputError, match="Leave --prior out"):
            study(taught, "an", out=tmp_path / study.__name__, quiet=True)

"""The papers' tables made again: what is published, what is trained once, what is refused, on vectors and on photos."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from benchmarks.openimages_folder import write_folder
from sklearn.metrics import average_precision_score
from tests.cli.conftest import call
from tests.data.readers.official.test_load_cub_nuswide import nuswide
from tests.data.readers.official.test_load_voc import devkit
from tests.killing import start_forked, wait_forked
from tests.studies.compare.small_features import arrays
from tests.timm_models import timm_or_skip
from tests.waiting import has_ended, wait_until

from labelgap.core.errors import InputError, RunError
from labelgap.core.tensors import read_tensors
from labelgap.core.text import DAY
from labelgap.data import load
from labelgap.labels import LabelTable
from labelgap.labels.table import class_groups
from labelgap.losses import methods
from labelgap.reporting import write_report
from labelgap.studies import jobs
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.compare.runner import estimate_comparison
from labelgap.studies.reproduce import Reproduction, networks, paper_tables, reproduce, results, runner
from labelgap.studies.reproduce.results import warmup_share
from labelgap.studies.reproduce.runner import describe_cost, plan_reproduction
from labelgap.training import open_run, progress
from labelgap.training.cost import CostEstimate
from labelgap.training.run_folder import read_predictions
from labelgap.training.signals import defer_interrupt
from labelgap.verification import verify_run

QUICK: dict[str, Any] = {"seeds": 2, "epochs": 1, "device": "cpu", "quiet": True}
TRAIN = vars(networks)["_train"]
NETWORK: dict[str, Any] = {"backbone": "tiny-cnn", "size": 16}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of all heads, and the folders of all networks, that are trained from now on."""
    names: list[str] = []
    train_heads, fit = vars(compare_heads)["train_heads"], vars(jobs)["fit"]

    def heads(values: Any, plans: Any, **settings: Any) -> Any:
        names.extend(plan.method for plan in plans)
        return train_heads(values, plans, **settings)

    def network(*given: Any, **settings: Any) -> Any:
        if not settings["resume"]:
            names.append(settings["out"].name)
        return fit(*given, **settings)

    monkeypatch.setattr(compare_heads, "train_heads", heads)
    monkeypatch.setattr(jobs, "fit", network)
    return names


def test_every_published_number_is_of_a_cell_and_has_a_source() -> None:
    tables = paper_tables()
    file = Path(vars(networks)["__file__"]).with_name("published.csv")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    cells = {(name, cell.row.name, cell.column.name) for name, table in tables.items() for cell in table.cells}
    named = [(row["table"], row["row"], row["column"]) for row in rows]
    assert set(named) <= cells and len(set(named)) == len(named) and all(row["source"] for row in rows)
    for table in tables.values():
        assert {cell.row.method for cell in table.cells} <= set(methods())
    kim = [table for table in tables.values() if "openimages" in table.datasets]
    assert [table.data_options["openimages"] for table in kim] == 2 * [{"classes": "trainable"}], "the same classes"
    found = {cell.name: cell.published for cell in tables["cole-table1"].cells}
    role, later = found["role/linear:voc2012"], found["role+linear-init/end-to-end:cub"]
    assert role is not None and role.value == 86.5 and later is not None and later.value == 16.8
    unknown = [cell for cell in tables["zhou-table"].cells if cell.row.name == "dw"]
    assert all(cell.published is None for cell in unknown), "what is not known stays blank"


def test_cells_are_filled_in_any_order_and_nothing_is_trained_twice(vectors: str, trained: list[str]) -> None:
    first = reproduce("cole-table2", [vectors], cells=["an", "role"], **QUICK)
    assert trained.count("an") == trained.count("role") == 2 * 4 * 2, "two batch sizes, four rates, two seeds"
    trained.clear()
    second = reproduce("cole-table1", [vectors], cells=["a*/linear:voc2012", "iun/linear:*"], **QUICK)
    assert {*trained} == {"an-ls", "iun"}
    assert second.tables == ["cole-table1", "cole-table2"], "a folder holds any number of tables"
    trained.clear()
    third = reproduce("cole-table2", [vectors], **QUICK)
    assert not trained, "an-ls is of table 1 already"
    role = first.by_name["cole-table2", "role/linear:voc2012:train_map"]
    assert third.by_name["cole-table2", "role/linear:voc2012:train_map"] == role and len(role.values) == 2
    fewer = reproduce("cole-table2", [vectors], **{**QUICK, "seeds": 1})
    assert fewer.cells == third.cells, "two seeds are not replaced by one"
    assert 0 < role.values[0] <= 100 and role.settings_tried == 8 and role.setting["lr"] in (1e-2, 1e-3, 1e-4, 1e-5)
    assert role.setting["options"] == {"expected_positives": 1.5}, "the paper's number for VOC, whatever the file is"
    lines = list(csv.DictReader(Path("runs/reproduce/results.csv").read_text(encoding="utf-8").splitlines()))
    (line,) = (each for each in lines if (each["table"], each["row"]) == ("cole-table2", "role"))
    assert line["paper"] == "90.3" and float(line["difference"]) == pytest.approx(role.mean - 90.3, abs=0.01)
    assert Reproduction.open("runs/reproduce").cells == third.cells


def test_a_kill_between_two_files_is_resumed(vectors: str, trained: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reproduce("cole-table2", [vectors], cells=["an"], **QUICK)
    folder = Path("runs/reproduce")
    assert verify_run(folder).intact and verify_run(folder).finished
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(results, "write_text", Mock(side_effect=[None, KeyboardInterrupt]))
        reproduce("cole-table2", [vectors], cells=["role"], **QUICK)
    trained.clear()
    assert len(reproduce("cole-table2", [vectors], cells=["role"], **QUICK).cells) == 2 and not trained
    head = next((folder / "linear/voc2012/heads").iterdir())
    head.write_bytes(head.read_bytes()[:-1])
    assert [file.name for file in verify_run(folder).problems] == [head.relative_to(folder).as_posix()]


def test_the_command_prints_both_numbers_and_writes_a_report(vectors: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("reproduce", "cole-table1", "--data", vectors, "--cells", "an;wan", "--epochs", "1", "--device", "cpu")
    assert call(*asked, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "48 linear heads" in said and "coco2014=PATH" in said
    assert not Path("runs").exists(), "a dry run writes nothing"
    assert call(*asked, "--grid", "preset", "--seeds", "1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(each in said for each in ("84.2", "epochs 1", "90/110/80", "4,574/1,143/5,823")), "ours and theirs"
    page = Path("runs/reproduce/report.html").read_text(encoding="utf-8")
    assert '<td data-name="paper">84.2' in page, "a phone shows the names"
    rows = list(csv.DictReader(Path("runs/reproduce/tables/cole-table1.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["method"], row["linear voc2012 paper"]) for row in rows] == [("an", "84.2"), ("wan", "84.1")]
    assert verify_run("runs/reproduce").intact
    assert call("report", "runs/reproduce") == call("reproduce") == 0
    assert "kim-table4" in capsys.readouterr().out


def test_what_is_wrong_is_refused_at_once(vectors: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = arrays()
    np.savez("untested.npz", **{name: stored[name] for name in stored if "test" not in name})  # type: ignore[arg-type]
    stored["train_truth"] = stored["train_truth"].copy()
    stored["train_truth"][0, 0] = -1
    np.savez("gap.npz", **stored)  # type: ignore[arg-type]
    refused: list[tuple[str, list[str], dict[str, Any], str]] = [
        ("cole-tabel2", [], {}, "'cole-table2'"),
        ("cole-table2", ["voc12=vectors.npz"], {}, "'voc2012'"),
        ("cole-table2", [vectors], {"cells": ["an,role"]}, "';'"),
        ("cole-table2", [vectors], {"cells": ["rolle"]}, "'role'"),
        ("cole-table2", [vectors], {"cells": []}, "an, an-ls, role"),
        ("cole-table2", [vectors], {"jobs": 0}, "--jobs 0"),
        ("cole-table2", [vectors], {"epochs": 0}, "--epochs 0"),
        ("cole-table2", [vectors], {"grid": "fine"}, "--grid fine"),
        ("kim-table2", [vectors], {}, r"vectors\.npz holds features"),
        ("cole-table2", [vectors, vectors], {}, r"given already, vectors\.npz"),
        ("cole-table2", ["voc2012=missing.npz"], {}, r"missing\.npz"),
        ("cole-table2", [], {}, "--data voc2012=PATH"),
        ("two-way-nus", [], {}, "--data nuswide=PATH$"),
        ("two-way-transfer", [], {}, "--data sun397=PATH$"),
        ("cole-table2", ["voc2012=untested.npz"], {}, r"untested\.npz"),
        ("cole-table2", ["voc2012=gap.npz"], {}, r"gap\.npz"),
    ]
    for table, data, asked, named in refused:
        with pytest.raises(InputError, match=named):
            reproduce(table, data, **asked)
    with pytest.raises(RunError):
        reproduce("cole-table2", [vectors], out=tmp_path)
    assert call("reproduce", "cole-tabel1") == 2 and "'cole-table1'" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_folder_of_other_settings_or_another_version_is_refused(vectors: str) -> None:
    reproduce("cole-table2", [vectors], cells=["an"], **QUICK)
    with pytest.raises(RunError, match="epochs 1"):
        reproduce("cole-table2", [vectors])
    stored = arrays()
    np.savez("other.npz", **{**stored, "val_features": 2 * stored["val_features"]})  # type: ignore[arg-type]
    with pytest.raises(RunError, match=r"an/linear:voc2012:train_map of cole-table2"):
        reproduce("cole-table1", ["voc2012=other.npz"], cells=["wan"], **QUICK)
    file = Path("runs/reproduce/reproduce.json")
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "format": 2}))
    Path("runs/reproduce/manifest.json").unlink()
    with pytest.raises(RunError, match="format 2"):
        reproduce("cole-table2", [vectors], **QUICK)


def test_versions_that_options_load_live_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {**QUICK, **NETWORK, "seeds": 1, "grid": "preset"}
    nuswide(tmp_path)
    for table, cell in (("kim-table2", "an/end*"), ("two-way-nus", "softmax")):
        made = reproduce(table, ["nuswide=NUS-WIDE"], cells=[cell], **small)
    images = {table: found.images for (table, _), found in made.by_name.items()}
    assert images == {"kim-table2": (10, 2, 3), "two-way-nus": (9, 2, 2)}, "without the images that have no label"
    assert len(list(Path("runs/reproduce/runs").iterdir())) == 2 and verify_run("runs/reproduce").intact
    labels = nuswide(tmp_path / "other") / "Groundtruth/TrainTestLabels"
    for part, count in (("Train", 12), ("Test", 3)):
        (labels / f"Labels_beach_{part}.txt").write_text("1\n" * count)
    for table in ("kim-table2", "two-way-nus"):
        with pytest.raises(RunError, match=f"of {table} .* --data nuswide="):
            reproduce(table, ["nuswide=other/NUS-WIDE"], **small)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    splits = {"train": [f"2008_{number:06d}" for number in range(60)]}
    splits["val"] = [f"2009_{number:06d}" for number in range(48)]
    devkit(tmp_path, "2012", splits)
    return "voc2012=VOCdevkit"


def test_networks_are_shared_by_tables(photos: str, trained: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cells, small = ["ll-ct/end-to-end:*", "an/linear-init:*"], {**QUICK, **NETWORK}
    monkeypatch.setattr(runner, "dry_run", lambda *_, **__: CostEstimate(10 * DAY, 0, 0, "cpu", "end-to-end"))

    def told() -> str:
        plan = plan_reproduction("kim-table2", [photos], out="runs/reproduce", cells=cells, epochs=1, **NETWORK)
        return " ".join(describe_cost(plan, device="cpu"))

    assert "6 networks to train: about 60 days" in told()
    made = reproduce("kim-table2", [photos], cells=cells, **small)
    assert len(trained) == 4, "two cells, two seeds"
    assert "2 networks" in told(), "with three seeds; those of two are there"
    pointing = reproduce("kim-table4", [photos], cells=["ll-ct"], **small)
    assert len(trained) == 4, "the networks of table 2"
    found = pointing.by_name["kim-table4", "ll-ct/end-to-end:voc2012:pointing"]
    assert len(found.values) == 2 and all(0 <= value <= 100 for value in found.values)
    assert made.by_name["kim-table2", "an/linear-init:voc2012"].settings_tried == 1
    shares = reproduce("kim-table1", [photos], **{**small, "seeds": 1})
    assert {100.0} == {value for cell in shares.cells if "warmup" in cell.column for value in cell.values}
    scores = reproduce("zhou-table", [photos], cells=["em"], **{**small, "seeds": 1})
    assert {"em/end-to-end:voc2012", "em/end-to-end:voc2012:f1_micro"} <= {name for _, name in scores.by_name}
    more: dict[str, Any] = {**small, "seeds": 1, "epochs": 7, "out": "runs/ablation"}
    parts = reproduce("zhou-ablation", [photos], cells=["em", "em-apl,positive"], **more)
    precision = parts.by_name["zhou-ablation", "em-apl,positive/end-to-end:voc2012:positive_precision"]
    assert 0 <= precision.mean <= 100, "pseudo-labels start after five epochs"
    (run,) = (open_run(folder) for folder in Path("runs/ablation/runs").glob("voc2012-em-apl-*"))
    truth, made = run.load_data().train.evaluation_labels, run.revisions.to_table().to_pylist()
    absent = [truth.codes_at(*truth_place(truth, each)) == 0 for each in made if each["value"] == 0]
    negative = parts.by_name["zhou-ablation", "em-apl,positive/end-to-end:voc2012:negative_precision"]
    assert negative.mean == pytest.approx(100 * np.mean(absent))
    (scores_of_seed,) = precision.scores
    assert len(scores_of_seed) == 7 and scores_of_seed.index(max(scores_of_seed)) + 1 == precision.epochs[0]
    page = write_report(parts).read_text(encoding="utf-8")
    assert page.count("<svg") == 2, "both rows in one figure"


def truth_place(table: LabelTable, revision: dict[str, Any]) -> tuple[Any, Any]:
    """The row and the column of a revision."""
    return np.array([table.images.index(revision["image"])]), np.array([table.classes.index(revision["class"])])


def test_the_search_of_kim_is_made_on_request_and_his_choice_is_one_of_it(photos: str) -> None:
    asked: dict[str, Any] = {"out": "runs/r", "cells": ["ll-r/end-to-end:voc2012", "an/end-to-end:voc2012"], **NETWORK}
    names, settings = dict[str, list[Path]](), dict[str, list[dict[str, Any]]]()
    for grid in ("stated", "paper"):
        plan = plan_reproduction("kim-table2", [photos], grid=grid, **asked)
        for training in plan.trainings("end-to-end"):
            runs = networks.network_runs(training, plan.data(training), Path("runs/r"), plan.reproduction.settings)
            names[f"{grid} {training.method}"] = [run.folder for run in runs]
            settings[f"{grid} {training.method}"] = [run.setting for run in runs]
    assert [len(names[f"paper {method}"]) for method in ("an", "ll-r")] == [13, 65]
    assert settings["stated ll-r"] == [{"lr": 0.05, "batch_size": 16, "options": {"delta_rel": 0.2}}]
    assert set(names["stated ll-r"]) < set(names["paper ll-r"]) and set(names["stated an"]) < set(names["paper an"])
    assert {setting["options"]["delta_rel"] for setting in settings["paper ll-r"]} == {0.1, 0.2, 0.3, 0.4, 0.5}


def test_fewer_images_keep_their_labels_and_share_the_network_of_all(photos: str, trained: list[str]) -> None:
    small: dict[str, Any] = {**QUICK, **NETWORK, "seeds": 1}
    cells = [f"{name},share={share}/*voc2012*" for name in ("an", "bce") for share in ("0.1", "0.5", "1")]
    made = reproduce("kim-figure6", [photos], cells=cells, **small)
    counts = [cell.mean for (_, name), cell in made.by_name.items() if name.endswith("observed_labels")]
    runs = [open_run(folder).load_data().train.labels for folder in Path("runs/reproduce/runs").glob("voc2012-an-*")]
    few, some, every = sorted(runs, key=len)
    assert [len(few), len(some), len(every)] == [5, 24, 48], "60 images less the fifth that is val"
    assert counts[:3] == [(each.to_dense() == 1).sum() for each in (few, some, every)], "one positive of each"
    assert counts[3:] == [len(every.classes) * count for count in (5, 24, 48)] and len(trained) == 6
    assert {*few.images} < {*some.images} < {*every.images}, "a larger share has the images of a smaller one"
    rows = [every.images.index(image) for image in some.images]
    assert np.array_equal(some.to_dense(), every.to_dense()[rows]), "with the same labels"
    reproduce("kim-table2", [photos], cells=["an/end-to-end:voc2012"], **small)
    assert len(trained) == 6, "all images are those of table 2"
    reproduce("kim-table2", [photos], cells=["an+attention/end-to-end:voc2012"], **small)
    assert len(trained) == 7 and open_run(Path("runs/reproduce/runs") / trained[-1]).config.head == "attention"


def test_the_relative_row_beside_the_absolute_ones_is_the_best_of_three(photos: str, trained: list[str]) -> None:
    small: dict[str, Any] = {**QUICK, **NETWORK, "seeds": 1}
    table, column = paper_tables()["kim-absolute"], "end-to-end:voc2012"
    reproduce("kim-absolute", [photos], cells=["ll-r", "ll-ct"], **small)
    assert len(Reproduction.open("runs/reproduce").cells) == 2, "a part of three rows has no best"
    made = reproduce("kim-absolute", [photos], cells=["ll-relative"], **small).by_name
    parts = [made["kim-absolute", f"{method}/{column}"] for method in ("ll-r", "ll-ct", "ll-cp")]
    best = made["kim-absolute", f"ll-relative/{column}"]
    assert len(trained) == 3 and best.mean == max(part.mean for part in parts)
    assert best.setting["options"]["method"] in ("ll-r", "ll-ct", "ll-cp")
    found = {cell.name: cell.published for cell in table.cells}
    published = found[f"ll-relative/{column}"], found["ll-relative/end-to-end:nuswide"]
    assert [each and each.value for each in published] == [89.2, 48.3]


def test_tables_share_networks_of_equal_settings_whatever_their_presets(photos: str, trained: list[str]) -> None:
    small: dict[str, Any] = {**QUICK, **NETWORK, "seeds": 1}
    reproduce("zhou-table", [photos], cells=["an/end-to-end:voc2012"], **small)
    plan = plan_reproduction("cole-table1", [photos], out="runs/reproduce", cells=["an"], epochs=1, **NETWORK)
    (training,) = plan.trainings("end-to-end")
    data = plan.data(training)
    grid = networks.network_runs(training, data, plan.reproduction.path, plan.reproduction.settings)
    assert [run.setting["lr"] for run in grid if jobs.is_trained(run.folder)] == [1e-5] and len(grid) == 8
    (found,) = (run for run in grid if jobs.is_trained(run.folder))
    assert [found.folder.name] == trained
    ended = vars(networks)["_describe_running"]([found, next(run for run in grid if run is not found)])
    assert ended == "in training, epochs: 1/1, 0/1"
    fixed = replace(plan.reproduction.settings, lr=0.02)
    searched = [run.setting for run in networks.network_runs(training, data, Path("runs"), fixed)]
    assert searched == [{"lr": 0.02, "batch_size": size, "options": {}} for size in (8, 16)], "--lr is not searched"
    shares = reproduce("kim-table1", [photos], **small)
    made = reproduce("kim-table2", [photos], cells=["an/end-to-end:voc2012"], **{**small, "seeds": 2})
    assert [name.split("-")[-2] for name in trained] == ["0", "0", "1"], "seed 0 of both tables of Kim is one network"
    seconds = shares.by_name["kim-table1", "an/end-to-end:voc2012:warmup_tp"].seconds
    assert made.by_name["kim-table2", "an/end-to-end:voc2012"].seconds > seconds > 0


def test_a_dry_run_tells_the_cost_and_names_the_weights_that_are_missing(
    photos: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    timm_or_skip()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    network = ("--backbone", "timm:resnet18", "--size", "32", "--device", "cpu", "--workers", "0")
    asked = ("reproduce", "kim-table2", "--data", photos, "--cells", "an/end-to-end:voc2012", "--seeds", "2", *network)
    assert call(*asked, "--batch-size", "2", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "2 networks to train: about" in said and "missing   for 2 networks: " in said
    linear = ("cole-table1", "--data", photos, "--cells", "an/*", "--seeds", "1", *network)
    assert call("reproduce", *linear, "--dry-run") == 0
    assert re.search(r"missing   for \d+ linear heads: ", capsys.readouterr().out)
    assert call(*asked, "--batch-size", "2") == 2 and "weights of timm:resnet18" in capsys.readouterr().err
    assert not Path("runs/reproduce").exists(), "nothing is trained that cannot be finished"


def test_val_chooses_and_stops_resume(photos: str, trained: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {**QUICK, **NETWORK, "cells": ["an/end-to-end:voc2012"]}
    fit = vars(jobs)["fit"]

    def stopping(*given: Any, **settings: Any) -> Any:
        if len(trained) == 5:
            raise KeyboardInterrupt
        return fit(*given, **settings)

    def diverging(*given: Any, **settings: Any) -> Any:
        if settings["lr"] == 1e-5:
            raise RunError("it has diverged")
        return fit(*given, **settings)

    monkeypatch.setattr(jobs, "fit", stopping)
    with pytest.raises(KeyboardInterrupt):
        reproduce("cole-table1", [photos], **asked)
    monkeypatch.setattr(jobs, "fit", diverging)
    made = reproduce("cole-table1", [photos], **asked)
    assert len({*trained}) == len(trained) == 7, "six of eight settings, and one more seed of the best: each once"
    found = made.by_name["cole-table1", "an/end-to-end:voc2012"]
    assert found.settings_tried == 8 and found.setting["lr"] != 1e-5 and found.setting["batch_size"] in (8, 16)


def test_real_partial_labels_are_measured_by_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "openimages", images=250)
    small = {"backbone": "tiny-cnn", "size": 16, "epochs": 2, "lr": 0.01, "batch_size": 64, "grid": "preset"}
    asked: dict[str, Any] = {**small, "seeds": 1, "device": "cpu", "workers": 0, "quiet": True, "out": tmp_path / "kim"}
    made = reproduce("kim-table3", [f"openimages={folder}"], cells=["iu", "curriculum", "imcl", "ll-ct"], **asked)
    assert not made.missing and len(made.cells) == 4 * 6, "five groups and all classes"
    data = load(f"openimages={folder}")
    known, test = data.train.labels.to_dense(), data.test
    assert test is not None
    rarest = np.argsort((known >= 0).sum(axis=0), kind="stable")[:8]
    (run,) = map(open_run, (tmp_path / "kim/runs").glob("openimages-ll-ct-*"))
    scores = read_predictions(run.path, "test", test.labels.images, data.classes)
    assert scores is not None and run.config.lr == run.config.backbone_lr == 0.01
    codes, each, absent = test.labels.to_dense(), [], 0
    for column in rarest:
        if run.metrics["test"]["average_precision"][data.classes[column]] is not None:
            rows = codes[:, column] >= 0
            each.append(average_precision_score(codes[rows, column], scores[rows, column]))
            absent += int((codes[:, column] == 0).sum())
    cell = made.by_name["kim-table3", "ll-ct/end-to-end:openimages:g1"]
    first = run.metrics["test"]["groups"][0]
    assert cell.mean == pytest.approx(100 * np.mean(each), abs=0.01) == 100 * first["map"]
    assert cell.known_absent == first["absent"] == absent < (codes[:, rarest] == 0).sum(), "some class does not count"
    every = sum(row["absent"] for row in run.metrics["test"]["groups"])
    assert made.by_name["kim-table3", "ll-ct/end-to-end:openimages"].known_absent == every
    page = write_report(run).read_text(encoding="utf-8")
    assert f">{100 * first['map']:.1f}" in page
    assert call("evaluate", str(run.path), f"openimages={folder}", "--resamples", "0", "--device", "cpu") == 0
    assert f"G1 {100 * first['map']:.2f} ({absent:,}), G2" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_training_that_fails_leaves_its_cells_empty(
    photos: str, forked: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "fit", Mock(side_effect=RunError("it has diverged")))
    made = reproduce("kim-table2", [photos], cells=["wan/end-to-end:voc2012"], **NETWORK, **QUICK)
    assert not made.cells and made.missing["wan/end-to-end:voc2012"] == "it has diverged"
    monkeypatch.setattr(networks, "_train", die)
    asked = ("kim-table2", "--data", photos, "--cells", "wan/end-to-end:*;an/end-to-end:*", "--seeds", "1")
    network = ("--backbone", "tiny-cnn", "--size", "16", "--epochs", "1", "--device", "cpu")
    assert call("reproduce", *asked, *network, "--jobs", "2", "--json") == 2
    assert "--jobs" in json.loads(capsys.readouterr().out)["missing"]["wan/end-to-end:voc2012"], "no traceback"


def train_or_wait(run: Any, **settings: Any) -> Any:
    """Train a network; with `wan` and the first seed, wait for ever."""
    if (run.request.method, run.request.seed) != ("wan", 0):
        return TRAIN(run, **settings)
    Path(f"waiting-{os.getpid()}").touch()
    return threading.Event().wait()


def waiting() -> list[int]:
    return [int(path.name.partition("-")[2]) for path in Path().glob("waiting-*")]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_cell_is_written_as_soon_as_its_networks_end_and_a_kill_loses_none(
    photos: str, forked: None, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = ["wan/end-to-end:voc2012", "an/end-to-end:voc2012", "ll-r/end-to-end:voc2012"]
    asked: dict[str, Any] = {"cells": cells, **NETWORK, **QUICK}
    stored = Path("runs/reproduce/reproduce.json")
    with monkeypatch.context() as patch:
        patch.setattr(networks, "_train", train_or_wait)
        patch.setattr(jobs, "_POLL_SECONDS", 0.02)
        patch.setattr(progress, "LINE_SECONDS", 0.0)
        patch.setattr(progress, "LINE_SHARE", 0.0)
        work = partial(reproduce, "kim-table2", [photos], **{**asked, "jobs": 2, "quiet": False})
        process = start_forked(work, Path("screen"))
        while not (stored.exists() and len(Reproduction.open("runs/reproduce").cells) == 2 and waiting()):
            assert os.waitpid(process, os.WNOHANG) == (0, 0), Path("screen").read_text(encoding="utf-8")
            time.sleep(0.05)
        os.kill(process, signal.SIGKILL)
        assert wait_forked(process) == -signal.SIGKILL
    said = Path("screen").read_text(encoding="utf-8")
    assert said.count("voc2012-an-end-to-end-") == 2 and "(5 of 6)" in said, "one line for each network"
    assert "voc2012-wan-end-to-end-1-" in said, "with one setting, the other seeds do not wait for the first"
    assert re.search(r"^networks: \d+ %  in training, epochs: \d/1, \d/1$", said, re.MULTILINE), "and some in between"
    found = Reproduction.open("runs/reproduce").by_name
    wait_until(lambda: all(map(has_ended, waiting())))  # with the command that was killed
    made = reproduce("kim-table2", [photos], **asked)
    assert len(trained) == 1 and "-wan-end-to-end-0-" in trained[0], "nothing that had ended is trained again"
    assert len(made.cells) == 3 and {name: made.by_name[name] for name in found} == found


def die(*given: Any, **settings: Any) -> None:
    """End a process without a result, as the system does where there is no memory left."""
    os._exit(9)


def test_the_cost_of_heads_names_them_and_leaves_out_what_is_stored(vectors: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"out": tmp_path / "r", "cells": ["an", "role"], "seeds": 1, "epochs": 1}
    plan = plan_reproduction("cole-table2", [vectors], **asked)
    (line,) = describe_cost(plan, device="cpu")
    assert line.startswith("cost      16 linear heads on vectors.npz (an, role; batch 8 and 16): about ")
    comparison = vars(runner)["_comparison"](plan, plan.trainings("linear"))
    assert estimate_comparison(**comparison, device="cpu", workers=0) > 0
    reproduce("cole-table2", [vectors], device="cpu", quiet=True, **asked)
    assert estimate_comparison(**comparison, device="cpu", workers=0) == 0


def test_brought_features_are_evaluated_for_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random, stored = np.random.default_rng(0), {"classes": np.array(["a", "b", "c"])}
    for split in ("train", "test"):
        kind = np.arange(60) % 3
        stored[f"{split}_features"] = (np.eye(3)[kind] + 0.3 * random.normal(size=(60, 3))).astype(np.float32)
        stored[f"{split}_labels"] = np.eye(3, dtype=np.int8)[kind]
    np.savez("pets.npz", **stored)  # type: ignore[arg-type]
    made = reproduce("two-way-transfer", ["pets=pets.npz"], device="cpu", quiet=True)
    metrics = ("accuracy", "best_accuracy")
    chosen, best = (made.by_name["two-way-transfer", f"features/linear-eval:pets:{name}"] for name in metrics)
    assert 60 < chosen.mean <= best.mean <= 100 and chosen.settings_tried == 45


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """``--data`` of a feature file with the full labels of every split."""
    monkeypatch.chdir(tmp_path)
    np.savez("vectors.npz", **arrays())  # type: ignore[arg-type]
    return "voc2012=vectors.npz"


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are copies of this one, so that nothing is loaded again; their work is pickled all the same."""
    start = multiprocessing.get_context
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: start("fork"))


ONE_SEED: dict[str, Any] = {"seeds": 1, "epochs": 1, "grid": "preset", "device": "cpu"}
FOLDER = Path("runs/reproduce")


def test_a_stop_says_what_is_stored_and_leaves_a_folder_that_verifies(
    vectors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for cell, said in (("an", "before the first head"), ("role", "is stored")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(compare_heads, "train_heads", Mock(side_effect=KeyboardInterrupt))
            reproduce("cole-table2", [vectors], cells=[cell], **ONE_SEED)
        stopped = verify_run(FOLDER)
        assert stopped.intact and stopped.finished, stopped.problems
        assert said in capsys.readouterr().err
        if cell == "an":
            reproduce("cole-table2", [vectors], cells=[cell], quiet=True, **ONE_SEED)
    reproduce("cole-table2", [vectors], cells=["role"], quiet=True, **ONE_SEED)
    assert verify_run(FOLDER).intact and len(list(FOLDER.glob("linear/*/heads/*"))) == 2


def wait_for_signals(run: Any, **settings: Any) -> None:
    """Complete a step, as a training does, that lasts until a signal has come; write how many came."""
    process = os.getpid()
    with defer_interrupt() as received:
        Path(f"{process}.started").touch()
        while not received:
            time.sleep(0.01)
        time.sleep(0.3)
        Path(f"{process}.signals").write_text(str(len(received)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("interrupt", [os.kill, os.killpg])
def test_networks_in_training_are_stopped_once_whether_all_processes_or_the_first_get_a_ctrl_c(
    tmp_path: Path, forked: None, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[int, int], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    splits = {"train": [f"2008_{number:06d}" for number in range(60)], "val": ["2009_000001", "2009_000002"]}
    devkit(tmp_path, "2012", splits)
    monkeypatch.setattr(networks, "_train", wait_for_signals)
    network: dict[str, Any] = {"backbone": "tiny-cnn", "size": 16, "jobs": 2, "cells": ["an/end*", "wan/end*"]}
    work = partial(reproduce, "cole-table1", ["voc2012=VOCdevkit"], **network, **ONE_SEED)
    process = start_forked(work, Path("screen"))
    wait_until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    interrupt(process, signal.SIGINT)
    assert wait_forked(process) == 1
    assert [path.read_text() for path in tmp_path.glob("*.signals")] == ["1", "1"]
    said = Path("screen").read_text(encoding="utf-8")
    assert said.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("lost", [False, True])
def test_a_damaged_or_lost_head_is_trained_again(vectors: str, lost: bool, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["reproduce", "cole-table2", "--data", vectors, "--cells", "an;role", "--seeds", "1"]
    asked += ["--epochs", "1", "--grid", "preset", "--device", "cpu"]
    assert call(*asked) == 0
    heads = sorted(FOLDER.glob("linear/voc2012/heads/*"))
    weights = {name: values.clone() for name, values in read_tensors(heads[0])[0].items()}
    before = Reproduction.open(FOLDER).by_name
    heads[0].write_bytes(heads[0].read_bytes()[:100])
    if lost:
        heads[0].unlink()
    capsys.readouterr()
    assert call(*asked) == 0
    assert f"damaged   {heads[0]}: trained again" in capsys.readouterr().out
    again, after = read_tensors(heads[0])[0], Reproduction.open(FOLDER).by_name
    for name, values in weights.items():
        torch.testing.assert_close(again[name], values)
    assert verify_run(FOLDER).intact and before.keys() == after.keys()
    assert all(after[name].values == pytest.approx(cell.values, abs=0.01) for name, cell in before.items())
    assert call(*asked) == 0 and "done      2 cells" in capsys.readouterr().out


def test_measures_of_a_trace_and_of_groups_of_classes() -> None:
    losses = np.array([[3, 1, 2, 1], [1, 2, 1, 1]], dtype=np.float32)
    trace = {"loss": losses, "observed": np.array([1, -1, -1, -1]), "truth": np.array([1, 1, 0, 0])}
    assert [warmup_share(trace, kind) for kind in ("tp", "tn", "fn")] == [1.0, 1.0, 0.0] and not warmup_share({}, "tp")
    table = LabelTable.from_dense(np.array([[1, -1, 0, 1, 1, 1, -1]]), classes=list("abcdefg"))
    assert [len(group) for group in class_groups(table)] == [2, 2, 1, 1, 1]

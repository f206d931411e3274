"""What the machine may finish: bounds that hold at every look, sets, the random draw, and what apply writes."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from math import comb, exp, lgamma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cli.conftest import call
from tests.review.http_client import ids, run_server
from tests.review.samples import Row, decide, write_candidates
from tests.sample_photos import write_small_photos

from labelgap.data import load
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, open_review_folder
from labelgap.review.acceptance import AcceptedLabels, LikelyLabels, accept_class, measure_machine, most_wrong
from labelgap.review.queues import aim_feed, aims_context
from labelgap.training.config import RunConfig, write_config

PHOTOS = 64
PRECISION = 0.8


def reference(size: int, answers: int, wrong: int, precision: float, error: float) -> int:
    """The largest W with prior(W) / posterior(W) < 1 / error, by the definitions."""
    second = 5 / (1 - precision)

    def prior(total: int) -> float:
        log = lgamma(total + 1) + lgamma(size - total + second) - lgamma(size + 1 + second)
        return comb(size, total) * exp(log - lgamma(1) - lgamma(second) + lgamma(1 + second))

    def seen(total: int) -> float:
        return comb(total, wrong) * comb(size - total, answers - wrong) / comb(size, answers)

    evidence = sum(prior(total) * seen(total) for total in range(size + 1))
    return max(total for total in range(size + 1) if evidence < seen(total) / error)


def test_the_bound_is_that_of_the_prior_posterior_ratio() -> None:
    for answers, wrong in ((0, 0), (1, 1), (7, 0), (7, 3), (20, 1), (40, 4)):
        counts = np.array([answers]), np.array([wrong])
        expected = reference(40, answers, wrong, 0.9, 0.02)
        assert most_wrong(40, *counts, 0.9, 0.02).tolist() == [expected if expected < 16 else 40]


@pytest.mark.parametrize("size", [1, 12, 60])
def test_the_bound_holds_at_every_look_whatever_the_truth_is(size: int) -> None:
    """The probability that it ever fails, summed over all orders of the answers."""
    answers, wrong = np.tril_indices(size + 1)
    table = np.zeros((size + 1, size + 1), dtype=np.int64)
    table[answers, wrong] = most_wrong(size, answers, wrong, 0.9)
    for truth in range(size + 1):
        alive, failed = np.array([1.0]), 0.0  # by the number of wrong labels among the answers
        for n in range(1, size + 1):
            chance = np.clip((truth - np.arange(n)) / (size - n + 1), 0, 1)
            alive = np.append(alive * (1 - chance), 0) + np.insert(alive * chance, 0, 0)
            fails = table[n, : n + 1] < truth
            failed += alive[fails].sum()
            alive[fails] = 0
        assert failed <= 0.05


def finish(present: NDArray[np.bool_], random: np.random.Generator) -> tuple[int, int, bool]:
    """Answer what is asked; return the answers, the labels accepted at the end, and whether ever too many were."""
    decided, draw, failed = np.zeros(len(present), np.bool_), random.permutation(len(present)).astype(np.uint64), False
    while True:
        labels = LikelyLabels(np.arange(len(present)), draw, decided, decided & present)
        found = accept_class(AcceptedLabels("cat", len(present)), labels, 0.9)
        failed |= bool(len(found.accepted)) and present[found.accepted].mean() < 0.9
        if not len(found.asked):
            return int(decided.sum()), len(found.accepted), failed
        decided[found.asked[:30]] = True


def test_a_good_machine_is_accepted_and_a_bad_one_is_not() -> None:
    """Of 300 labels; the precision of the second falls with the score, from 1 to 0.85."""
    random, machines = np.random.default_rng(0), (np.full(300, 0.99), np.linspace(1, 0.85, 300), np.full(300, 0.88))
    results = [np.array([finish(random.random(300) < right, random) for _ in range(70)]) for right in machines]
    assert all(made[:, 2].mean() <= 0.05 for made in results), "the guarantee"
    good, mediocre, bad = (made[:, :2].mean(axis=0) for made in results)
    assert good[1] > 200 > mediocre[1] > bad[1] and bad[1] < 10 and good[0] < 80


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with candidates: every photo of train is probably a cat, a few are probably a dog, one of val is a cat."""
    monkeypatch.chdir(tmp_path)
    write_small_photos(Path("photos"), PHOTOS)
    names = [f"{number:02d}.jpg" for number in range(PHOTOS)]
    splits = ["val" if number == 0 else "train" for number in range(PHOTOS)]
    rows = [f"{name},{split},,,1" for name, split in zip(names, splits, strict=True)]
    Path("tags.csv").write_text("image,split,cat,dog,owl\n" + "\n".join(rows) + "\n")
    data = load("tags.csv", images="photos", duplicates="off")
    recipe = {"name": "csv", "path": "tags.csv", "options": {"images": "photos", "duplicates": "off"}, "steps": []}
    about = {"method": "an", "why": None, "backbone": "small-cnn", "protocol": "linear", "select": "last", "epochs": 1}
    numbers = {"lr": 0.1, "backbone_lr": 0.1, "batch_size": 4, "flip": False, "seed": 0, "trace": "off"}
    folder = tmp_path / "run"
    folder.mkdir()
    write_config(folder, RunConfig.checked(data=recipe, classes=data.classes, **about, **numbers))
    (folder / "metrics.jsonl").write_text("")
    made: list[Row] = []
    for number, (name, split) in enumerate(zip(names, splits, strict=True)):
        made.append((name, split, "cat", 0.99 - number / 1000, "missing", UNKNOWN, number + 1, number + 1))
    made += [(names[n], "train", "dog", 0.6, "missing", UNKNOWN, PHOTOS + n, n) for n in range(1, 4)]
    made += [(names[n], "train", "dog", 0.4, "missing", UNKNOWN, PHOTOS + n, n) for n in range(4, 60)]
    write_candidates(folder / "candidates.parquet", made, data)
    return folder


def opened(run: Path) -> Review:
    return Review(open_review_folder(run), precision=PRECISION)


def test_answers_count_where_the_random_draw_has_come_to_them_whatever_they_were_asked_for(run: Path) -> None:
    with closing(opened(run)) as review:
        review.store.id = "1"  # the draw
        cat, *others = measure_machine(review)
        assert (cat.class_name, cat.likely, cat.answers) == ("cat", PHOTOS - 1, 0) and cat.gain
        assert {(each.class_name, each.likely, each.size) for each in others} == {("dog", 3, 0), ("owl", 0, 0)}
        order = cat.asked.tolist()
        decide(review, order[1:], PRESENT, "missing")
        assert measure_machine(review)[0].answers == 0, "the first of the draw is open"
        decide(review, order[:1], PRESENT, "missing")
        cat = measure_machine(review)[0]
        assert cat.answers >= len(order) and cat.wrong == 0 and len(cat.accepted) == cat.size - len(order)
        assert {review.candidates.key(each).split for each in cat.accepted.tolist()} == {"train"}
        decide(review, order[:4], UNKNOWN, "missing")
        assert not len(measure_machine(review)[0].accepted), "can't tell is not right"


def test_what_the_page_asks_leads_to_labels_that_apply_writes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apply = ("apply", "run", "--accept-machine", "--precision", str(PRECISION))

    def applied(out: str) -> Any:
        assert call(*apply, "--out", out, "--json") == 0
        return json.loads(capsys.readouterr().out)

    assert call(*apply, "--out", "none.csv") == 2
    assert "labelgap review run --precision 0.8" in capsys.readouterr().err
    with closing(opened(run)) as review:
        decide(review, [review.candidates.listed(1)[0]], ABSENT)
        told = applied("first.csv")
        assert told["changed"] == {"review": 1} and told["machine"][0]["asked"] > 10
        assert not any(each["accepted"] for each in told["machine"])
        with run_server(review) as client:
            shown = ids(client.request("/ask/machine").text)
            assert shown == [review.candidates.id(each) for each in aim_feed(review, "machine").numbers.tolist()]
            assert ids(client.request("/ask/machine?class=1").text) == []
        decide(review, aim_feed(review, "machine").numbers, PRESENT)
        answers = int(review.current.decided.sum()) - 1
        assert aims_context(review, "machine")[-1]["chosen"]
    told = applied("better.csv")
    (cat,) = (each for each in told["machine"] if each["class_name"] == "cat")
    assert cat["accepted"] == told["changed"]["machine"] == cat["size"] - answers and cat["bound"] >= PRECISION
    labels = load("better.csv", images="photos", duplicates="off").train.labels
    assert labels.counts().present.tolist() == [cat["size"], 0, PHOTOS - 1]
    with Path("better.provenance.csv").open(newline="") as file:
        sources = [row["source"] for row in csv.DictReader(file)]
    assert sources.count("machine") == cat["accepted"] and sources.count("review") == answers + 1

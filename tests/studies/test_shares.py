from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from tests.studies.compare.small_features import features

from labelgap.reporting import label_budget, write_report
from labelgap.reporting.pages.shares import label_budget_finding
from labelgap.studies import shares as share_study
from labelgap.studies.compare import compare
from labelgap.studies.compare import heads as compare_heads
from labelgap.studies.shares import ShareComparison, compare_shares
from labelgap.verification import verify_run

QUICK: dict[str, Any] = {"seeds": 2, "epochs": 2, "device": "cpu", "quiet": True, "learning_rates": [1e-2]}
QUICK |= {"grid": "small", "baseline": False}
ONE_LABEL = {"positives": 1, "negatives": 0}


def run(out: Path, shares: list[float], names: list[str], **settings: Any) -> ShareComparison:
    return compare_shares(features(observed=False), names, shares=shares, out=out, **{**QUICK, **settings})


def test_every_point_counts_its_labels_and_all_images_are_a_usual_comparison(tmp_path: Path) -> None:
    found = run(tmp_path / "s", [1, 0.2, 0.5], ["an", "bce"], observe=ONE_LABEL)
    budget = label_budget(found)
    assert budget["an"].share.tolist() == [0.2, 0.5, 1] and budget["an"].images.tolist() == [18, 45, 90]
    assert budget["an"].known_labels.tolist() == [18, 45, 90] and not budget["an"].extra_labels
    assert budget["bce"].known_labels.tolist() == [72, 180, 360] and budget["bce"].extra_labels, "four classes"
    for seed in (0, 1):
        usual = compare(
            features(observed=False),
            ["an", "bce"],
            out=tmp_path / str(seed),
            **{**QUICK, "seeds": 1, "first_seed": seed, "observe": ONE_LABEL, "label_seed": 1200 + seed},
        )
        values = {row.method: row.mean for row in usual.methods}
        assert values == {name: budget[name].value[-1, seed] for name in budget}
    assert len(set(budget["an"].value[-1])) == 2, "the seeds differ"
    assert ShareComparison.open(found.path) == found and verify_run(found.path).intact
    with (found.path / "shares.csv").open(encoding="utf-8") as file:
        assert [row["images"] for row in csv.DictReader(file)] == ["18"] * 4 + ["45"] * 4 + ["90"] * 4


def test_smaller_shares_are_part_of_larger_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[tuple[int, int], dict[bytes, list[int]]] = {}

    def recorded(data: Any, *given: Any, **settings: Any) -> Any:
        assert data.recipe["name"] == "features", "methods have the options of their papers by it, with any share"
        rows = zip(data.train.images.vectors, data.train.labels.to_dense().tolist(), strict=True)
        seen[settings["first_seed"], len(data.train)] = {vector.tobytes(): labels for vector, labels in rows}
        return compare(data, *given, **settings)

    monkeypatch.setattr(share_study, "compare", recorded)
    run(tmp_path / "s", [0.1, 0.4, 1], ["an"], observe=ONE_LABEL)
    for seed in (0, 1):
        few, more, every = (seen[seed, count] for count in (9, 36, 90))
        assert few.items() <= more.items() <= every.items()
    assert seen[0, 9].keys() != seen[1, 9].keys(), "every seed draws its own images"


def test_nothing_is_trained_twice_and_a_stopped_one_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    real = vars(compare_heads)["train_heads"]

    def counted(values: Any, plans: Any, **settings: Any) -> Any:
        if len(trained) == 3 and stop:
            raise KeyboardInterrupt
        trained.append(len(values))
        return real(values, plans, **settings)

    monkeypatch.setattr(compare_heads, "train_heads", counted)
    stop = True
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "s", [0.5, 1], ["an"])
    stop = False
    first = run(tmp_path / "s", [0.5, 1], ["an"])
    assert trained == [45, 45, 90, 90]
    more = run(tmp_path / "s", [0.2, 0.5, 1], ["an"])
    assert trained == [45, 45, 90, 90, 18, 18]
    assert [point for point in more.points if point.share > 0.2] == [*first.points]


def test_without_val_shares_are_cross_validated(tmp_path: Path) -> None:
    data = features(splits=("test",))
    found = compare_shares(data, ["an"], shares=[0.5], out=tmp_path / "s", **{**QUICK, "seeds": 1})
    assert found.metric.name == "test mAP" and found.points[0].images == 45 and found.points[0].value is not None


def test_the_page_says_what_few_labels_are_worth(tmp_path: Path) -> None:
    found = run(tmp_path / "s", [0.5, 1], ["an", "bce"], observe=ONE_LABEL)
    page = write_report(found.path).read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "50 %" in page and "45" in page
    budget = label_budget(found)
    budget["an"].value[:], budget["bce"].value[:] = [[0.5, 0.5], [0.7, 0.72]], [[0.71, 0.71], [0.9, 0.9]]
    assert re.findall(r"[\d.]*\d", label_budget_finding(budget)) == ["100", "71.0", "50", "2.0"]
    budget["bce"].value[:] = 0.1
    assert "any share" in label_budget_finding(budget) and label_budget_finding({"an": budget["an"]}) == ""

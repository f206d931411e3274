from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.open_clip_models import TINY, open_clip_or_skip, save_weights

import labelgap as lg
from labelgap.audit.scorers import AuditContext, HeadScorer, zero_shot_scorers
from labelgap.models.open_clip import zero_shot_classifier
from labelgap.training.progress import Reporter


@pytest.fixture
def tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of red and green photos, of which some have no known label, in the current folder."""
    open_clip_or_skip()
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save_weights(tmp_path / "tiny.pt")
    Path("photos").mkdir()
    rows, random = ["image,split,red,green"], np.random.default_rng(0)
    for number in range(40):
        pixels = random.integers(0, 60, (24, 24, 3), dtype=np.uint8)
        pixels[..., number % 2] += 150
        Image.fromarray(pixels).save(f"photos/{number}.png")
        known = "," if number % 3 == 0 else "1," if number % 2 == 0 else ",1"
        rows.append(f"{number}.png,train,{known}" if number < 30 else f"{number}.png,val,{1 - number % 2},{number % 2}")
    Path("tags.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return Path("tags.csv")


@pytest.mark.usefixtures("undrawn")
def test_images_train_a_run_and_class_names_audit_it(tags: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--backbone", TINY, "--weights", "tiny.pt", "--protocol", "linear", "--epochs", "3", "--device", "cpu"]
    assert call("train", str(tags), "--images", "photos", *settings, "--out", "run") == 0
    assert call("audit", "run", "--device", "cpu", "--folds", "2", "--out", "plain.parquet") == 0
    capsys.readouterr()
    zero_shot = ["--zero-shot", TINY, "--zero-shot-weights", "tiny.pt", "--folds", "2", "--device", "cpu"]
    assert call("audit", "run", *zero_shot, "--json") == 0
    told = json.loads(capsys.readouterr().out)["zero_shot"]
    assert told["model"] == TINY and told["slope"] >= 0
    assert lg.open_run("run").config.backbone == TINY
    assert call("audit", "run", *zero_shot) == 0
    assert f"zero-shot    {TINY} " in capsys.readouterr().out
    assert call("verify", "run") == 0
    assert call("audit", "run", "--zero-shot", "open_clip:ViT-B-32") == 2
    assert "--zero-shot-weights FILE" in capsys.readouterr().err


def test_the_scorer_gives_standardized_scaled_cosines(tags: Path) -> None:
    data = lg.load("csv", tags, images="photos")
    context = AuditContext(data, ("train", "val"), 5, 0, "cpu", 0, Reporter(quiet=True), TINY, "tiny.pt")
    (scorer,) = zero_shot_scorers(context)
    assert isinstance(scorer, HeadScorer)
    found = np.concatenate([scorer.logits(split, slice(None)) for split in ("train", "val")])
    vectors = np.concatenate([scorer.features["train"], scorer.features["val"]])
    logits = vectors @ zero_shot_classifier(TINY, data.classes, weights="tiny.pt").weight.T
    np.testing.assert_allclose(found, (logits - logits.mean(axis=0)) / logits.std(axis=0), atol=1e-3)
    assert found.shape == (40, 2)

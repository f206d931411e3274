"""A run in transformers, and on a hub: a server of this machine that answers as the hub does."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import call
from tests.serving import serve
from tests.timm_models import timm_or_skip
from tests.training.untrained_run import CLASSES, make_run

from labelgap.core.errors import InputError
from labelgap.core.manifest import write_manifest
from labelgap.inference.exports import huggingface
from labelgap.inference.exports.huggingface import export_huggingface
from labelgap.models import Classifier, create_backbone
from labelgap.training import Run
from labelgap.training.hub import RUN_FILES

timm = timm_or_skip()


def photo(height: int, width: int) -> Image.Image:
    small = np.random.default_rng(height).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photos that are not square: one that is turned by its EXIF, a gray one, one larger than the network's input."""
    folder, exif = tmp_path_factory.mktemp("photos"), Image.Exif()
    exif[0x0112] = 6
    photo(300, 200).save(folder / "a.jpg", exif=exif)
    photo(90, 400).convert("L").save(folder / "b.png")
    photo(1500, 700).save(folder / "c.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "a", backbone="timm:test_resnet", weights="none", size=96)


def pipeline_scores(folder: Path, photos: list[Path]) -> Any:
    transformers = pytest.importorskip("transformers")
    assert timm.list_models(), "torchvision is imported first"
    classify = transformers.pipeline("image-classification", str(folder), top_k=None)
    found = [{each["label"]: each["score"] for each in classify(str(path))} for path in photos]
    return np.array([[scores[name] for name in CLASSES] for scores in found]), classify


@pytest.mark.parametrize(
    "settings",
    [
        {"backbone": "timm:test_resnet", "weights": "none", "size": 96},
        {"backbone": "timm:test_resnet", "weights": "none", "transform": "crop"},
        {"backbone": "timm:test_vit", "weights": "none", "size": 64},
        {"backbone": "efficientnet-lite0"},
    ],
    ids=["resize", "crop", "vit", "lite"],
)
def test_a_pipeline_gives_the_probabilities_of_the_run(
    settings: dict[str, Any], photos: list[Path], tmp_path: Path
) -> None:
    made = make_run(tmp_path / "run", **settings)
    exported = export_huggingface(made, tmp_path / "hub")
    assert exported.reason is None
    scores, classify = pipeline_scores(exported.path, photos)
    np.testing.assert_allclose(scores, made.predict(photos, device="cpu"), atol=1e-4)
    assert np.ptp(scores) > 0.01
    config = classify.model.config
    assert config.problem_type == "multi_label_classification"
    assert [config.id2label[number] for number in range(3)] == list(CLASSES)
    assert config.thresholds == dict(zip(CLASSES, made.thresholds.values, strict=True))


@pytest.mark.parametrize(
    ("backbone", "options", "reason"),
    [
        ("efficientnet-lite0", {"average_flips": True}, "several views"),
        ("efficientnet-lite0", {"average_sizes": (224, 288)}, "several views"),
        ("timm:test_resnet", {"head": "attention"}, "AttentionHead"),
        ("timm:deit_tiny_distilled_patch16_224", {}, "no linear classifier"),
        ("resnet50-v1", {}, "does not know"),
    ],
)
def test_what_transformers_has_no_class_for_is_told(backbone: str, options: dict[str, Any], reason: str) -> None:
    found = huggingface._as_timm(Classifier(create_backbone(backbone, pretrained=False, size=64), 3, **options))
    assert isinstance(found, str) and reason in found


def test_such_a_run_is_an_onnx_file_that_the_card_runs(photos: list[Path], tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", head="attention")
    exported = export_huggingface(made, tmp_path / "hub", card="---\nlibrary_name: labelgap\n---\n\n# a\n\n## Use\n")
    card = (exported.path / "README.md").read_text(encoding="utf-8")
    assert exported.reason is not None and exported.reason in card
    assert "library_name: onnx" in card and card.index("onnxruntime") < card.index("## Use")
    program = card.partition("```python\n")[2].partition("```")[0].replace("photo.jpg", str(photos[1]))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=exported.path, capture_output=True, text=True, check=True
    )
    scores = [float(line.split()[1]) for line in done.stdout.splitlines()]
    np.testing.assert_allclose(scores, made.predict(photos[1], device="cpu")[0], atol=2e-3)


def test_an_export_replaces_only_its_own_files(run: Run, tmp_path: Path) -> None:
    folder, before = tmp_path / "hub", (run.path / "config.json").read_text()
    first = export_huggingface(run, folder)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="--force"):
        export_huggingface(run, folder)
    assert call("export", str(run.path), "--huggingface", str(folder)) == 2
    (folder / "model.onnx").write_bytes(b"of an earlier export")
    assert export_huggingface(run, folder, force=True) == first
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "labelgap", *first.files} - {"labelgap/"}
    assert call("export", str(run.path)) == 2
    assert call("export", str(run.path), "--huggingface", str(run.path), "--force") == 2
    assert (run.path / "config.json").read_text() == before


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that uploads small files and downloads any; ``files`` are those of one commit."""

    files: dict[str, bytes]
    asked: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        repository = f"http://{self.headers['Host']}/me/pets"
        if self.path.endswith("/preupload/main"):
            names = [each["path"] for each in json.loads(body)["files"]]
            self.answer({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"success": True, "commitOid": self.commit, "commitUrl": f"{repository}/commit/{self.commit}"})
        else:
            self.answer({"url": repository, "errors": [], "warnings": []})

    def do_GET(self) -> None:
        self.asked.append(self.path)
        content = self.files.get(self.path.partition("/resolve/")[2].partition("/")[2])
        self.answer({"error": "Entry not found"} if content is None else content, 404 if content is None else 200)

    do_HEAD = do_GET  # noqa: N815

    @property
    def commit(self) -> str:
        return f"{zlib.crc32(b''.join(self.files[name] for name in sorted(self.files))):040x}"

    def answer(self, value: Any, code: int = 200) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{zlib.crc32(content):040x}"')
        self.send_header("X-Repo-Commit", self.commit)
        if code != 200:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    pytest.importorskip("huggingface_hub")
    own = type("OwnHub", (Hub,), {"files": {}, "asked": []})
    with serve(own) as address:
        values = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hf_x"}
        for name, value in {**values, "LABELGAP_CACHE": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        yield own


def labelgap(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: the library reads ``HF_ENDPOINT`` when it is imported."""
    return subprocess.run([sys.executable, "-m", "labelgap", *map(str, words)], capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_goes_to_the_hub_and_comes_back(
    run: Run, photos: list[Path], hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = labelgap("export", run.path, "--push-to-hub", "me/pets")
    assert done.returncode == 0 and "hf://me/pets" in done.stdout, done.stderr
    assert not [name for name, content in hub.files.items() if str(run.path.parent).encode() in content]
    for name, content in hub.files.items():
        (tmp_path / "got" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "got" / name).write_bytes(content)
    expected = run.predict(photos, device="cpu")
    np.testing.assert_allclose(pipeline_scores(tmp_path / "got", photos)[0], expected, atol=1e-4)
    program = "import sys, labelgap as lg; run = lg.open_run('hf://me/pets@main'); print(run.thresholds.values)"
    program += "; print(*run.predict(sys.argv[1:], device='cpu').ravel())"
    done = subprocess.run([sys.executable, "-c", program, *map(str, photos)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scores = np.array(done.stdout.splitlines()[-1].split(), dtype=float)
    np.testing.assert_allclose(scores, expected.ravel(), atol=1e-6)
    assert hub.asked and not [path for path in hub.asked if "/resolve/" in path and "/labelgap/" not in path]
    hub.asked.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    done = labelgap("predict", "hf://me/pets", photos[0].parent, "--out", tmp_path / "x.csv")
    assert done.returncode == 0 and (tmp_path / "x.csv").exists() and not hub.asked, done.stderr


def test_a_run_of_the_hub_executes_nothing_that_it_names(run: Run, tmp_path: Path, hub: type[Hub]) -> None:
    folder = export_huggingface(run, tmp_path / "out").path / "labelgap"
    photo(20, 30).save(tmp_path / "x.png")
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"backbone": "evil_module:Network", "signature": "0" * 64}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "evil_module.py").write_text("raise SystemExit('executed')")
    write_manifest(folder, RUN_FILES)
    hub.files.update({f"labelgap/{path.name}": path.read_bytes() for path in folder.iterdir()})
    done = labelgap("predict", "hf://me/pets", tmp_path / "x.png", "--out", tmp_path / "x.csv")
    assert done.returncode == 2 and "names the class evil_module:Network" in done.stderr
    assert not [*(tmp_path / "cache").rglob("*.py")]
    del hub.files["labelgap/best.safetensors"]
    done = labelgap("predict", "hf://me/pets", tmp_path / "x.png", "--out", tmp_path / "x.csv")
    assert done.returncode == 2 and "hf://me/pets cannot be opened" in done.stderr and "Traceback" not in done.stderr

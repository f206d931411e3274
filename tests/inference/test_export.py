from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.special import expit
from tests.data.decoding.postscript import POSTSCRIPT, GhostscriptTrace
from tests.training.untrained_run import CALIBRATION, CLASSES, MARKS, make_run

from labelgap.core.errors import InputError, RunError
from labelgap.inference import export as export_module
from labelgap.inference.columns import LABELS, labels_from_scores
from labelgap.inference.export import ExportedFiles, export_onnx
from labelgap.training import Run

NETWORK: dict[str, Any] = {"head": "boostlu", "average_flips": True}
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = sys.modules["labelgap"] = None
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs") / "a", calibration=CALIBRATION, **NETWORK)


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> ExportedFiles:
    return export_onnx(run, tmp_path_factory.mktemp("exported") / "new" / "folder" / "model.onnx")


def scores_of(exported: ExportedFiles, values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(str(exported.model), providers=["CPUExecutionProvider"])
    logits, scores = session.run(["logits", "scores"], {session.get_inputs()[0].name: values})
    return logits, scores


def check_pixels(run: Run, exported: ExportedFiles) -> None:
    spec = run.model.backbone.input_spec
    for count in (1, 2, 5):
        shape = (count, spec.channels, spec.size, spec.size)
        pixels = np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)
        with torch.no_grad():
            expected = run.model(run.model.normalize(torch.from_numpy(pixels))).numpy()
        logits, scores = scores_of(exported, pixels)
        np.testing.assert_allclose(logits, expected, atol=1e-4)
        np.testing.assert_allclose(scores, expit(expected), atol=1e-5)


def test_the_small_network_gives_the_same_scores_for_any_batch(run: Run, exported: ExportedFiles) -> None:
    check_pixels(run, exported)
    assert run.model.average_flips
    assert exported.difference is not None and exported.difference < 1e-5


def test_the_default_network_gives_the_same_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", backbone="efficientnet-lite0")
    check_pixels(run, export_onnx(run, tmp_path / "model.onnx"))


def test_a_run_on_features_exports_features(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", backbone="features", width=5)
    exported = export_onnx(run, tmp_path / "model.onnx")
    vectors = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    np.testing.assert_allclose(scores_of(exported, vectors)[1], run.predict(vectors, device="cpu"), atol=1e-6)
    np.save(tmp_path / "x.npy", vectors)
    rows = _rows([sys.executable, str(exported.script), str(tmp_path / "x.npy")])
    found = [float(row["score"]) for row in rows]
    np.testing.assert_allclose(found, run.predict(vectors, device="cpu").ravel(), atol=1e-5)


def test_the_metadata_describe_the_output_and_not_the_machine(run: Run, exported: ExportedFiles) -> None:
    model = onnx.load(exported.model)
    metadata = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert metadata["classes"] == list(CLASSES) and metadata["marks"] == list(MARKS)
    assert metadata["thresholds"] == run.thresholds.values.tolist()
    preprocess = json.loads(exported.preprocess.read_text(encoding="utf-8"))
    assert metadata["preprocess"].items() <= preprocess.items()
    assert (preprocess["size"], preprocess["channels"], preprocess["interpolation"]) == (64, 1, "bilinear")
    expected = {"name": "cat", "threshold": 0.4, "mark": "measured", "scale": 2.0, "offset": -0.5}
    assert preprocess["classes"][0] == expected
    assert preprocess["classes"][1]["scale"] == 2.0 and preprocess["classes"][1]["offset"] is None
    graph_input = model.graph.input[0]
    assert graph_input.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert graph_input.type.tensor_type.shape.dim[0].dim_param
    content = exported.model.read_bytes()
    assert b"labelgap/" not in content and str(Path(export_module.__file__).parent).encode() not in content
    assert len(exported.script.read_text(encoding="utf-8").splitlines()) <= 145


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A large photo with an EXIF rotation, a transparent image, a tall gray one, and one with a palette."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)

    def smooth(height: int, width: int) -> Image.Image:
        small = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
        return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)

    exif = Image.Exif()
    exif[0x0112] = 6
    smooth(600, 800).save(folder / "a.jpg", exif=exif, quality=95)
    clear = smooth(90, 120).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize((120, 90)))
    clear.save(folder / "b.png")
    smooth(300, 40).convert("L").save(folder / "c.png")
    smooth(64, 64).convert("P").save(folder / "d.gif")
    return sorted(folder.iterdir())


def _rows(command: list[str]) -> list[dict[str, str]]:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines()))


def check_script(run: Run, exported: ExportedFiles, photos: list[Path]) -> None:
    rows = _rows([sys.executable, "-I", "-c", WITHOUT_TORCH, str(exported.script), *map(str, photos)])
    assert [row["image"] for row in rows] == [str(photo) for photo in photos for _ in CLASSES]
    expected = run.predict(photos, device="cpu")
    scores = np.array([float(row["score"]) for row in rows]).reshape(expected.shape)
    np.testing.assert_allclose(scores, expected, atol=2e-3)  # pixels differ by a level
    logits = np.log(scores / (1 - scores))
    labels = labels_from_scores(scores.astype(np.float32), run.thresholds, run.calibration)
    assert [row["label"] for row in rows] == [LABELS[code] for code in labels.ravel()]
    assert [row["mark"] for row in rows[:3]] == list(MARKS)
    assert {row["probability"] for row in rows if row["class"] == "dog"} == {""}
    probability = [float(row["probability"]) for row in rows if row["class"] == "owl"]
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(0.5 - 2 * logits[:, 2])), atol=1e-4)


def test_the_script_takes_folders_and_goes_on_after_a_bad_image(exported: ExportedFiles, tmp_path: Path) -> None:
    for name in ("b.jpg", "in/c.PNG", "in/.hidden.png", ".thumbnails/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 20)).save(tmp_path / name)
    (tmp_path / "a.jpg").write_bytes(b"no image")
    (tmp_path / "notes.txt").write_text("no image")
    command = [sys.executable, "-I", "-c", WITHOUT_TORCH, str(exported.script)]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    images = [row["image"] for row in csv.DictReader(done.stdout.splitlines())]
    assert list(dict.fromkeys(images)) == [str(tmp_path / "b.jpg"), str(tmp_path / "in" / "c.PNG")]
    assert done.returncode == 1 and done.stderr.startswith(f"{tmp_path / 'a.jpg'} cannot be read")
    assert "notes.txt" not in done.stderr
    piped = subprocess.Popen([*command, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert piped.stdout is not None and piped.stderr is not None
    piped.stdout.close()
    assert "export again" not in piped.stderr.read() and piped.wait() == 141
    piped.stderr.close()
    (tmp_path / "empty").mkdir()
    done = subprocess.run([*command, str(tmp_path / "empty")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"there is no image in {tmp_path / 'empty'}" in done.stderr


def test_the_script_opens_photos_only(exported: ExportedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghostscript = GhostscriptTrace(tmp_path, monkeypatch)
    (tmp_path / "photo.jpg").write_bytes(POSTSCRIPT)
    done = subprocess.run([sys.executable, str(exported.script), str(tmp_path / "photo.jpg")], capture_output=True)
    assert done.returncode == 1 and b"photo.jpg cannot be read" in done.stderr and b"Traceback" not in done.stderr
    assert not ghostscript.started


def test_the_script_is_like_the_run(run: Run, exported: ExportedFiles, photos: list[Path], tmp_path: Path) -> None:
    check_script(run, exported, photos)
    run = make_run(tmp_path / "run", calibration=CALIBRATION, transform="crop", **NETWORK)  # else the same network
    preprocess = export_module.describe_preprocess(run, export_module.ExportGraph(run.model))
    assert (preprocess["size"], preprocess["resize"]) == (64, 73)
    copied = ExportedFiles(tmp_path / "model.onnx", tmp_path / "preprocess.json", tmp_path / "predict_onnx.py", None)
    shutil.copy(exported.model, copied.model)
    shutil.copy(exported.script, copied.script)
    copied.preprocess.write_text(json.dumps({"model": "model.onnx", **preprocess}))
    check_script(run, copied, photos)


def test_damaged_files_and_missing_packages_are_one_message(exported: ExportedFiles, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "x.png")
    for file in (exported.model, exported.preprocess, exported.script):
        shutil.copy(file, tmp_path)
    spec = exported.preprocess.read_bytes()
    without = WITHOUT_TORCH.replace('"labelgap"]', '"labelgap"] = sys.modules["onnxruntime"]')
    for content, remedy in ((spec[: len(spec) // 2], "export again"), (b"{}", "export again"), (spec, "pip install")):
        (tmp_path / exported.preprocess.name).write_bytes(content)
        program = ["-I", "-c", without] if content == spec else []
        command = [sys.executable, *program, str(tmp_path / exported.script.name), str(tmp_path / "x.png")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and remedy in done.stderr and "Traceback" not in done.stderr


def test_missing_packages_are_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name.startswith("onnx") else True)
    with pytest.raises(InputError, match=r"labelgap\[onnx\]"):
        export_onnx(run, tmp_path / "new" / "model.onnx")
    assert export_module._verify(None, b"") is None  # type: ignore[arg-type]


def test_other_scores_are_rejected(
    run: Run, exported: ExportedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = exported.model.read_bytes()
    monkeypatch.setattr(export_module, "_convert", lambda *arguments: content)
    other = make_run(tmp_path / "other", marks=MARKS)
    with torch.no_grad():
        other.model.head.bias.add_(0.01)
    with pytest.raises(RunError, match="PyTorch"):
        export_onnx(other, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists() and not (tmp_path / "preprocess.json").exists()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Samples of 16 and 32 bits and floats, none of which reach white; transparency, a turned image, and one bit."""
    folder, ramp = tmp_path_factory.mktemp("odd"), np.linspace(0, 0.7, 90 * 120).reshape(90, 120)
    levels = (255 * ramp).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 5
    Image.fromarray((ramp * 65535).astype(np.uint16)).save(folder / "16 bits.png", exif=exif)
    Image.fromarray((ramp * 3000).astype(np.uint16)).save(folder / "16 dark bits.tif")
    Image.fromarray((ramp * 2e9).astype(np.int32)).save(folder / "32 bits.tif")
    Image.fromarray(ramp.astype(np.float32)).save(folder / "float.tif")
    Image.fromarray(np.where(ramp > 0.6, np.nan, ramp * 200).astype(np.float32)).save(folder / "nan.tif")
    Image.merge("LA", [Image.fromarray(each) for each in (levels, levels[::-1])]).save(folder / "clear.png")
    Image.fromarray(levels).convert("P").save(folder / "palette.png", transparency=3)
    Image.fromarray(levels).convert("1").save(folder / "one bit.png")
    Image.fromarray(levels).convert("CMYK").save(folder / "cmyk.tif")
    return sorted(folder.iterdir())


def test_the_script_reads_odd_images_as_the_run_does(run: Run, exported: ExportedFiles, odd: list[Path]) -> None:
    check_script(run, exported, odd)


def test_the_script_prints_no_control_characters_of_names(exported: ExportedFiles, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "good\x1b[31m\u202e.png")
    (tmp_path / "bad\x9b.png").write_bytes(b"no image")
    command = [sys.executable, str(exported.script), str(tmp_path), "gone\x1b.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not {"\x1b", "\u202e", "\x9b"} & {*done.stdout, *done.stderr}
    images = {row["image"] for row in csv.DictReader(done.stdout.splitlines())}
    assert images == {str(tmp_path / r"good\x1b[31m\u202e.png")}
    assert [line.split(" cannot")[0] for line in done.stderr.splitlines()] == [
        str(tmp_path / r"bad\x9b.png"),
        r"gone\x1b.png",
    ]
    done = subprocess.run([*command[:2], str(tmp_path / "\x1b")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "\x1b" not in done.stderr

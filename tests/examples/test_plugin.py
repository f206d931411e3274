from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import call

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"
COMMANDS = """
import sys
from labelgap.cli.main import main
from labelgap.reporting import page
page.both_screens = lambda *given: ("", "")  # the reports need no drawings
for line in sys.stdin.read().splitlines():
    print("$", line, flush=True)
    sys.argv = ["labelgap", *line.split()]
    try:
        main()
    except SystemExit as exit:
        if exit.code:
            raise
"""


def run(commands: list[str], folder: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    """Run commands in one process, with the packages of a folder installed."""
    paths = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    source = str(Path(__file__).resolve().parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, source])}
    return subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input="\n".join(commands),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, folder / "source")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    install += ["--disable-pip-version-check", "--target", str(folder / "packages"), str(folder / "source")]
    done = subprocess.run(install, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder / "packages"


def test_the_commands_take_what_a_plug_in_brings(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = "train stripes --method weighted-negative --option weight=0.2 --backbone stripe-net --device cpu --out a"
    commands = ["methods", "datasets", "backbones", f"{train} --epochs 2 --no-images"]
    commands += [f"{train} --epochs 2 --no-images --resume", "evaluate a stripes --device cpu"]
    commands += ["audit a --folds 2 --device cpu", "export a --onnx model.onnx"]
    done = run(commands, tmp_path, installed)
    assert done.returncode == 0, done.stderr
    listed = done.stdout.split("$ train")[0]
    assert all(name in listed for name in ("weighted-negative", "stripes", "stripe-net"))
    assert (tmp_path / "a" / "candidates.parquet").exists() and (tmp_path / "model.onnx").exists()
    assert call("export", str(tmp_path / "a"), "--force", "--onnx", str(tmp_path / "b.onnx")) == 2, (
        "without the plug-in"
    )
    assert "stripe-net" in capsys.readouterr().err

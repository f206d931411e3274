"""``benchmarks/loss_kernels`` without a GPU: kernels are checked in Triton's interpreter, and compiled for a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
FAMILIES = "em,focal,hill,splc,asl,gr,ll-r,csl"

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run(*command: str, interpret: bool, cache: Path) -> subprocess.CompletedProcess[str]:
    places = {"PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(PROJECT)]), "TRITON_CACHE_DIR": str(cache)}
    environment = {**os.environ, **places, "TRITON_INTERPRET": str(int(interpret))}
    return subprocess.run([sys.executable, *command], cwd=PROJECT, env=environment, capture_output=True, text=True)


@needs_triton
def test_every_family_agrees_with_its_losses(tmp_path: Path) -> None:
    found = run("-m", "benchmarks.loss_kernels", "--methods", FAMILIES, interpret=True, cache=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert [line.split()[0] for line in found.stdout.splitlines() if "e-0" in line] == FAMILIES.split(",")


@needs_triton
def test_a_kernel_of_another_loss_is_found_out(tmp_path: Path) -> None:
    script = """
from benchmarks.loss_kernels import checks
as_kernel, other = checks.as_kernel, checks.make_loss("ll-r", checks.SHAPE[1], "cpu", 5, delta_rel=2.9)
checks.as_kernel = lambda loss_fn: as_kernel(other)
for method, errors in checks.check(["an", "ll-r"], "cpu"):
    assert errors.slope > 0.1 and not errors.accepted, (method, errors)
"""
    found = run("-c", script, interpret=True, cache=tmp_path)
    assert found.returncode == 0, found.stderr


@needs_triton
def test_kernels_compile_for_an_nvidia_gpu_and_spill_no_registers(tmp_path: Path) -> None:
    command = ["-m", "benchmarks.loss_kernels", "--methods", "gr,ll-r", "--compile", "90"]
    found = run(*command, interpret=False, cache=tmp_path)
    assert found.returncode == 0, found.stderr
    assert set(re.findall(r"(\d+) bytes spilled", found.stdout)) == {"0"}
    for name in ("cost_and_slope", "count_keys", "narrow", "add_up", "rescale"):
        assert name in found.stdout


@pytest.mark.skipif(find_spec("triton") is not None, reason="Triton is installed")
def test_without_triton_the_command_says_what_is_missing(tmp_path: Path) -> None:
    found = run("-m", "benchmarks.loss_kernels", interpret=False, cache=tmp_path)
    assert (found.returncode, "pip install triton" in found.stderr) == (2, True)

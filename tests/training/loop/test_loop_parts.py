"""What a training loop is made of: inputs, optimizers with their schedules and averages, and the trace of labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.plain_config import PLAIN
from torch import nn

import labelgap.training.loop.inputs as inputs_module
from labelgap.core.errors import InputError, ProblemsError, RunError
from labelgap.data.images import FileImages
from labelgap.labels import LabelTable
from labelgap.models import EfficientNetLite
from labelgap.models.info import LITE0
from labelgap.training.config import RunConfig
from labelgap.training.loop.inputs import ImageInputs, start_ahead
from labelgap.training.loop.optimizers import MovingAverage, build_optimizer, build_scheduler
from labelgap.training.loop.trace import Trace, merge_trace, remove_trace_parts
from labelgap.training.run_files import read_trace


@pytest.fixture
def images(tmp_path: Path) -> FileImages:
    random = np.random.default_rng(0)
    for row in range(6):
        Image.fromarray(random.integers(0, 256, (40, 30 + row, 3), dtype=np.uint8)).save(tmp_path / f"{row}.png")
    return FileImages(tmp_path, [f"{row}.png" for row in range(6)])


@pytest.mark.parametrize("transform", ["resize", "augment"])
@pytest.mark.parametrize("epoch", [None, 3])
def test_images_on_the_device_give_the_same_batches(images: FileImages, transform: str, epoch: int | None) -> None:
    backbone = EfficientNetLite(LITE0, pretrained=False)
    backbone.input_spec = backbone.input_spec.__class__(**{**vars(backbone.input_spec), "size": 32})
    files = ImageInputs(images, backbone, torch.device("cpu"), flip=True, seed=7, transform=transform)
    order = np.array([4, 0, 3, 2])
    stored, decoded = files.store(torch.device("cpu")), files.in_memory()
    assert stored.pixels is not None and len(stored) == 6 and decoded.pixels is not None
    expected = list(files.batches(order, batch_size=3, epoch=epoch))
    for inputs in (stored, decoded):
        for (index, values), (rows, pixels) in zip(
            inputs.batches(order, batch_size=3, epoch=epoch), expected, strict=True
        ):
            assert torch.equal(index, rows)
            torch.testing.assert_close(values, pixels)
    if epoch is not None:
        plain = torch.cat([values for _, values in files.batches(order, batch_size=3)])
        assert not torch.equal(torch.cat([values for _, values in expected]), plain)


def test_the_error_about_an_unreadable_image_names_the_others(images: FileImages, tmp_path: Path) -> None:
    inputs = ImageInputs(images, EfficientNetLite(LITE0, pretrained=False), torch.device("cpu"))
    (tmp_path / "1.png").write_text("not a photo")
    with pytest.raises(InputError, match=r"^\S+1\.png "):  # the only one: as it was
        list(inputs.batches(np.arange(len(inputs)), batch_size=2))
    (tmp_path / "4.png").write_bytes((tmp_path / "5.png").read_bytes()[:-30])
    for rows in (np.arange(6), np.array([4, 0])):
        with pytest.raises(ProblemsError, match="2 images") as told:
            list(inputs.batches(rows, batch_size=2))
        assert sorted(each.message.split("png ")[0][-2:] for each in told.value.problems) == ["1.", "4."]
    with pytest.raises(ProblemsError, match="--check-images"):
        inputs.store(torch.device("cpu"))


def test_processes_share_memory_and_have_a_gpu_each(images: FileImages, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = EfficientNetLite(LITE0, pretrained=False)
    size = backbone.input_spec.size
    free = 4 * len(images) * 3 * size**2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    monkeypatch.setattr(inputs_module, "available_memory", lambda: free)
    monkeypatch.setattr(ImageInputs, "store", lambda inputs, device: replace(inputs, pixels=torch.zeros(5)))
    gpu, cpu = (ImageInputs(images, backbone, torch.device(name)) for name in ("cuda", "cpu"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    assert gpu.in_memory().pixels is not None
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: free // 4)
    assert gpu.in_memory() is gpu, "the images of another split have their share already"
    assert cpu.in_memory() is cpu


def test_what_was_read_before_a_damaged_image_is_used_first() -> None:
    def batches() -> Iterator[int]:
        yield from (1, 2)
        raise InputError("3.png is empty (0 bytes).")

    used: list[int] = []
    with pytest.raises(InputError, match=r"3\.png"):
        for number in start_ahead(batches(), lambda batch: 10 * batch, 2):
            used.append(number)
    assert used == [10, 20]
    assert list(start_ahead(range(5), str, 2)) == list("01234") and not list(start_ahead([], str, 2))


def config_of(**changed: Any) -> RunConfig:
    return RunConfig.checked(**{**PLAIN, "lr": 0.1, **changed})


def test_the_optimizer_has_the_settings_of_the_run() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1}]
    for name, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        momentum: dict[str, Any] = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
        made = build_optimizer(groups, config_of(optimizer=name, weight_decay=0.05, **momentum))
        assert type(made) is kind and {"weight_decay": 0.05, "fused": True, **momentum}.items() <= made.defaults.items()


def rates(config: RunConfig, steps_per_epoch: int, steps: int) -> list[list[float]]:
    """The rates of two groups, step by step."""
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.001)]
    optimizer = build_optimizer(groups, config)
    scheduler = build_scheduler(optimizer, config, steps_per_epoch)
    seen = []
    for _ in range(steps):
        seen.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return seen


def test_rates_rise_in_the_warm_up_and_then_fall_along_a_cosine_step_by_step() -> None:
    seen = rates(config_of(schedule="cosine", warmup=0.5), steps_per_epoch=10, steps=40)
    factors = [(s + 1) / 5 for s in range(5)] + [0.5 * (1 + math.cos(math.pi * (s - 5) / 35)) for s in range(5, 40)]
    assert np.allclose(seen, [[0.1 * factor, 0.001 * factor] for factor in factors], rtol=1e-12)


def test_the_moving_average_is_the_weighted_mean_of_all_weights_so_far_and_comes_back_from_a_checkpoint() -> None:
    network = nn.BatchNorm1d(2).double()
    average, expected = MovingAverage(network, 0.5), 1.0
    for step, value in enumerate((3.0, -1.0, 4.0), 1):
        nn.init.constant_(network.weight, value)
        network(torch.tensor([[1.0, 2.0], [3.0, 5.0]]).double())
        average.update_parameters(network)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
    found = average.module.state_dict()
    assert found["weight"].tolist() == pytest.approx([expected] * 2)
    assert torch.equal(found["running_mean"], network.state_dict()["running_mean"])
    other = MovingAverage(nn.BatchNorm1d(2).double(), 0.5)
    other.load_state_dict(average.state_dict())
    assert other.n_averaged == 4
    torch.testing.assert_close(other.module.state_dict(), found, rtol=0, atol=0)


TRUTH = LabelTable.from_dense(np.random.default_rng(0).integers(0, 2, (50, 6)))
TABLE = TRUTH.observe(1, 0)


@pytest.mark.parametrize("amount", ["all", 25, "off"])
def test_entries_are_recorded_where_they_belong(tmp_path: Path, amount: Any) -> None:
    trace, logits = Trace(TABLE, TRUTH, amount, 0), torch.randn(50, 6)
    trace.start_epoch()
    for rows in np.array_split(np.random.default_rng(1).permutation(50), 7):
        index = torch.from_numpy(rows)
        trace.record(index, logits[index], TABLE.batch(index), logits[index] > 1)
    trace.write(tmp_path)
    stored = read_trace(tmp_path)
    if amount == "off":
        assert not trace.active and stored == {} and not list(tmp_path.iterdir())
        return
    chance = 1 / (1 + np.exp(-logits.numpy().astype(np.float64)))
    arrays = {"logit": logits.numpy(), "modified": logits.numpy() > 1, "observed": TABLE.to_dense()}
    arrays |= {"truth": TRUTH.to_dense(), "loss": -np.log(np.where(TABLE.to_dense() == 1, chance, 1 - chance))}
    assert len(trace.entries) == (300 if amount == "all" else 25)
    for name, values in arrays.items():
        assert stored[name].ravel() == pytest.approx(values.ravel()[trace.entries], rel=1e-5)


def test_a_sample_has_its_size_and_an_equal_share_of_the_rare_kinds() -> None:
    trace = Trace(TABLE, TRUTH, 60, 0)
    assert len(trace.entries) == 60 == len(np.unique(trace.entries))
    kinds = np.unique(trace.observed * 8 + trace.truth, return_counts=True)[1]
    assert kinds.min() >= 15
    assert np.array_equal(trace.entries, Trace(TABLE, TRUTH, 60, 0).entries)
    assert not np.array_equal(trace.entries, Trace(TABLE, TRUTH, 60, 1).entries)


def record(trace: Trace, folder: Path, epochs: range) -> None:
    for epoch in epochs:
        logits = torch.full((50, 6), float(epoch))
        trace.start_epoch()
        trace.record(torch.arange(50), logits, TABLE.batch(range(50)), logits > 2)
        trace.write(folder)


def test_the_merged_file_is_what_numpy_would_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(Trace(TABLE, TRUTH, "all", 0), tmp_path, range(1, 4))
    arrays = read_trace(tmp_path)
    with pytest.raises(RunError, match=r"traces\.parts"):
        Trace(TABLE, TRUTH, "all", 0).restore(tmp_path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(np, "stack", None)  # only one epoch is in memory
        merge_trace(tmp_path)
    remove_trace_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["traces.npz"]
    np.savez(tmp_path / "numpy.npz", **arrays)  # type: ignore[arg-type]
    assert (tmp_path / "traces.npz").read_bytes() == (tmp_path / "numpy.npz").read_bytes()
    assert {name: values.shape for name, values in read_trace(tmp_path).items()} == {
        **dict.fromkeys(("row", "column", "observed", "truth"), (300,)),
        **dict.fromkeys(("loss", "logit", "modified"), (3, 300)),
    }
    merge_trace(tmp_path)

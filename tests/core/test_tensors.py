from __future__ import annotations

import json
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.killing import start_forked, wait_forked
from tests.waiting import wait_until

from labelgap.core.errors import RunError
from labelgap.core.files import is_partial, remove_partials
from labelgap.core.tensors import read_tensor_metadata, read_tensors, write_tensors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tensors = {
        "head.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "scale": torch.tensor(2.5, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
    }
    write_tensors(tmp_path / "a.safetensors", tensors, {"epoch": "3"})
    return tmp_path / "a.safetensors"


def test_tensors_come_back_as_the_same_bytes_and_the_previous_file_is_kept(path: Path) -> None:
    tensors, metadata = read_tensors(path)
    assert metadata == {"epoch": "3"}
    assert tensors["head.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["scale"].dtype == torch.bfloat16 and tensors["scale"].item() == 2.5
    assert tensors["empty"].shape == (0, 3)
    assert tensors["flags"].tolist() == [True, False]
    assert read_tensor_metadata(path)["epoch"] == "3"
    assert safetensors.torch.load_file(path).keys() == tensors.keys()  # any program can read it
    first, previous = path.read_bytes(), path.with_name("previous.safetensors")
    write_tensors(path, read_tensors(path)[0], {"epoch": "3"}, previous=previous)
    assert path.read_bytes() == first == previous.read_bytes()


def test_every_flipped_bit_is_found_or_means_the_same(path: Path) -> None:
    """The header is JSON: a bit there can change a space into another that means the same."""
    content, intact = path.read_bytes(), read_tensors(path)
    start = 8 + struct.unpack("<Q", content[:8])[0]
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            tensors, metadata = read_tensors(path)
        except RunError:
            continue
        assert metadata == intact[1] and position < start
        assert all(torch.equal(tensors[name], value) for name, value in intact[0].items())


def test_a_file_without_digest_or_with_another_epoch_is_not_ours(path: Path) -> None:
    tensors, _ = read_tensors(path)
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"]["labelgap"] = header["__metadata__"]["labelgap"].replace('"3"', '"4"')
    changed = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    path.write_bytes(content[:8] + changed + content[8 + length :])
    with pytest.raises(RunError, match="digest"):
        read_tensors(path)
    safetensors.torch.save_file(tensors, path)
    with pytest.raises(RunError, match="digest"):
        read_tensors(path)


def test_every_type_of_number_is_written_as_the_format_has_it(tmp_path: Path) -> None:
    names = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "bool"]
    names += ["int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"]
    tensors = {name: torch.tensor([[1, 0, 3]]).to(getattr(torch, name)) for name in names}
    write_tensors(tmp_path / "a.safetensors", tensors)
    found, _ = read_tensors(tmp_path / "a.safetensors")
    assert {name: value.dtype for name, value in found.items()} == {name: tensors[name].dtype for name in names}
    assert all(torch.equal(found[name].float(), tensors[name].float()) for name in names if name != "complex64")


def is_writing(folder: Path) -> bool:
    with suppress(FileNotFoundError):  # it has just been renamed
        return any(each.stat().st_size for each in folder.glob(".*"))
    return False


def test_a_kill_while_tensors_are_written_leaves_nothing_that_is_not_swept(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", {"weight": torch.zeros(1 << 24)}
    write_tensors(path, tensors)
    before = path.read_bytes()

    def write_again_and_again() -> None:
        while True:
            write_tensors(path, tensors)

    process = start_forked(write_again_and_again)
    wait_until(lambda: is_writing(tmp_path))
    os.kill(process, signal.SIGKILL)
    assert wait_forked(process) == -signal.SIGKILL
    left = [each.name for each in tmp_path.glob(".*")]
    assert path.read_bytes() == before and not [name for name in left if name.startswith(".tmp")]
    assert all(map(is_partial, left))
    (tmp_path / ".tmpAb12cD").write_bytes(b"of an earlier version")
    remove_partials(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]

"""Kernels are compiled for a GPU that need not be there."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

POINTERS = {torch.float32: "*fp32", torch.int64: "*i64", torch.int32: "*i32", torch.int8: "*i8"}
ALIGNED = [["tt.divisibility", 16]]
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", re.MULTILINE)


class Compiled(NamedTuple):
    """What a kernel became.

    Attributes:
        name: of the kernel.
        registers: of a thread.
        spilled: bytes of a thread that did not fit into registers.
        instructions: of the whole kernel.
    """

    name: str
    registers: int
    spilled: int
    instructions: int


def compile_for(
    capability: int, kernel: Any, programs: int, *arguments: Tensor | float, warps: int, **constants: Any
) -> Compiled:
    """Compile what ``launch`` would start for a GPU of a compute capability, say 90, which need not be there."""
    names = kernel.arg_names
    types = {name: _type_of(value) for name, value in zip(names, arguments, strict=False)}
    source = triton.compiler.ASTSource(
        kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(place,): ALIGNED for place, value in enumerate(arguments) if _is_aligned(value)},
    )
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(found.asm["cubin"])
        code, usage = (_read_binary(flag, path) for flag in ("-sass", "-res-usage"))
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", usage)[0]
    steps = [name for name in INSTRUCTION.findall(code) if name != "NOP"]
    return Compiled(kernel.__name__, int(registers), int(stack), len(steps))


def _type_of(value: Tensor | float) -> str:
    return POINTERS[value.dtype] if isinstance(value, Tensor) else "fp32" if isinstance(value, float) else "i32"


def _is_aligned(value: Tensor | float) -> bool:
    """Return whether Triton may assume multiples of 16: addresses, and whole numbers that are."""
    return isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0)


def _read_binary(flag: str, path: Path) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, flag, path], capture_output=True, text=True, check=True).stdout

"""Functions that NVIDIA's GPUs have as single instructions, in 22 bits or more; Triton's own are several times as long.

Numbers below 1.2e-38 count as 0. In Triton's interpreter the functions are exact.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import os

from labelgap.losses.kernels.triton_import import tl, triton

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def exp2(x):
    """Return 2ˣ, to 2⁻²² of it."""
    if INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def log2(x):
    """Return the logarithm to the base 2, to 2⁻²² between ½ and 2, and to 2⁻²² of it elsewhere."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def reciprocal(x):
    """Return 1 / x, to 2⁻²³ of it."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )

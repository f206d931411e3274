"""When a loss is computed by a kernel, and when by PyTorch's operations.

A kernel is taken where it pays: logits of float32 (16-bit ones are widened before) on an NVIDIA GPU, 2¹⁸ or more of
them in a batch ``(B, K)``, labels of int8 in the same order in memory, options that are plain numbers, and one process.
A compiled loss is left to the compiler. A loss with ε inside its logarithms, one that a subclass has changed, and one
whose entries are not reduced are computed without.

A step that is captured in a CUDA graph takes a kernel only if the same step has run before: nothing is compiled in a
capture. The epoch is read on the device, so that a replayed step follows it. If a kernel cannot be compiled or started,
because there is no C compiler, or the driver is too old, one warning says so, and training continues without kernels.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor, nn

from labelgap.core.distributed import world_size
from labelgap.losses.base.fused import KernelForm

VARIABLE: Final = "LABELGAP_KERNELS"
DEVICES = {"cuda"}
"""Types of devices that have kernels. In Triton's interpreter, which tests use, it is the CPU."""
LEAST_ENTRIES = 2**18
"""Fewer logits take so little time that a kernel saves less than it takes to compile."""
MOST_ENTRIES: Final = 2**31 - 2**16
"""Positions are counted in 32 bits."""
ALIGNMENT: Final = 16
"""Bytes: other addresses would be compiled for anew, and are slower."""

_DISABLED: ContextVar[bool] = ContextVar("kernels_disabled", default=False)
_failed = False
_known: set[tuple[Any, ...]] = set()
"""What has run: it is compiled, and its numbers are on the device."""


@contextmanager
def disabled() -> Iterator[None]:
    """Inside this context losses are computed without kernels, to compare both."""
    token = _DISABLED.set(True)
    try:
        yield
    finally:
        _DISABLED.reset(token)


def are_taken(device: torch.device, dtype: torch.dtype, entries: int) -> bool:
    """Return whether losses of so many logits are computed by kernels, where their method and options have one."""
    return (
        LEAST_ENTRIES <= entries <= MOST_ENTRIES
        and dtype == torch.float32
        and device.type in DEVICES
        and not _failed
        and not _DISABLED.get()
        and os.environ.get(VARIABLE) != "0"
        and world_size() == 1
        and _is_installed()
    )


@cache
def _is_installed() -> bool:
    return find_spec("triton") is not None and torch.version.hip is None  # kernels have instructions of NVIDIA's GPUs


def one_pass(form: KernelForm, logits: Tensor, labels: Tensor, reduction: str) -> Tensor | None:
    """Return the "mean" or "sum" of the costs of logits ``(B, K)``; None where no kernel can be taken after all.

    Call it where ``are_taken`` says yes. The gradient is computed along; it can be differentiated once.
    """
    if not _fit(form, logits, labels):
        return None
    constants = (form.family, form.options, form.weights, form.share is not None, form.wanted)
    key = (*constants, reduction, logits.shape, logits.stride(), logits.device)
    known = key in _known
    if not known and logits.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    logits, labels = (values.clone() if values.data_ptr() % ALIGNMENT else values for values in (logits, labels))
    try:
        from labelgap.losses.kernels.triton_kernels import evaluate, warm_up

        if not known:
            warm_up(logits)
        loss = evaluate(form, logits, labels, reduction)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever Triton, a compiler or a driver may raise: losses do not need kernels
        if known:
            raise
        _give_up(error)
        return None
    _known.add(key)
    return loss


def _fit(form: KernelForm, logits: Tensor, labels: Tensor) -> bool:
    """Return whether a kernel can read these tensors."""
    tensors = [labels, *(values for values in (form.epoch, form.share) if values is not None)]
    return (
        type(logits) in (Tensor, nn.Parameter)
        and type(labels) is Tensor
        and labels.dtype == torch.int8
        and labels.shape == logits.shape
        and labels.stride() == logits.stride()
        and (logits.is_contiguous() or logits.mT.is_contiguous())
        and all(values.device == logits.device for values in tensors)
    )


def _give_up(error: Exception) -> None:
    global _failed
    _failed = True
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    warnings.warn(
        f"losses are computed without kernels of their own, which takes longer, because Triton failed: {reason}. "
        f"{VARIABLE}=0 does the same without this warning.",
        stacklevel=4,
    )

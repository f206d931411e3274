"""Losses in one pass over the logits, for NVIDIA GPUs, written in Triton. The losses take them by themselves.

Triton comes with PyTorch for CUDA on Linux. It is imported with the first large batch on such a GPU, never before, and
is no dependency: without it, and wherever a kernel does not apply (see ``dispatch``), the losses compute as elsewhere.
The environment variable ``LABELGAP_KERNELS=0``, or the context ``disabled()``, switches the kernels off.
"""

from labelgap.losses.kernels.dispatch import disabled

__all__ = ["disabled"]

"""Batch normalization: whether a network has it, and what its statistics are of while several processes train.

- "local": of the images of a process; the first one's running statistics are kept.
- "sync": of the whole batch, over all processes: the numbers are those of one process.
- "frozen": the running statistics of the initial weights, which do not change; scale and shift are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelgap.core.distributed import all_sum, is_distributed
from labelgap.core.errors import InputError
from labelgap.models.backbone import Backbone
from labelgap.models.registry import outline_backbone
from labelgap.models.timm import TimmBackbone

BatchNormMode = Literal["local", "sync", "frozen"]

_UNCOUNTED: ContextVar[bool] = ContextVar("uncounted", default=False)


def has_batch_norm(backbone: str | nn.Module) -> bool:
    """Return whether a network has batch normalization; one that is given by its name is built without memory."""
    if isinstance(backbone, str):
        return _ask(backbone, has_batch_norm)
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
    return any(isinstance(module, kinds) for module in backbone.modules())


def has_average_pool(backbone: str | nn.Module) -> bool:
    """Return whether features are the average of feature maps, as of convolutional networks, as far as is known."""
    if isinstance(backbone, str):
        return _ask(backbone, has_average_pool)
    own = all(getattr(type(backbone), name, None) is getattr(Backbone, name) for name in ("features", "pool"))
    pools = own or isinstance(backbone, TimmBackbone) or getattr(backbone, "gives_maps", False)
    return pools and has_batch_norm(backbone)


@cache
def _ask(name: str, question: Callable[[nn.Module], bool]) -> bool:
    """Return what a function says of the backbone of a name."""
    return question(outline_backbone(name))


def check_batch_norm(mode: str, backbone: str | nn.Module, *, pretrained: bool) -> None:
    """Refuse a mode that the network has no use for."""
    if mode == "local":
        return
    if not has_batch_norm(backbone):
        name = backbone if isinstance(backbone, str) else type(backbone).__name__
        raise InputError(f"batchnorm={mode}: {name} has no batch normalization: leave it out.")
    if mode == "frozen" and not pretrained:
        raise InputError("batchnorm=frozen keeps the statistics of trained weights; these are random: leave it out.")


def freeze_batch_norm(network: nn.Module) -> None:
    """Let batch normalization use its running statistics and leave them as they are, until ``train`` is called."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


def synchronize_batch_norm(network: nn.Module) -> None:
    """Replace batch normalization in a network by ``SynchronizedBatchNorm``, with the same parameters and buffers."""
    for name, child in list(network.named_children()):
        if isinstance(child, _BatchNorm) and not isinstance(child, SynchronizedBatchNorm):
            setattr(network, name, SynchronizedBatchNorm.of(child))
        else:
            synchronize_batch_norm(child)


@contextmanager
def no_statistics() -> Iterator[None]:
    """In this context the inputs of this process do not count in the statistics of ``SynchronizedBatchNorm``."""
    token = _UNCOUNTED.set(True)
    try:
        yield
    finally:
        _UNCOUNTED.reset(token)


class SynchronizedBatchNorm(_BatchNorm):
    r"""Batch normalization whose mean and variance are those of the whole batch, over all processes.

    Mean and variance are sums over the processes, :math:`\mu = \frac1n \sum_p \sum_{i \in p} x_i` and
    :math:`\sigma^2 = \frac1n \sum_p \sum_{i \in p} (x_i - \mu)^2`, and the gradient flows through both sums.
    Processes may have different numbers of images. It works on every device; ``torch.nn.SyncBatchNorm`` needs GPUs.
    """

    @classmethod
    def of(cls, module: _BatchNorm) -> SynchronizedBatchNorm:
        """Return a layer with the parameters, buffers and settings of another one."""
        extra = {name: child for name, child in module.named_children() if name in ("drop", "act")}
        if type(module) not in (nn.BatchNorm1d, nn.BatchNorm2d) and set(extra) != {"drop", "act"}:
            raise InputError(
                f"batchnorm=sync does not know the layer {type(module).__name__}: use --batchnorm local or frozen."
            )
        layer = cls(module.num_features, module.eps, module.momentum, affine=False, track_running_stats=False)
        layer.affine, layer.track_running_stats = module.affine, module.track_running_stats
        for name in ("weight", "bias"):
            layer.register_parameter(name, getattr(module, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            layer.register_buffer(name, getattr(module, name))
        for name, child in extra.items():  # timm joins normalization and activation in one layer
            layer.add_module(name, child)
        return layer.train(module.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalize inputs ``(B, C, …)``."""
        outputs = self._synchronized(inputs) if self.training and is_distributed() else super().forward(inputs)
        for name in ("drop", "act"):
            if name in self._modules:
                outputs = self._modules[name](outputs)  # type: ignore[misc]
        return outputs

    def _check_input_dim(self, inputs: Tensor) -> None:
        if inputs.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {inputs.dim()}")

    def _synchronized(self, inputs: Tensor) -> Tensor:
        self._check_input_dim(inputs)
        values = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        counted = values[:0] if _UNCOUNTED.get() else values
        dims = [0, *range(2, values.dim())]
        own_count = values.new_full((1,), counted.numel() // max(values.shape[1], 1))
        sums = all_sum(torch.cat([counted.sum(dims), own_count]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        shape = [1, -1, *[1] * (values.dim() - 2)]
        variance = all_sum((counted - mean.view(shape)).square().sum(dims)) / count
        self._update_statistics(mean.detach(), variance.detach(), count)
        scale = torch.rsqrt(variance + self.eps)
        shift = -mean * scale
        if self.affine:
            scale, shift = scale * self.weight, shift * self.weight + self.bias
        return (values * scale.view(shape) + shift.view(shape)).to(inputs.dtype)

    @torch.no_grad()
    def _update_statistics(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics as ``torch.nn.BatchNorm2d`` does; its variance is the unbiased one."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = self.momentum if self.momentum is not None else 1.0 / self.num_batches_tracked.to(mean.dtype)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.mul_(1 - factor).add_((factor * value).to(running.dtype))

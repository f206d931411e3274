r"""The kernels of the losses: cost and gradient in one pass over the logits, and the selection of the largest.

The forward pass reads logits and labels once and writes the gradient of the loss: 9 bytes an entry, which is what has
to move. The backward pass multiplies it in place by the gradient that comes in, and leaves at once where that is 1, as
it is where the loss is the end of the graph. So there is no buffer beyond the gradient itself; a graph that is retained
for another backward pass costs one.

Results are deterministic. Costs are summed over blocks, then over their sums in a fixed order, without atomics; the
selection counts whole numbers, whose sum does not depend on an order. The same batch gives the same bytes, but not
those of the losses without kernels, whose sums have another order.

Where Triton is not installed the module can be imported, but nothing in it runs. Importing Triton takes time: only
``dispatch`` imports this module, with the first batch that a kernel computes.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import os
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from labelgap.labels import codes
from labelgap.losses.base.fused import KernelForm, is_retained, refuse_second_derivative


class _StandIn:
    """Every decorator and constant of Triton, as something that returns what it is given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def unchanged(value: Any = None, **_: Any) -> Any:
            return unchanged if value is None else value

        return unchanged


try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = cast(Any, _StandIn())

BLOCK = 1024
"""Entries of a block."""
WARPS = 4
"""Of a block; these two are within 4 % of the fastest of eleven sizes for every family on an H200."""
SUMS = 4096
"""Sums of blocks that are added at once."""
RESCALED = 16384
"""Entries that a program of the backward pass multiplies: many, as it mostly has nothing to do."""
DIGITS = (8, 12, 12)
"""How many bits each pass of the selection finds; most keys share few of the first 8, and few are counted by others."""

INTERPRETED: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
PRESENT: tl.constexpr = tl.constexpr(codes.PRESENT)
ABSENT: tl.constexpr = tl.constexpr(codes.ABSENT)
TINY: tl.constexpr = tl.constexpr(1.1754944e-38)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LOWEST_INTEGER: tl.constexpr = tl.constexpr(-(2**31))


# Single instructions of NVIDIA's GPUs, in 22 bits or more, where Triton's own functions are several times as long.
# Numbers below 1.2e-38 count as 0. In Triton's interpreter they are exact.


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


# Cost and slope of an entry, one function per family of methods. With e = exp(−|x|) and λ = ln(1 + e) nothing overflows
# or is lost where a label is already right: −ln p = λ + max(−x, 0), −ln(1 − p) = λ + max(x, 0). A family takes the
# logits and labels of a block, the mask of ``large`` losses, the method's ``numbers``, the epoch, and ``OPTIONS``.


@triton.jit
def terms(x):
    r"""Return λ, p and 1 − p; :math:`\lambda = 2\,\mathrm{artanh}(s)`, :math:`s = e / (2 + e) \le \frac13`, to s¹³."""
    tail = exp2(tl.abs(x) * -LOG2E)
    both = reciprocal((1.0 + tail) * (2.0 + tail))
    high = (2.0 + tail) * both
    low = tail * high
    s = tail * (1.0 + tail) * both
    square = s * s
    series = 1.0 / 9.0 + square * (1.0 / 11.0 + square * (1.0 / 13.0))
    series = 1.0 / 5.0 + square * (1.0 / 7.0 + square * series)
    log = 2.0 * (s + s * square * (1.0 / 3.0 + square * series))
    return log, tl.where(x >= 0.0, high, low), tl.where(x >= 0.0, low, high)


@triton.jit
def fast_terms(x):
    """Return 1 + e, p and 1 − p, with fewer instructions; λ, the logarithm of the first, is known to 2e-7 only."""
    tail = exp2(tl.abs(x) * -LOG2E)
    high = reciprocal(1.0 + tail)
    low = tail * high
    return 1.0 + tail, tl.where(x >= 0.0, high, low), tl.where(x >= 0.0, low, high)


@triton.jit
def power(base, EXPONENT: tl.constexpr):
    """Return a power of numbers from 0 on, and its derivative."""
    if EXPONENT == 0:
        return base * 0.0 + 1.0, base * 0.0
    elif EXPONENT == 1:
        return base, base * 0.0 + 1.0
    elif EXPONENT == 2:
        return base * base, 2.0 * base
    elif EXPONENT == 4:
        square = base * base
        return square * square, 4.0 * square * base
    else:
        value = tl.exp2(EXPONENT * tl.log2(base))
        return value, EXPONENT * value / tl.maximum(base, TINY)


@triton.jit
def focused(z, log, q, n, GAMMA: tl.constexpr):
    r"""Return :math:`-n^\gamma \ln q` and its derivative in z; q = σ(z), n = 1 − q."""
    log_q = tl.minimum(z, 0.0) - log
    focus, steep = power(n, GAMMA)
    return -focus * log_q, n * (q * steep * log_q - focus)


@triton.jit
def by_state(numbers, column, present, absent, large, SELECT: tl.constexpr):
    """Return the weight of every entry, out of one for each state: unknown, absent, present, large; three columns."""
    weight = tl.load(numbers + column)
    if SELECT:
        weight = tl.where(large, tl.load(numbers + 9 + column), weight)
    weight = tl.where(absent, tl.load(numbers + 3 + column), weight)
    return tl.where(present, tl.load(numbers + 6 + column), weight)


@triton.jit
def mixture(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    r"""Return :math:`u (-\ln p) + v (-\ln(1-p)) + w H(p)`; the columns of ``numbers`` are u + v, u and w.

    Slope :math:`(u+v)\,p - u - w\,x\,p\,(1-p)`. OPTIONS: whether losses are selected, whether any w is not 0.
    """
    present, absent = label == PRESENT, label == ABSENT
    both = by_state(numbers, 0, present, absent, large, OPTIONS[0])
    u = by_state(numbers, 1, present, absent, large, OPTIONS[0])
    log, p, n = terms(x)
    cost = both * tl.maximum(x, 0.0) - u * x + both * log
    slope = both * p - u
    if OPTIONS[1]:
        w = by_state(numbers, 2, present, absent, large, OPTIONS[0])
        cost += w * (log + tl.abs(x) * tl.minimum(p, n))
        slope -= w * x * p * n
    return cost, slope


@triton.jit
def focal(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    """Focal loss. OPTIONS: α, γ."""
    present = label == PRESENT
    z = tl.where(present, x, -x)
    log, q, n = terms(z)
    cost, slope = focused(z, log, q, n, OPTIONS[1])
    weight = tl.where(present, OPTIONS[0], 1.0 - OPTIONS[0])
    return weight * cost, tl.where(present, weight, -weight) * slope


@triton.jit
def hill(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    """Hill loss: the logit of a present label is shifted by 1."""
    present = label == PRESENT
    z = tl.where(present, x - 1.0, x)
    log, p, n = terms(z)
    cost, slope = focused(z, log, p, n, 2)
    return tl.where(present, cost, (1.5 - p) * p * p), tl.where(present, slope, 3.0 * p * p * n * n)


@triton.jit
def self_paced(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    """Self-paced correction: likely unknown labels count as present. OPTIONS: the logit of τ, γ, epochs of warm-up."""
    present = label == PRESENT
    shifted = tl.where(present, x - 1.0, x)
    log, p, n = terms(shifted)
    level = tl.where(tl.load(epoch) > OPTIONS[2], OPTIONS[0], float("inf"))
    likely = (label != ABSENT) & (x > level)
    positive = present | likely
    z = tl.where(positive, shifted, -shifted)
    cost, slope = focused(z, log, tl.where(positive, p, n), tl.where(positive, n, p), OPTIONS[1])
    return cost, tl.where(positive, slope, -slope)


@triton.jit
def asymmetric(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    r"""Asymmetric loss :math:`-f \ln w`, :math:`w = \min(q + m, 1)`, :math:`f = \max(n - m, 0)^\gamma`; see ``asl``.

    OPTIONS: γ₊, γ₋, m; the margin m is that of the labels that are not present.
    """
    present = label == PRESENT
    z = tl.where(present, x, -x)
    if OPTIONS[2] > 0:
        both, q, n = fast_terms(z)
        w = tl.minimum(q + OPTIONS[2], 1.0, propagate_nan=tl.PropagateNan.ALL)
        log = log2(tl.where(present, both, w))
        ratio = tl.where(present, 1.0, q * reciprocal(w))
        log_w = LN2 * tl.where(present, -log, log) + tl.where(present, tl.minimum(z, 0.0), 0.0)
        base = tl.where(present, n, tl.maximum(n - OPTIONS[2], 0.0, propagate_nan=tl.PropagateNan.ALL))
    else:
        log, q, n = terms(z)
        log_w, ratio, base = tl.minimum(z, 0.0) - log, q * 0.0 + 1.0, n
    focus, steep = power(base, OPTIONS[1])
    focus_present, steep_present = power(base, OPTIONS[0])
    focus, steep = tl.where(present, focus_present, focus), tl.where(present, steep_present, steep)
    slope = tl.where(base > 0.0, n * (q * steep * log_w - focus * ratio), 0.0)
    return -focus * log_w, tl.where(present, slope, -slope)


@triton.jit
def power_less_one(y):
    """Return eʸ − 1 for y up to 0, accurate near 0 as well."""
    near = 1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0 + y * (1.0 / 5040.0)))
    near = y + y * y * (1.0 / 2.0 + y * (1.0 / 6.0 + y * near))
    return tl.where(y > -0.5, near, exp2(y * LOG2E) - 1.0)


@triton.jit
def robust(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    """Generalized robust loss, in the letters of ``robust_form``. OPTIONS: q₂, q₃, epochs, α, β."""
    now = tl.load(epoch).to(tl.float32)
    progress = tl.minimum(now / OPTIONS[2], 1.0)
    start = tl.minimum((now - 1.0) / OPTIONS[2], 1.0)
    center = OPTIONS[3] + (OPTIONS[4] - OPTIONS[3]) * progress
    width = OPTIONS[5] + (OPTIONS[6] - OPTIONS[5]) * progress
    w = OPTIONS[7] + (OPTIONS[8] - OPTIONS[7]) * start
    shift = OPTIONS[9] + (OPTIONS[10] - OPTIONS[9]) * start
    both, p, n = fast_terms(x)
    log = LN2 * log2(both)
    present, absent = label == PRESENT, label == ABSENT
    distance = p - center
    v = tl.where(present | absent, 0.0, exp2(distance * distance * (-0.5 * LOG2E / (width * width))))
    g = v * reciprocal(1.0 + exp2(-LOG2E * (w * p + shift)))
    h = v - g
    a = power_less_one(OPTIONS[0] * (tl.minimum(x, 0.0) - log))
    b = -p
    if OPTIONS[1] != 1:
        b = power_less_one(OPTIONS[1] * (tl.minimum(-x, 0.0) - log))
    soft = -g * a * (1.0 / OPTIONS[0]) - h * b * (1.0 / OPTIONS[1])
    soft_slope = h * (1.0 + b) * p - g * (1.0 + a) * n
    z = tl.where(present, x, -x)
    known = present | absent
    cost = tl.where(known, log - tl.minimum(z, 0.0), soft)
    return cost, tl.where(present, -n, tl.where(absent, p, soft_slope))


@triton.jit
def selective(x, label, large, numbers, epoch, OPTIONS: tl.constexpr):
    """Class-aware selection; the ``large`` ones are left out. OPTIONS: γ₊, γ₋, γᵤ, each a constant to the gradient."""
    present = label == PRESENT
    log, p, n = terms(x)
    focus_present, _ = power(n, OPTIONS[0])
    focus_absent, _ = power(p, OPTIONS[1])
    focus_unknown, _ = power(p, OPTIONS[2])
    weight = tl.where(label == ABSENT, focus_absent, tl.where(large, 0.0, focus_unknown))
    weight = tl.where(present, focus_present, weight)
    z = tl.where(present, x, -x)
    return weight * (log - tl.minimum(z, 0.0)), weight * tl.where(present, -n, p)


_NAMES = ("mixture", "focal", "hill", "self_paced", "asymmetric", "robust", "selective")
FAMILIES = {name: globals()[name] for name in _NAMES}
"""By the name that a ``KernelForm`` has."""


@triton.jit
def cost_and_slope(
    logits,
    labels,
    threshold,
    numbers,
    epoch,
    slopes,
    sums,
    entries,
    scale,
    COST: tl.constexpr,
    OPTIONS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the slopes of a block, times ``scale``, and the sum of its costs."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < entries
    x = tl.load(logits + place, mask=inside, other=0.0)
    label = tl.load(labels + place, mask=inside, other=0)
    large = x >= tl.load(threshold)
    cost, slope = COST(x, label, large, numbers, epoch, OPTIONS)
    tl.store(slopes + place, slope * scale, mask=inside)
    tl.store(sums + tl.program_id(0), tl.sum(tl.where(inside, cost, 0.0), axis=0))


@triton.jit
def add_up(sums, total, count, scale, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the sum of all blocks, times ``scale``."""
    found = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(STEPS):
        place = step * BLOCK + tl.arange(0, BLOCK)
        found += tl.load(sums + place, mask=place < count, other=0.0)
    tl.store(total, tl.sum(found, axis=0) * scale)


@triton.jit(do_not_specialize_on_alignment=["gradient"])
def rescale(slopes, gradient, entries, BLOCK: tl.constexpr):
    """Multiply by the gradient that comes in, in place; nothing is read or written where it is 1."""
    factor = tl.load(gradient)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    changed = place < tl.where(factor != 1.0, entries, 0)
    tl.store(slopes + place, factor * tl.load(slopes + place, mask=changed, other=0.0), mask=changed)


# The exact k-th largest logit of the unknown labels: its loss as an assumed negative is the k-th largest. By radix
# selection on the bits of the floats, turned into unsigned keys of the same order: three passes count the keys by their
# next 8, 12 and 12 bits, each among those that share the bits found so far, and ``narrow`` finds the bits of the k-th.
# Nothing is sorted, nothing waits for the host, and counts do not depend on the order in which they are added.


@triton.jit
def count_keys(logits, labels, state, counts, entries, SHIFT: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    """Count the unknown labels of a block by ``BITS`` bits of their key, if its higher bits are those found so far."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < entries
    label = tl.load(labels + place, mask=inside, other=PRESENT)
    bits = tl.load(logits + place, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    key = (bits ^ tl.where(bits < 0, -1, LOWEST_INTEGER)).to(tl.uint32, bitcast=True)
    digit = ((key >> SHIFT) & ((1 << BITS) - 1)).to(tl.int32)
    counted = (label != PRESENT) & (label != ABSENT)
    if SHIFT + BITS == 32:
        found = tl.histogram(digit, 1 << BITS, mask=counted)
        tl.atomic_add(counts + tl.arange(0, 1 << BITS), found, mask=found > 0, sem="relaxed")
    else:
        counted &= (key >> (SHIFT + BITS)).to(tl.int32) == tl.load(state).to(tl.int32)
        tl.atomic_add(counts + digit, 1, mask=counted, sem="relaxed")


@triton.jit
def narrow(
    counts,
    state,
    threshold,
    share,
    wanted,
    SHARED: tl.constexpr,
    BITS: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
):
    """Find the next bits of the k-th largest key; ``state`` is the bits so far, and its rank among what shares them.

    k is ``wanted``, or a share of the unknown labels, rounded up; ``share`` is its numerator and its denominator.
    """
    digit = tl.arange(0, 1 << BITS)
    count = tl.load(counts + digit)
    at_least = tl.cumsum(count, axis=0, reverse=True)
    prefix, rank = tl.load(state), tl.load(state + 1)
    if FIRST:
        available = tl.sum(count, axis=0).to(tl.int64)
        rank = available * 0 + wanted
        if SHARED:
            denominator = tl.load(share + 1)
            rank = (available * tl.load(share) + denominator - 1) // denominator
        rank = tl.minimum(rank, available)
    here = (at_least >= rank) & (at_least - count < rank)
    prefix = (prefix << BITS) + tl.sum(tl.where(here, digit, 0), axis=0)
    rank -= tl.sum(tl.where(here, at_least - count, 0), axis=0)
    tl.store(counts + digit, tl.zeros_like(count))
    tl.store(state, prefix)
    tl.store(state + 1, rank)
    if LAST:
        signed = (prefix + LOWEST_INTEGER).to(tl.int32)
        bits = tl.where(signed >= 0, signed, signed ^ 0x7FFFFFFF)
        tl.store(threshold, tl.where(rank > 0, bits.to(tl.float32, bitcast=True), float("inf")))


def launch(kernel: Any, programs: int, *arguments: Tensor | float, warps: int, **constants: Any) -> None:
    """Start a kernel on the current device and stream. Benchmarks put something else in its place."""
    kernel[(programs,)](*arguments, **constants, num_warps=warps)


def kth_largest(form: KernelForm, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the k-th largest logit of the unknown labels, k as the form says; ∞ where k is 0."""
    zeros = torch.zeros(2 + (1 << max(DIGITS)) // 2, dtype=torch.int64, device=logits.device)
    state, counts = zeros[:2], zeros[2:].view(torch.int32)
    threshold = torch.empty((), dtype=torch.float32, device=logits.device)
    share = state if form.share is None else form.share
    entries, shift = logits.numel(), 32
    for number, bits in enumerate(DIGITS):
        shift -= bits
        constants: dict[str, Any] = {"SHIFT": shift, "BITS": bits, "BLOCK": BLOCK, "warps": WARPS}
        launch(count_keys, triton.cdiv(entries, BLOCK), *(logits, labels, state, counts, entries), **constants)
        constants = {"SHARED": form.share is not None, "BITS": bits, "FIRST": number == 0, "LAST": shift == 0}
        launch(narrow, 1, *(counts, state, threshold, share, form.wanted or 0), **constants, warps=8)
    return threshold


def evaluate(form: KernelForm, logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Return the "mean" or "sum" of the costs of float32 logits and int8 labels, dense and in the same order."""
    with torch.cuda.device_of(logits):
        loss: Tensor = _OnePass.apply(logits, labels, form, reduction)
    return loss


def warm_up(logits: Tensor) -> None:
    """Compile the backward pass, where a failure would come too late; times 1, which changes nothing."""
    with torch.cuda.device_of(logits):
        _rescale(logits, torch.ones((), device=logits.device))


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, form: KernelForm, reduction: str) -> Tensor:
        entries, threshold = logits.numel(), kth_largest(form, logits, labels) if form.selects else logits
        weights = _on_device(form.weights, logits.device) if form.weights else logits
        blocks, scale = triton.cdiv(entries, BLOCK), 1.0 / entries if reduction == "mean" else 1.0
        slopes, sums, total = torch.empty_like(logits), logits.new_empty(blocks), logits.new_empty(())
        epoch = logits if form.epoch is None else form.epoch
        constants = {"COST": FAMILIES[form.family], "OPTIONS": form.options, "BLOCK": BLOCK, "warps": WARPS}
        tensors = logits, labels, threshold, weights, epoch, slopes, sums
        launch(cost_and_slope, blocks, *tensors, entries, scale, **constants)
        steps = triton.cdiv(blocks, SUMS)
        launch(add_up, 1, *(sums, total, blocks, scale), STEPS=steps, BLOCK=SUMS, warps=32)
        ctx.slopes = slopes
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Hand the slopes over; autograd may make them the gradient without a copy, as nothing else holds them."""
        refuse_second_derivative()
        slopes = ctx.slopes
        if slopes is None:
            raise RuntimeError(
                "Trying to backward through the graph of a loss a second time: its gradient was handed over. Specify "
                "retain_graph=True in the first backward pass."
            )
        if is_retained():
            slopes = slopes.clone()
        else:
            ctx.slopes = None
        _rescale(slopes, gradients[0])
        return slopes, None, None, None


def _rescale(slopes: Tensor, gradient: Tensor) -> None:
    entries = slopes.numel()
    launch(rescale, triton.cdiv(entries, RESCALED), *(slopes, gradient, entries), BLOCK=RESCALED, warps=16)


@cache
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers in memory of the device, which is never freed: a captured graph may read them."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)

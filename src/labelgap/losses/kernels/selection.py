"""The exact k-th largest logit of the unknown labels, by radix selection on the bits of the floats.

The loss of an assumed negative grows with the logit, so that the k largest losses are the k largest logits. Floats are
turned into unsigned keys of the same order. Three passes over logits and labels count the keys by their next 8, 12 and
12 bits, each among those that share the bits found so far; after each pass ``narrow`` finds the bits of the k-th
largest. Nothing is sorted, nothing waits for the host, and counts do not depend on the order in which they are added.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
from torch import Tensor

from labelgap.losses.kernels import launching
from labelgap.losses.kernels.costs import ABSENT, PRESENT
from labelgap.losses.kernels.form import KernelForm
from labelgap.losses.kernels.triton_import import tl, triton

DIGITS = (8, 12, 12)
"""How many bits each pass finds; most keys share few of the first 8, and few keys are counted by the others."""
GROUP: tl.constexpr = tl.constexpr(1_000_000_000)
"""The decimals of a share are in groups of nine; see ``exact_share``."""
LOWEST_INTEGER: tl.constexpr = tl.constexpr(-(2**31))


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
    epoch,
    wanted,
    GROUPS: tl.constexpr,
    BITS: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
):
    """Find the next bits of the k-th largest key; ``state`` is the bits so far, and its rank among what shares them.

    k is ``wanted``, or the share that ``exact_share`` gives of the unknown labels times the epochs before this one.
    """
    digit = tl.arange(0, 1 << BITS)
    count = tl.load(counts + digit)
    at_least = tl.cumsum(count, axis=0, reverse=True)
    prefix, rank = tl.load(state), tl.load(state + 1)
    if FIRST:
        available = tl.sum(count, axis=0).to(tl.int64)
        rank = available * 0 + wanted
        if GROUPS > 0:
            rank = available * 0
            for group in tl.static_range(GROUPS - 1, -1, -1):
                rank = (available * (tl.load(epoch) - 1) * tl.load(share + group) + rank + (GROUP - 1)) // GROUP
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


def kth_largest(form: KernelForm, logits: Tensor, labels: Tensor, block: int, warps: int) -> Tensor:
    """Return the k-th largest logit of the unknown labels, k as the form says; ∞ where k is 0."""
    zeros = torch.zeros(2 + (1 << max(DIGITS)) // 2, dtype=torch.int64, device=logits.device)
    state, counts = zeros[:2], zeros[2:].view(torch.int32)
    threshold = torch.empty((), dtype=torch.float32, device=logits.device)
    share, groups = (state, 0) if form.share is None else (form.share, len(form.share))
    epoch = state if form.epoch is None else form.epoch
    entries, shift = logits.numel(), 32
    for number, bits in enumerate(DIGITS):
        shift -= bits
        launching.launch(
            count_keys,
            triton.cdiv(entries, block),
            *(logits, labels, state, counts, entries),
            SHIFT=shift,
            BITS=bits,
            BLOCK=block,
            warps=warps,
        )
        launching.launch(
            narrow,
            1,
            *(counts, state, threshold, share, epoch, form.wanted or 0),
            GROUPS=groups,
            BITS=bits,
            FIRST=number == 0,
            LAST=shift == 0,
            warps=8,
        )
    return threshold

r"""The cost of an entry and its slope in the logit, one function per family of methods.

All of them start from the same terms: with :math:`e = e^{-|x|}` nothing overflows and nothing is lost where a label is
already right.

.. math:: \lambda = \ln(1 + e), \qquad -\ln p = \lambda + \max(-x, 0), \qquad -\ln(1-p) = \lambda + \max(x, 0)

A family takes the logits and labels of a block, the mask of ``large`` losses that a method selected, the ``numbers`` of
the method and the number of the epoch in memory, and its fixed ``OPTIONS``; it returns cost and slope.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from labelgap.labels import codes
from labelgap.losses.kernels.approximate import exp2, log2, reciprocal
from labelgap.losses.kernels.triton_import import tl, triton

PRESENT: tl.constexpr = tl.constexpr(codes.PRESENT)
ABSENT: tl.constexpr = tl.constexpr(codes.ABSENT)
TINY: tl.constexpr = tl.constexpr(1.1754944e-38)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


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
    """Generalized robust loss, in the letters of ``robust_form``. OPTIONS: q₂, q₃, number of epochs."""
    now = tl.load(epoch).to(tl.float32)
    progress = tl.minimum(now / OPTIONS[2], 1.0)
    start = tl.minimum((now - 1.0) / OPTIONS[2], 1.0)
    center, width = 0.5 + 0.3 * progress, 2.0 - 1.5 * progress
    both, p, n = fast_terms(x)
    log = LN2 * log2(both)
    present, absent = label == PRESENT, label == ABSENT
    distance = p - center
    v = tl.where(present | absent, 0.0, exp2(distance * distance * (-0.5 * LOG2E / (width * width))))
    g = v * reciprocal(1.0 + exp2(2.0 * LOG2E - 2.0 * LOG2E * start * p))
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

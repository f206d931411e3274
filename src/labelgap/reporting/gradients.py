"""The gradient of a loss against one logit, for each state of a label (Zhou et al. 2022, equations 9–11, figure 2)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.losses import Loss, loss
from labelgap.reporting import style
from labelgap.reporting.descriptions import find_method
from labelgap.reporting.formatting import truncate_label
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.training import Run

STATES = {"present": PRESENT, "absent": ABSENT, "unknown": UNKNOWN}
FEATURES = 8
GOLDEN = 0.6180339887498949
SHIFT = 2.5  # how far the other logits are moved to see whether a gradient depends on them
SMALL = 0.3  # below this share of the present label's gradient, the unknown label's has a panel of its own
DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (8, 3)), (0, (3, 1.5)))


@dataclass(frozen=True, eq=False)
class BatchContext:
    """The batch and the epoch in which the gradient of image 0 and class 0 is taken, after steps on the same batch."""

    logits: NDArray[np.float64]  # (B, K) of all entries; that of the entry itself is replaced
    labels: NDArray[np.int8]  # (B, K) of PRESENT, ABSENT, UNKNOWN; that of the entry itself is replaced
    features: NDArray[np.float64]  # (B, D), for methods that use them
    epoch: int = 6  # counted from 1
    epochs: int = 10  # how many are trained
    earlier_logit: float = 0.0  # the entry's own logit in the earlier epochs

    def __post_init__(self) -> None:
        images, classes = self.labels.shape
        if self.logits.shape != (images, classes) or len(self.features) != images:
            raise InputError(
                f"a batch of {images} × {classes} labels needs as many logits, and a row of features each."
            )
        if not 1 <= self.epoch <= self.epochs:
            raise InputError(f"epoch {self.epoch} of {self.epochs}: epochs are counted from 1.")


@dataclass(frozen=True, eq=False)
class GradientRegimes:
    """The gradient of a loss, times the entries, against P values of one logit, for each state of its label."""

    method: str
    logits: NDArray[np.float64]  # (P,)
    present: NDArray[np.float64]  # (P,)
    absent: NDArray[np.float64]  # (P,)
    unknown: NDArray[np.float64]  # (P,)
    depends_on_batch: bool  # whether other logits or labels of the rest of the batch change it
    depends_on_epoch: bool  # whether it is another in the first or in the last epoch
    context: BatchContext  # the rest of the batch and the epoch


def example_context(
    images: int = 16, classes: int = 20, *, epoch: int = 6, epochs: int = 10, earlier_logit: float = 0.0
) -> BatchContext:
    """Return a batch as in the middle of a training, of normal quantiles; one present, one absent label an image."""
    if images < 2 or classes < 4:
        raise InputError(f"a batch of {images} × {classes}: at least 2 images and 4 classes are needed.")
    labels = np.full((images, classes), UNKNOWN, dtype=np.int8)
    rows = np.arange(images)
    first = np.where(rows + 1 < images, (rows + 1) % classes, 0)  # the last image has class 0
    labels[rows, first], labels[rows, (first + classes // 2) % classes] = PRESENT, ABSENT
    logits = np.where(labels == PRESENT, 2.0, -3.0) + 1.5 * _normal_quantiles(images, classes)
    return BatchContext(logits, labels, _normal_quantiles(images, FEATURES), epoch, epochs, earlier_logit)


def gradient_regimes(
    method: str | Loss,
    options: Mapping[str, Any] | None = None,
    *,
    logits: ArrayLike | None = None,
    context: BatchContext | None = None,
    dependence: bool = True,
) -> GradientRegimes:
    """Differentiate a loss with respect to one logit, for a present, an absent and an unknown label.

    Args:
        method: the name of a method, or a loss that was not prepared; it is copied.
        options: the options of a method that is given by name.
        logits: ``(P,)`` values of the entry's logit; 121 from −6 to 6 when not given.
        context: the other entries, and the epoch; ``example_context()`` when not given.
        dependence: whether to find out what else the gradient depends on; False saves half of the time.

    Example:
        >>> regimes = gradient_regimes("an", logits=[0.0])
        >>> regimes.present, regimes.unknown, regimes.depends_on_batch
        (array([-0.5]), array([0.5]), False)
    """
    if isinstance(method, Loss) and options:
        raise InputError("options belong to a method given by name; a loss has its own.")
    points = np.linspace(-6, 6, 121) if logits is None else np.atleast_1d(np.asarray(logits, dtype=np.float64))
    if points.ndim != 1 or not len(points) or not np.isfinite(points).all():
        raise InputError("logits: a list of finite numbers is needed.")
    context = example_context() if context is None else context

    def create() -> Loss:
        return copy.deepcopy(method) if isinstance(method, Loss) else loss(method, **(options or {}))

    def sample(where: BatchContext) -> NDArray[np.float64]:
        return np.stack([_gradients(create, np.linspace(-6, 6, 17), state, where) for state in STATES.values()])

    base, labels = sample(context) if dependence else np.zeros(0), context.labels.copy()
    labels[0, 1::2], labels[0, 2::2] = PRESENT, ABSENT  # all others of the entry's image are known
    other_batch = replace(context, logits=context.logits + SHIFT, labels=labels)
    ends = [replace(context, epoch=epoch) for epoch in (1, context.epochs)]
    return GradientRegimes(
        method=create().name,
        logits=points,
        **{name: _gradients(create, points, state, context) for name, state in STATES.items()},
        depends_on_batch=dependence and not np.allclose(base, sample(other_batch)),
        depends_on_epoch=dependence and any(not np.allclose(base, sample(end)) for end in ends),
        context=context,
    )


def _normal_quantiles(rows: int, columns: int) -> NDArray[np.float64]:
    """Return evenly spread quantiles of the standard normal distribution, shuffled by multiples of the golden ratio."""
    shares = (GOLDEN * np.arange(1, rows * columns + 1)) % 1
    return np.array([NormalDist().inv_cdf(share) for share in shares]).reshape(rows, columns)


def _gradients(
    create: Callable[[], Loss], points: NDArray[np.float64], state: int, context: BatchContext
) -> NDArray[np.float64]:
    codes = context.labels.copy()
    codes[0, 0] = state
    table, labels = LabelTable.from_dense(codes), torch.from_numpy(codes)
    batch, features = torch.from_numpy(context.logits.copy()), torch.from_numpy(context.features)
    index = torch.arange(len(batch))
    loss_fn = create()
    loss_fn.prepare(table, epochs=context.epochs, seed=0)
    scale = 1 if loss_fn.reduction == "sum" else batch.numel()

    def logits_with(value: float) -> Tensor:
        logits = batch.clone()
        logits[0, 0] = value
        return logits

    def gradient(value: float) -> float:
        logits = logits_with(value).requires_grad_()
        cost = loss_fn(logits, labels, index=index, features=features)
        (slopes,) = torch.autograd.grad(cost.mean(), logits, allow_unused=True)
        return 0.0 if slopes is None else scale * float(slopes[0, 0])

    for epoch in range(1, context.epoch):
        loss_fn.set_epoch(epoch)
        gradient(context.earlier_logit)
        loss_fn.after_step()
        loss_fn.end_epoch(lambda: iter([(index, logits_with(context.earlier_logit))]))
    found = []
    for value in points.tolist():
        loss_fn.set_epoch(context.epoch)
        found.append(gradient(value))
        loss_fn.skip_step()
    return np.array(found)


def gradient_figure(
    regimes: GradientRegimes, revised: GradientRegimes | None = None, *, title: str = "", width: float = style.NARROW
) -> Figure:
    """Draw the gradient against the logit of a present, an absent and an unknown label, and once it is ``revised``."""
    curves: list[tuple[str, NDArray[np.float64], dict[str, Any]]] = [
        ("present", regimes.present, {"color": style.BLUE, "linewidth": 2}),
        ("absent", regimes.absent, {"color": style.VERMILLION, "linewidth": 3.2, "alpha": 0.75}),
        ("unknown", regimes.unknown, {"color": style.TEXT_COLOR, "linewidth": 1.6, "linestyle": DASHES[1]}),
    ]
    if revised is not None:
        dotted: dict[str, Any] = {"color": style.GREEN, "linewidth": 3, "linestyle": (0, (0.7, 1.5))}
        curves.append(("revised", revised.unknown, dotted))
    height = max(np.abs(values).max() for _, values, _ in curves[2:])
    small = 0 < height < SMALL * np.abs(regimes.present).max()
    figure, axes = style.make_figure(1, 2 if small else 1, width=width, height=3.1)
    for name, values, look in curves:
        axes[0].plot(regimes.logits, values, label=name, **look)
    images, classes = regimes.context.labels.shape
    notes = [f"in a batch of {images} × {classes}"] if regimes.depends_on_batch else []
    notes += [f"epoch {regimes.context.epoch} of {regimes.context.epochs}"] if regimes.depends_on_epoch else []
    _finish_axis(axes[0], truncate_label(title or regimes.method, 44) + (f"\n{', '.join(notes)}" if notes else ""))
    if small:
        for _, values, look in curves[2:]:
            axes[1].plot(regimes.logits, values, **look)
        _finish_axis(axes[1], "unknown, own scale")
    axes[0].set_ylabel("gradient")
    style.add_legend(figure, columns=4)
    return figure


def gradient_comparison_figure(regimes: Mapping[str, GradientRegimes], *, width: float = 2 * style.NARROW) -> Figure:
    """Draw the gradients of several methods or settings, in a panel for each state of the label."""
    figure, axes, columns = style.make_panels(3, width=width, each=2.3, extra=0.6)
    for axis, state in zip(axes, STATES, strict=True):
        for number, (name, each) in enumerate(regimes.items()):
            look: Any = {"color": style.cycle(number)[0], "linestyle": DASHES[number % len(DASHES)]}
            look["label"] = truncate_label(name, 40) if axis is axes[0] else None
            axis.plot(each.logits, getattr(each, state), linewidth=1.8, **look)
        _finish_axis(axis, state)
    axes[0].set_ylabel("gradient")
    style.add_legend(figure, columns=4 if columns > 1 else 1)
    return figure


def gradients_section(run: Run, page: Page) -> Markup:
    """Return the gradient of a run's loss beside that of `an`; nothing for `an`, and for a loss of somebody's own."""
    config, method = run.config, find_method(run.config.method)
    if method is None or config.method == "an" or not method.loss_class.__module__.startswith("labelgap."):
        return Markup("")
    context = example_context(epoch=min(6, config.epochs), epochs=config.epochs)
    given = {name: value for name, value in config.options.items() if name != "priors"}  # of the classes of the run
    points: dict[str, Any] = {"logits": np.linspace(-6, 6, 25), "context": context, "dependence": False}
    with warnings.catch_warnings(), suppress(InputError):  # of a schedule that the example's batch does not fit
        warnings.simplefilter("ignore")
        regimes = {each: gradient_regimes(each, own, **points) for each, own in ((config.method, given), ("an", {}))}
        columns = {
            name: {"logit": found.logits} | {state: getattr(found, state) for state in STATES}
            for name, found in regimes.items()
        }
        text = f"Gradient of {config.method} and of an against the logit of a present, an absent and an unknown label."
        figure = page.figure("gradients", text, stack_columns("method", columns), gradient_comparison_figure, regimes)
        return render_template("sections/gradients.html", method=config.method, context=context, figure=figure)
    return Markup("")


def _finish_axis(axis: Axes, title: str) -> None:
    if not any(np.any(line.get_ydata()) for line in axis.lines):
        axis.set_ylim(-1, 1)
    axis.axhline(0, color=style.MUTED_COLOR, linewidth=0.8, zorder=1)
    axis.set_title(title, loc="left", parse_math=False)
    axis.set_xlabel("logit")
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.margins(x=0.01)

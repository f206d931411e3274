"""How well scores separate the positives from the negatives of a class (Zhou et al. 2022, figures 10 and 11).

Given are the area under the ROC curve, and the overlap coefficient of both densities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

from labelgap.core.errors import InputError
from labelgap.core.seeds import numpy_generator
from labelgap.core.special import expit
from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, LabelTable
from labelgap.metrics.validation import MIN_KNOWN_LABELS
from labelgap.reporting import style
from labelgap.reporting.formatting import divide, format_measure, format_number
from labelgap.reporting.page import Page, render_template, stack_columns
from labelgap.training import Run
from labelgap.training.history import unseen_splits
from labelgap.training.run_folder import read_predictions

BINS: Final = 20  # intervals of the probability, each 0.05 wide
MAX_CLASSES: Final = 12  # classes that a figure shows: half of them the first, half the last
MAX_SCORES: Final = 1 << 25  # scores that are read at once; of more, those of random images are
TRAIN: Final = "train, unknown labels"
_BLOCK: Final = 1 << 24


@dataclass(frozen=True, eq=False)
class ClassSeparability:
    """How separable the scores of present and absent labels are, by class: AUC, and overlap; NaN without both."""

    classes: tuple[str, ...]
    present: NDArray[np.int64]  # (K,) labels known to be present
    absent: NDArray[np.int64]  # (K,) labels known to be absent
    auc: NDArray[np.float64]  # (K,)
    overlap: NDArray[np.float64]  # (K,)
    present_shares: NDArray[np.float64]  # (K, BINS) of the present labels by the interval of their score; NaN for none
    absent_shares: NDArray[np.float64]  # (K, BINS) the same of the absent labels
    images: int  # that the scores are of

    @property
    def counted(self) -> NDArray[np.int64]:
        """Numbers of the classes with at least ``MIN_KNOWN_LABELS`` of each state, the least separable first."""
        enough = np.flatnonzero(np.minimum(self.present, self.absent) >= MIN_KNOWN_LABELS)
        return enough[np.argsort(self.auc[enough], kind="stable")]

    def mean(self) -> tuple[float, float]:
        """Return the mean AUC and the mean overlap of the counted classes; NaN if none is."""
        means = (values[self.counted].mean() if len(self.counted) else np.nan for values in (self.auc, self.overlap))
        auc, overlap = map(float, means)
        return auc, overlap


@dataclass(frozen=True, eq=False)
class UnknownPositives:
    """Unknown training labels of known truth, for each of K classes, and how many are truly present."""

    classes: tuple[str, ...]
    unknown: NDArray[np.int64]
    present: NDArray[np.int64]

    @property
    def totals(self) -> tuple[int, int]:
        """How many of all classes are truly absent, and truly present."""
        return int(self.unknown.sum() - self.present.sum()), int(self.present.sum())

    @property
    def share(self) -> NDArray[np.float64]:
        """``(K,)`` of the unknown labels that are truly present; NaN where no label is unknown."""
        return divide(self.present, self.unknown)


def class_separability(scores: ArrayLike, labels: ArrayLike, classes: Sequence[str] | None = None) -> ClassSeparability:
    """Measure how separable the scores ``(N, K)`` of every class are, by the known of the labels ``(N, K)``."""
    values, codes = np.asarray(scores), np.asarray(labels)
    if values.ndim != 2 or values.shape != codes.shape:
        raise InputError(f"scores {values.shape} and labels {codes.shape}: both are images × classes, of one shape.")
    if values.size and not (values.min() >= 0 and values.max() <= 1):  # NaN as well
        raise InputError("a score is not between 0 and 1: give probabilities, not logits.")
    names = list(map(str, range(codes.shape[1]))) if classes is None else classes
    return _separability(zip(values.T, codes.T, strict=True), names, len(values))


def separability_from_trace(
    trace: Mapping[str, NDArray[Any]], classes: Sequence[str], epoch: int | None = None
) -> ClassSeparability | None:
    """Measure how separable the scores of unknown training labels are in an epoch; None without a truth."""
    if not trace or len(trace["logit"]) == 0:
        return None
    logits = trace["logit"][recorded_epoch(trace, epoch) - 1]
    known = (trace["observed"] == UNKNOWN) & (trace["truth"] != UNKNOWN) & ~np.isnan(logits)
    if not known.any():
        return None
    column, scores, truth = trace["column"][known], expit(logits[known].astype(np.float64)), trace["truth"][known]
    order = np.argsort(column, kind="stable")
    starts = np.searchsorted(column[order], np.arange(1, len(classes)))
    each = zip(np.split(scores[order], starts), np.split(truth[order], starts), strict=True)
    return _separability(each, classes, len(np.unique(trace["row"][known])))


def recorded_epoch(trace: Mapping[str, NDArray[Any]], epoch: int | None) -> int:
    """Return an epoch limited to the recorded ones, counted from 1; the last when not given."""
    epochs = len(trace["logit"])
    return epochs if epoch is None else min(max(epoch, 1), epochs)


def separability_on_unseen(run: Run, data: Dataset | None) -> dict[str, ClassSeparability]:
    """Measure how separable a run's scores of unseen images are, by what these are: of test, val or out of fold."""
    splits = {} if data is None else {split.name: split for split in data.splits if len(split)}
    for name, heading in unseen_splits(run.metrics).items():
        if (split := splits.get(name)) is None:
            continue
        rows, most = np.arange(len(split)), max(1, MAX_SCORES // max(len(run.config.classes), 1))
        if len(rows) > most:
            rows = np.sort(numpy_generator(0, "separability").choice(rows, most, replace=False))
        images = [split.labels.images[row] for row in rows.tolist()]
        scores = read_predictions(run.path, split.name, images, run.config.classes)
        if scores is not None:
            found = class_separability(scores, split.evaluation_labels.batch(rows).numpy(), run.config.classes)
            if np.isfinite(found.auc).any():
                return {heading: found}
    return {}


def separability_of_run(run: Run, data: Dataset | None) -> dict[str, ClassSeparability]:
    """Return the measures on unseen images and on unknown training labels, those that are supported."""
    found = separability_on_unseen(run, data) if run.finished else {}
    train = separability_from_trace(run.trace, run.config.classes, run.metrics.get("best_epoch"))
    found |= {} if train is None else {TRAIN: train}
    return {name: values for name, values in found.items() if len(values.counted)}


def count_unknown_positives(observed: LabelTable, truth: LabelTable) -> UnknownPositives:
    """Count the unknown labels, and those of them that are truly present, per class; in blocks of rows."""
    unknown, present = np.zeros((2, len(observed.classes)), dtype=np.int64)
    for rows in np.array_split(np.arange(len(observed)), -(-len(observed) * len(observed.classes) // _BLOCK) or 1):
        hidden, true = observed.batch(rows).numpy() == UNKNOWN, truth.batch(rows).numpy()
        unknown += (hidden & (true != UNKNOWN)).sum(axis=0)
        present += (hidden & (true == PRESENT)).sum(axis=0)
    return UnknownPositives(observed.classes, unknown, present)


def unknown_positives_from_run(run: Run, data: Dataset | None = None) -> UnknownPositives | None:
    """Count them from the data set of a run, or from a trace of all labels; None if the truth of no label is known."""
    found, trace = None, run.trace
    if data is not None and data.train.truth is not None:
        found = count_unknown_positives(data.train.labels, data.train.truth)
    elif run.config.trace == "all" and trace:
        hidden, classes = (trace["observed"] == UNKNOWN) & (trace["truth"] != UNKNOWN), run.config.classes
        columns = (trace["column"][chosen] for chosen in (hidden, hidden & (trace["truth"] == PRESENT)))
        found = UnknownPositives(classes, *(np.bincount(each, minlength=len(classes)) for each in columns))
    return found if found is not None and found.unknown.any() else None


def probability_shares(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the shares of probabilities in ``BINS`` intervals with their lower ends, ``(BINS,)``; NaN without any."""
    if not len(probabilities):
        return np.full(BINS, np.nan)
    places = np.minimum((probabilities.astype(np.float64) * BINS).astype(np.int64), BINS - 1)
    return np.bincount(places, minlength=BINS) / len(probabilities)


def _separability(
    columns: Iterable[tuple[NDArray[Any], NDArray[Any]]], classes: Sequence[str], images: int
) -> ClassSeparability:
    shares = np.full((2, len(classes), BINS), np.nan)
    counts, auc = np.zeros((2, len(classes)), dtype=np.int64), np.full(len(classes), np.nan)
    for place, (values, codes) in enumerate(columns):
        present, absent = values[codes == PRESENT], np.sort(values[codes == ABSENT])
        counts[:, place] = len(present), len(absent)
        shares[:, place] = probability_shares(present), probability_shares(absent)
        if len(present) and len(absent):  # ties count half
            below, up_to = (np.searchsorted(absent, present, side).mean() for side in ("left", "right"))
            auc[place] = (below + up_to) / (2 * len(absent))
    overlap = np.minimum(shares[0], shares[1]).sum(axis=1)
    return ClassSeparability(tuple(classes), counts[0], counts[1], auc, overlap, shares[0], shares[1], images)


def score_density_figure(
    splits: Mapping[str, ClassSeparability],
    order: Sequence[int] | None = None,
    *,
    marks: Mapping[int, str] | None = None,
    width: float = style.WIDE,
) -> Figure:
    """Draw the densities of the scores of every class, present up and absent down (Zhou et al. 2022, figure 11).

    The first of the ``splits`` orders the classes where ``order`` does not; ``marks`` are written in place of the AUC.
    """
    first = next(iter(splits.values()))
    order = first.counted[::-1].tolist() if order is None else order
    shown = style.outermost(order, MAX_CLASSES)
    names = style.fit_names((first.classes[number] for number in shown), width)
    figure, axes, columns = style.make_panels(len(splits), width=width, each=1.0 + 0.52 * max(len(shown), 1), wide=2)
    edges = np.linspace(0, 1, BINS + 1)
    for panel, (axis, (name, found)) in enumerate(zip(axes, splits.items(), strict=True)):
        states = ((found.present_shares, -1, style.VERMILLION), (found.absent_shares, 1, style.BLUE))
        for place, number in zip(style.set_class_rows(axis, names, len(order)).tolist(), shown, strict=True):
            for table, sign, color in states:
                if np.isfinite(shares := table[number]).all():
                    heights = place + sign * 0.44 * shares / shares.max()
                    axis.stairs(heights, edges, baseline=place, fill=True, color=color, alpha=0.75, linewidth=0)
            text = f"AUC {format_number(found.auc[number])}" if marks is None else marks[number]
            axis.text(1.02, place, text, va="center", color=style.MUTED_COLOR, fontsize=11)
        axis.set_xlim(0, 1.2)
        axis.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axis.set_title(name, loc="left")
        axis.tick_params(axis="y", labelleft=panel % columns == 0)
    style.label_panels(axes, columns, "score")
    look: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 9.0, "alpha": 0.75}
    colors = {"present, upwards": style.VERMILLION, "absent, downwards": style.BLUE}
    style.add_legend(figure, 2, [Line2D([], [], color=color, label=name, **look) for name, color in colors.items()])
    return figure


def unknown_positive_bars(found: UnknownPositives, *, width: float = style.WIDE) -> Figure:
    """Draw the percentage of the unknown labels of a class that are truly present (Zhou et al. 2022, figure 10)."""
    share = 100 * found.share
    counted = np.flatnonzero(np.isfinite(share))
    order = counted[np.argsort(-share[counted], kind="stable")]
    shown = style.outermost(order.tolist(), MAX_CLASSES)
    figure, (axis,) = style.make_figure(width=width, height=0.7 + 0.27 * max(len(shown), 1))
    names = style.fit_names((found.classes[number] for number in shown), width)
    places = style.set_class_rows(axis, names, len(order))
    top = float(np.nanmax(share, initial=0.0)) or 1.0
    style.draw_bars(axis, places, share[shown].tolist(), style.VERMILLION, top, 1.13 * top)
    total = 100 * found.present.sum() / max(found.unknown.sum(), 1)
    axis.axvline(total, color=style.TEXT_COLOR, linewidth=1.2, linestyle=style.DASHED)
    what = "of the unknown labels, truly present" if width > style.NARROW else "of unknown"
    axis.set_xlabel(f"% {what} (dashed: all classes, {total:.1f})")
    return figure


def separability_section(run: Run, measured: Mapping[str, ClassSeparability], page: Page) -> Markup:
    """Return what ``separability_of_run`` measured, and the share of unknown positives; nothing without either."""
    positives = unknown_positives_from_run(run, page.data)
    if not measured and positives is None:
        return Markup("")
    densities, rows = None, list[tuple[str, list[Any]]]()
    if measured:
        text = "; ".join(f"{name}: mean AUC {values.mean()[0]:.2f}" for name, values in measured.items())
        description = f"Densities of the scores of present and absent labels per class. {text}."
        columns = stack_columns("labels", {name: _columns(values) for name, values in measured.items()})
        densities = page.figure("score-densities", description, columns, score_density_figure, measured)
        first = next(iter(measured.values()))
        for number in style.outermost(first.counted[::-1].tolist(), MAX_CLASSES):
            measures = [format_number(each[number]) for each in (first.auc, first.overlap)]
            rows.append((first.classes[number], [int(first.present[number]), int(first.absent[number]), *measures]))
    return render_template(
        "sections/separability.html",
        densities=densities,
        measured=measured,
        means=[(name, *map(format_number, values.mean()), len(values.counted)) for name, values in measured.items()],
        minimum=MIN_KNOWN_LABELS,
        class_count=len(run.config.classes),
        rows=rows,
        positives=None if positives is None else _unknown_positives(positives, page),
    )


def _columns(values: ClassSeparability) -> dict[str, Any]:
    shares = {"present": values.present_shares.T, "absent": values.absent_shares.T}
    return {
        "class": values.classes,
        **{each: getattr(values, each) for each in ("present", "absent", "auc", "overlap")},
    } | {
        f"{state}_from_{place / BINS:.2f}": each for state, table in shares.items() for place, each in enumerate(table)
    }


def density_pair_section(
    runs: Mapping[str, Run], measured: Mapping[str, Mapping[str, ClassSeparability]], page: Page
) -> Markup:
    """Return the densities of `an` and `em`, or one other method, side by side, and what each class gains."""
    scored = {label: run for label, run in runs.items() if (run.metrics.get("test") or {}).get("average_precision")}
    plain = [label for label, run in scored.items() if run.config.method == "an" and measured[label]]
    others = [label for label, run in scored.items() if run.config.method != "an" and measured[label]]
    chosen = [label for label in others if scored[label].config.method == "em"] or others
    if not plain or len(chosen) != 1 or not measured[plain[0]].keys() & measured[chosen[0]].keys():
        return Markup("")
    pair = {label: scored[label].metrics["test"]["average_precision"] for label in (plain[0], chosen[0])}
    before, after = pair.values()
    names = next(iter(measured[chosen[0]].values())).classes
    gains = {
        number: 100 * (after[name] - before[name])
        for number, name in enumerate(names)
        if before.get(name) is not None and after.get(name) is not None
    }
    order = sorted(gains, key=lambda number: -gains[number])
    kinds = [kind for kind in measured[plain[0]] if kind in measured[chosen[0]]]
    panels = {f"{label}: {kind}": measured[label][kind] for kind in kinds for label in pair}
    marks = {number: f"{gain:+.1f}" for number, gain in gains.items()}
    own = {
        name: {**_columns(found), "gain": [gains.get(each) for each in range(len(names))]}
        for name, found in panels.items()
    }
    mean = sum(gains.values()) / max(len(gains), 1)
    text = f"Densities of the scores per class of {plain[0]} and {chosen[0]}, which gains {mean:+.1f} mAP."
    draw = partial(score_density_figure, order=order, marks=marks)
    figure = page.figure("density-pair", text, stack_columns("labels", own), draw, panels)
    rows = [
        (names[each], [format_measure(before[names[each]]), format_measure(after[names[each]]), marks[each]])
        for each in order
    ]
    return render_template("sections/density_pair.html", pair=list(pair), figure=figure, rows=rows, mean=f"{mean:+.1f}")


def _unknown_positives(found: UnknownPositives, page: Page) -> dict[str, Any]:
    missing, unknown = int(found.present.sum()), int(found.unknown.sum())
    share = format_measure(missing / unknown)
    description = f"Unknown labels that are truly present, by class; of all classes {share} percent."
    columns = {"class": found.classes, "unknown": found.unknown, "truly_present": found.present, "share": found.share}
    figure = page.figure("unknown-positives", description, columns, unknown_positive_bars, found)
    partly = page.data is not None and page.data.train.labels.counts().total[2] > unknown
    return {"figure": figure, "missing": missing, "unknown": unknown, "share": share, "partly": partly}

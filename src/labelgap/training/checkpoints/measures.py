"""What the stored measures of a run say: whether they hold an accuracy or an estimate, and the sentences about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from labelgap.core.text import pluralize
from labelgap.metrics.validation import MAX_CHANCE

_MIN_LIFT: Final = 3 / 4
"""How far from chance to 1 an estimated mAP has to be: scores that rank weakly leave the prevalence open, and the
estimate is then too high, by tens of points."""


def describe_groups(measured: Mapping[str, Any]) -> str | None:
    """Return the mAP of the groups of classes, with the known absent labels of each; None where there are none.

    Example:
        >>> rows = [{"group": 1, "map": 0.25, "absent": 1200}, {"group": 2, "map": None, "absent": 0}]
        >>> describe_groups({"groups": rows})
        'mAP by known training labels, fewest first (known absent): G1 25.00 (1,200), G2 – (0)'
    """
    values = [
        f"G{row['group']} {'–' if row['map'] is None else format(100 * row['map'], '.2f')} ({row['absent']:,})"
        for row in measured.get("groups") or ()
    ]
    return f"mAP by known training labels, fewest first (known absent): {', '.join(values)}" if values else None


def has_estimate(measured: Mapping[str, Any]) -> bool:
    """Return whether a split has an estimated mAP that is far enough from its chance.

    Example:
        >>> has_estimate({"map_estimated": 0.864, "chance_estimated": 0.071})
        True
        >>> has_estimate({"map_estimated": 0.77, "chance_estimated": 0.477})  # of a run by an older version
        False
    """
    value, chance = measured.get("map_estimated"), measured.get("chance_estimated")
    if value is None or chance is None:
        return False
    return bool(chance <= MAX_CHANCE and value - chance >= _MIN_LIFT * (1 - chance))


def describe_kept_epoch(metrics: Mapping[str, Any]) -> str:
    """Return which epoch of a finished run was kept, and how often its training diverged.

    Example:
        >>> describe_kept_epoch({"best_epoch": 0, "epochs": 10})
        'the linear head was kept: training the whole network for 10 epochs did not improve the val score'
        >>> describe_kept_epoch({"best_epoch": 2, "epochs": 10, "divergences": 1})
        'epoch 2 of 10 was kept; training diverged once, and the learning rates were halved'
    """
    epochs, times = pluralize(metrics["epochs"], "epoch"), metrics.get("divergences", 0)
    kept = f"epoch {metrics['best_epoch']} of {metrics['epochs']} was kept"
    if metrics["best_epoch"] == 0:
        kept = f"the linear head was kept: training the whole network for {epochs} did not improve the val score"
    count = "once" if times == 1 else f"{times} times"
    return f"{kept}; training diverged {count}, and the learning rates were halved" if times else kept


def describe_estimated(measured: Mapping[str, Any]) -> str | None:
    """Return the estimated mAP of a split with its chance and its assumption; None where there is none.

    Example:
        >>> estimated = {"map_estimated": 0.864, "chance_estimated": 0.071, "known_absent": 20}
        >>> describe_estimated({**estimated, "classes_estimated": 5, "classes": 16})
        'about 86.4 over 5 of 16 classes (chance 7.1), if labels are missing at random; 20 absent labels are known'
    """
    if not has_estimate(measured):
        return None
    value, chance, absent = (
        100 * measured["map_estimated"],
        100 * measured["chance_estimated"],
        measured["known_absent"],
    )
    known = pluralize(absent, "absent label is", "absent labels are") if absent else "no absent label is"
    over = f"{measured['classes_estimated']:,} of {measured['classes']:,} classes"
    return f"about {value:.1f} over {over} (chance {chance:.1f}), if labels are missing at random; {known} known"


def has_accuracy(metrics: Mapping[str, Any]) -> bool:
    """Return whether the known labels support an accuracy of a run on images it has not seen, by its ``metrics``."""
    return any(metrics[split]["map"] is not None for split in unseen_splits(metrics))


def unseen_splits(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the splits that were scored by models that have not seen their labels, the best evidence first.

    Train is one of them where a run was cross-validated. The values are headings.

    Example:
        >>> unseen_splits({"train": {"map": 0.5}, "cross_validation": {"folds": 5}})
        {'train': 'out of fold'}
    """
    names = {"test": "test", "val": "val"}
    if metrics.get("cross_validation"):
        names["train"] = "out of fold"
    return {split: heading for split, heading in names.items() if metrics.get(split)}

"""The labels of a table that a person decided, as ``labelgap apply`` listed them beside it.

A review asks about the likeliest labels first, so the absents that it finds are the hardest ones, and no sample of all.
A loss that weighs a known absent more than an unknown label learns too much from them. On albums drawn from the
training images of VOC 2012 with one or two known presents per image (2048 features of a ResNet-50, mAP on the other
training images, mean of six draws, each method at its best penalty, by a prototype of the heads), after the 10 or 30
likeliest unknown labels of each class were decided:

=========================  =========  ==========================  ====================
images, decided per class  no review  all decided: em / gr / an   presents only: em
=========================  =========  ==========================  ====================
430, 10                    78.8       70.1 / 78.1 / 78.3          79.7
430, 30                    78.8       56.4 / 77.7 / 78.8          80.2
2,000, 30                  84.8       81.9 / 84.7 / 84.1          85.2
=========================  =========  ==========================  ====================

So `auto` without val leaves such absents out of training, thresholds and estimates (`--reviewed-absents use` does
not). They stay in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelgap.data.dataset import Dataset
from labelgap.labels import ABSENT, LabelTable
from labelgap.labels.revisions import provenance_path, read_provenance


def leave_out_ranked_absents(data: Dataset) -> tuple[Dataset, int]:
    """Return data without the absents of train that a person decided, but of complete images, and how many."""
    labels = data.train.labels
    decided = reviewed_labels(data, {"train": labels})
    if not len(decided):
        return data, 0
    classes = len(labels.classes)
    partial = (np.diff(labels.starts) < classes)[labels.rows]
    ranked = np.isin(labels.rows * classes + labels.columns, decided) & (labels.values == ABSENT) & partial
    if not ranked.any():
        return data, 0
    return replace(data, train=replace(data.train, labels=labels.keep(~ranked))), int(ranked.sum())


def reviewed_labels(data: Dataset, tables: Mapping[str, LabelTable]) -> NDArray[np.int64]:
    """Return the labels that a person decided and nobody changed since: positions ``row · K + class``, ascending."""
    source = data.recipe.get("path")
    entries = read_provenance(provenance_path(Path(source))) if source else []
    decided = [entry.revision for entry in entries if entry.by_person]
    number = {name: column for column, name in enumerate(data.classes)}
    found: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    before = 0
    for table in tables.values():
        row = {name: number for number, name in enumerate(table.images)} if decided else {}
        own = [each for each in decided if each.image in row and each.class_name in number]
        rows = np.array([row[each.image] for each in own], dtype=np.int64)
        columns = np.array([number[each.class_name] for each in own], dtype=np.int64)
        same = table.codes_at(rows, columns) == np.array([each.value for each in own], dtype=np.int8)
        found.append((before + rows[same]) * len(data.classes) + columns[same])
        before += len(table)
    return np.unique(np.concatenate(found))

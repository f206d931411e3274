"""``method="auto"``: the rule that chooses a method from the label states and the protocol, and its evidence.

Val mAP of linear heads on fixed features, mean over the draws of the hidden labels: of `gr`, of `iu`, and of the best
of ten methods (docs/results/auto.md has all of them, the spread, test and the command).

============  ===================  ===================  ===================  ===================  ===================
labels known  voc                  photos               digits               music                cells
============  ===================  ===================  ===================  ===================  ===================
1 present     86.4 – 86.4 gr       78.3 – 79.0 em       56.4 – 56.4 gr       66.2 – 66.3 wan      82.9 – 83.5 em
1 + 1 absent  86.3 81.9 86.3 gr    77.9 77.2 78.5 wan   56.6 55.0 56.6 gr    66.8 66.3 66.8 wan   83.1 84.6 84.6 iu
all present   88.2 – 88.4 role     80.8 – 80.8 gr       60.5 – 62.4 an-ls    67.2 – 68.8 an-ls    89.8 – 91.0 an
a tenth       74.1 77.5 78.1 epr   50.6 64.9 65.8 epr   51.1 52.1 52.6 role  59.8 65.1 65.1 iu    83.1 84.7 84.7 iu
a quarter     82.7 82.5 83.5 role  68.0 73.0 73.2 epr   56.3 56.5 56.7 role  66.1 65.9 66.1 gr    88.4 88.6 88.8 role
half          86.0 85.5 86.3 role  76.0 77.3 77.3 iu    59.6 59.5 59.6 role  67.2 67.4 67.5 role  89.9 90.1 90.1 epr
============  ===================  ===================  ===================  ===================  ===================

With one present of each image, `gr` and `em` are within each other's spread on all five; the simpler `an`, `an-ls`
and `wan` are not on VOC. `em` is 2.5 behind on VOC once one absent of each is known, and its option was tuned to the
data, so `gr` is taken for both. Where all presents are known and nothing else, `an` and `an-ls` are ahead by 1.2 to
1.9 on three of five. The label states do not say whether more presents exist; whoever knows that there are none reads
the others as absent (``--unlisted absent``), which gives `bce-ls`. With one absent of each image as well, `gr` is 4.4
ahead of `iu` on VOC and 1.5 behind it on the cells.

Where all labels are known, smoothed targets (`bce-ls`) are ahead of plain ones (`bce`) on four of five: voc 88.3 and
87.3, photos 80.0 and 79.4, digits 62.4 and 62.0, music 68.8 and 68.3, cells 90.8 and 91.0; and for a whole network that
is trained further (VOC2012, ResNet-50 at 448 px, val) 92.0 and 90.8. A small network from random weights is better
without them: 97.6 and 98.0 on the digits (docs/digits.md).

Of labels known at random, few make `gr` fail. In the row "a tenth" 13 to 24 % of the images have a known present, and
`iu`, which uses known labels only, is ahead on all five; in "a quarter" 31 to 42 % (digits 51 %), and it is 5.0 ahead
on the photos and within 0.5 on the others; in "half" 49 to 80 %, and each is ahead somewhere. `epr` and `role` are
ahead of `iu` by up to 1.0, and need the number of presents.

From random weights another method is best: end-to-end on the digits with one present of each, `ll-r` reaches 91.9, `em`
88.8, `gr` 85.7 and `an` 83.5 (docs/digits.md; the val scores agree). With one seed (docs/compare.md): one present and
one absent of each, `ll-r` 93.3, `iu` 90.8, `gr` 87.4, `an` 84.4; a tenth of all labels at random, `ll-r` 75.0, `iu`
74.0, `gr` 66.3, `an` 58.6.

For a linear head methods are compared on val, or by cross-validation: ``candidates.auto_methods`` has which. The rule
here serves where nothing is compared: whole networks, presets, and very many labels.

A pretrained network that is trained further, `linear-init` or `end-to-end`, gets the method of its fixed features. Val
mAP on the whole of VOC2012, ResNet-50, 1 present of each: at 224 px, linear-init `gr` 83.9, `ll-r` 83.0, `em` 82.9
(docs/results/recipe.md); at 448 px, end-to-end by Kim 2022's settings `gr` 88.9, `ll-r` 88.3, `ll-ct` 88.3, `em` 87.3;
a tenth of all labels at random, 224 px, linear-init: `iu` 77.9, `gr` 71.7, `em` 61.3. One seed each. (Kim et al., CVPR
2022, Table 2, find `ll-r` ahead of `an` and `role` on the whole of VOC and COCO.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT

FEW_TAGGED: Final = 0.4
"""Where a smaller share of the images has a known present, `gr` learns that no class is ever present."""


class MethodChoice(NamedTuple):
    """A method and the reason for it."""

    method: str
    why: str


def tagged_share(table: LabelTable) -> float:
    """Return the share of the images that have a known present.

    Example:
        >>> tagged_share(LabelTable.from_dense([[1, 1], [0, -1]]))
        0.5
    """
    return len(np.unique(table.rows[table.values == PRESENT])) / len(table)


def choose_method(table: LabelTable, protocol: str, *, pretrained: bool = True) -> MethodChoice:
    """Choose a method for a training table.

    - no label unknown: `bce-ls`, or `bce` for a network from random weights;
    - "end-to-end" from random weights: `ll-r`, which needs a network that memorizes late;
    - pretrained features, fixed or trained further: `iu` where absents are known and fewer than two fifths of the
      images have a known present; else `gr`.

    Example:
        >>> choose_method(LabelTable.from_dense([[1, 0], [0, 1]]), "linear").method
        'bce-ls'
        >>> choose_method(LabelTable.from_dense([[1, -1], [-1, 1]]), "linear").method
        'gr'
    """
    present, absent, unknown = table.counts().total
    if present == 0:
        raise InputError("no label is known to be present: there is nothing to learn from. Tag a few images.")
    random_start = protocol == "end-to-end" and not pretrained
    if unknown == 0:
        return MethodChoice("bce" if random_start else "bce-ls", "every label is known")
    share = f"{100 * unknown / (present + absent + unknown):.0f} % of the labels are unknown"
    if random_start:
        return MethodChoice("ll-r", f"{share}, and the network starts from random weights")
    tagged = tagged_share(table)
    if absent and tagged < FEW_TAGGED:
        return MethodChoice(
            "iu", f"{share}, only {100 * tagged:.0f} % of the images have a known present, and absents are known"
        )
    return MethodChoice("gr", share)

"""``method="auto"``: the rule that chooses a method from the label states and the protocol, and its evidence.

Test mAP of linear heads on fixed features, by ``labelgap compare``: each method at the learning rate chosen on val,
three seeds (docs/voc2012.md has all methods, the spread and the commands). "VOC": 2048 features of a ResNet-50;
"photos": 1,280 VOC photos through efficientnet-lite0.

===============================  =====  =====  =====  =====  =====  =====
data, labels known               gr     em     an-ls  role   iu     ll-r
===============================  =====  =====  =====  =====  =====  =====
VOC, 1 present of each           85.5   85.6   84.6   84.8          84.2
photos, 1 present of each        81.4   80.9   78.1   79.7          79.8
digits, 1 present of each        55.1   55.2   52.3   54.7          52.2
VOC, all present                 87.2   87.0   87.4   87.4          85.8
VOC, 1 present, 1 absent         85.3   82.0   84.6   84.4   80.3   84.0
VOC, 1 present, 6 absent         85.3   83.7   84.6          84.1
VOC, half of all at random       85.3   84.0   83.6   83.5   84.2   82.7
VOC, a quarter at random         82.4   79.9   77.1          81.8
VOC, a tenth at random           71.1   64.1   55.6   54.5   77.5   72.8
===============================  =====  =====  =====  =====  =====  =====

With positives only, `gr` and `em` are equal in the first three rows; `gr` has no option that was tuned to the data, and
is better where some absents are known. It fails where few images have a known present (15 % in the last row, 34 % in
the one above): there `iu`, which uses known labels only, is better. The val scores agree (VOC, 1 present: gr 86.3,
em 86.3, role 85.7; 1 + 1: gr 86.3, an-ls 85.4; a tenth: iu 78.4, gr 72.2; a quarter: equal, iu 82.7, gr 82.6), so the
rule does not depend on test.

From random weights another method is best: end-to-end on the digits with one present of each, `ll-r` reaches 91.9, `em`
88.8, `gr` 85.7 and `an` 83.5 (docs/digits.md; the val scores agree). With one seed (docs/compare.md): one present and
one absent of each, `ll-r` 93.3, `iu` 90.8, `gr` 87.4, `an` 84.4; a tenth of all labels at random, `ll-r` 75.0, `iu`
74.0, `gr` 66.3, `an` 58.6.

Where there is no val, a linear head is cross-validated; ``candidates.auto_methods`` has the methods that are compared.

A pretrained network that is trained further, `linear-init` or `end-to-end`, gets the method of its fixed features. Val
mAP on the whole of VOC2012, ResNet-50, 1 present of each: at 224 px, linear-init `gr` 83.9, `ll-r` 83.0, `em` 82.9
(docs/results/recipe.md); at 448 px, end-to-end by Kim 2022's settings `gr` 88.9, `ll-r` 88.3, `ll-ct` 88.3, `em` 87.3.
One seed each. (Kim et al., CVPR 2022, Table 2, find `ll-r` ahead of `an` and `role` on the whole of VOC and COCO.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.labels.codes import PRESENT

__all__ = ["MethodChoice", "choose_method"]

FEW_TAGGED: Final = 0.4
"""Where a smaller share of the images has a known present, `gr` learns that no class is ever present."""


class MethodChoice(NamedTuple):
    """A method and the reason for it."""

    method: str
    why: str


def choose_method(table: LabelTable, protocol: str, *, pretrained: bool = True) -> MethodChoice:
    """Choose a method for a training table.

    - no label unknown: `bce`;
    - "end-to-end" from random weights: `ll-r`, which needs a network that memorizes late;
    - pretrained features, fixed or trained further: `iu` where absents are known and fewer than two fifths of the
      images have a known present; else `gr`.

    Example:
        >>> choose_method(LabelTable.from_dense([[1, 0], [0, 1]]), "linear").method
        'bce'
        >>> choose_method(LabelTable.from_dense([[1, -1], [-1, 1]]), "linear").method
        'gr'
    """
    present, absent, unknown = table.counts().total
    if present == 0:
        raise InputError("no label is known to be present: there is nothing to learn from. Tag a few images.")
    if unknown == 0:
        return MethodChoice("bce", "every label is known")
    share = f"{100 * unknown / (present + absent + unknown):.0f} % of the labels are unknown"
    if protocol == "end-to-end" and not pretrained:
        return MethodChoice("ll-r", f"{share}, and the network starts from random weights")
    tagged = len(np.unique(table.rows[table.values == PRESENT])) / len(table)
    if absent and tagged < FEW_TAGGED:
        return MethodChoice(
            "iu", f"{share}, only {100 * tagged:.0f} % of the images have a known present, and absents are known"
        )
    return MethodChoice("gr", f"{share}, and training starts with pretrained features")

"""``method="auto"``: which method, from the states of the labels and the protocol. The rule and its evidence.

One observed positive per image and nothing else, test mAP (docs/voc2012.md and docs/digits.md have the commands):

==========================================  =====  =====  =====  =====  =====
data and protocol                           an     an-ls  role   em     ll-r
==========================================  =====  =====  =====  =====  =====
VOC 2012, ResNet-50 features, linear        82.69  84.53  84.86  85.59  84.25
digits, small-cnn, end-to-end               83.5   83.2   82.5   88.8   91.9
==========================================  =====  =====  =====  =====  =====

So `em` on fixed features and `ll-r` where the whole network learns. Val orders these five in the same way at the top
(VOC: em 86.2, role 85.6; digits: ll-r 92.0, em 90.0), so the rule does not rest on test.
"""

from __future__ import annotations

from typing import NamedTuple

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable

__all__ = ["Choice", "choose_method"]


class Choice(NamedTuple):
    """A method, and the sentence that says why."""

    method: str
    why: str


def choose_method(table: LabelTable, protocol: str) -> Choice:
    """Choose a method for a training table.

    - nothing unknown: `bce`, there is no gap to bridge;
    - some unknown, on fixed features: `em`;
    - some unknown, training the whole network: `ll-r`, which relies on a network that memorises late.

    Example:
        >>> choose_method(LabelTable.from_dense([[1, 0], [0, 1]]), "linear").method
        'bce'
    """
    present, absent, unknown = table.counts().total
    if present == 0:
        raise InputError("no label is known to be present: there is nothing to learn from. Tag a few images.")
    if unknown == 0:
        return Choice("bce", "every label is known")
    share = f"{100 * unknown / (present + absent + unknown):.0f} % of the labels are unknown"
    if protocol == "linear":
        return Choice("em", f"{share}, and the features are fixed")
    return Choice("ll-r", f"{share}, and the whole network is trained")

"""What ``method="auto"`` chooses."""

from __future__ import annotations

import numpy as np
import pytest

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.losses import methods
from labelgap.training.auto import choose_method

PARTIAL = LabelTable.from_dense([[1, -1, -1], [-1, 1, 0]])


def test_full_labels_get_smoothed_targets_unless_the_network_starts_at_random() -> None:
    full = LabelTable.from_dense([[1, 0], [0, 1]])
    assert choose_method(full, "end-to-end")[0] == choose_method(full, "linear")[0] == "bce-ls"
    assert choose_method(full, "end-to-end", pretrained=False)[0] == "bce"


def test_a_network_from_random_weights_gets_another_method_than_pretrained_features() -> None:
    chosen = choose_method(PARTIAL, "linear")
    assert chosen[0] in methods() and "50 %" in chosen[1]
    with pytest.raises(InputError, match="nothing to learn"):
        choose_method(LabelTable.from_dense([[0, -1]]), "linear")
    assert chosen == choose_method(PARTIAL, "linear-init") == choose_method(PARTIAL, "end-to-end")
    assert choose_method(PARTIAL, "end-to-end", pretrained=False)[0] != chosen[0]


def test_where_few_images_have_a_known_present_and_absents_are_known_the_unknown_are_ignored() -> None:
    codes = np.full((10, 4), -1, dtype=np.int8)
    codes[:2, 0] = 1
    assert choose_method(LabelTable.from_dense(codes), "linear")[0] == "gr", "positives alone teach iu nothing"
    codes[:, 1] = 0
    method, why = choose_method(LabelTable.from_dense(codes), "linear")
    assert method == "iu" and "20 %" in why
    codes[2, 2] = 1
    assert choose_method(LabelTable.from_dense(codes), "linear")[0] == "iu"
    codes[3, 2] = 1
    assert choose_method(LabelTable.from_dense(codes), "linear")[0] == "gr"

"""What ``method="auto"`` chooses."""

from __future__ import annotations

import pytest

from labelgap.core.errors import InputError
from labelgap.labels import LabelTable
from labelgap.objectives import methods
from labelgap.training.auto import choose_method

PARTIAL = LabelTable.from_dense([[1, -1, -1], [-1, 1, 0]])


def test_full_labels_need_no_special_method() -> None:
    assert choose_method(LabelTable.from_dense([[1, 0], [0, 1]]), "end-to-end").method == "bce"


@pytest.mark.parametrize("protocol", ["linear", "end-to-end"])
def test_the_choice_exists_and_says_how_much_is_unknown(protocol: str) -> None:
    chosen = choose_method(PARTIAL, protocol)
    assert chosen.method in methods()
    assert "50 %" in chosen.why


def test_nothing_known_to_be_present_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to learn"):
        choose_method(LabelTable.from_dense([[0, -1]]), "linear")

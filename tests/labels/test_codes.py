from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from labelgap.core.errors import InputError
from labelgap.labels import ABSENT, PRESENT, UNKNOWN, as_codes


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_signed_numbers_of_every_width_are_codes(dtype: str) -> None:
    codes = as_codes(np.array([[1, 0], [-1, 1]], dtype=dtype))
    assert codes.dtype == np.int8
    assert codes.tolist() == [[PRESENT, ABSENT], [UNKNOWN, PRESENT]]


def test_tensors_lists_single_numbers_and_numbers_without_sign_are_read_too() -> None:
    for dtype in ("bool", "uint8", "uint64"):
        assert as_codes(np.array([1, 0, 1], dtype=dtype)).tolist() == [PRESENT, ABSENT, PRESENT]
    assert as_codes(torch.tensor([[1.0, math.nan]])).tolist() == [[PRESENT, UNKNOWN]]
    assert as_codes([[True, False]]).tolist() == [[PRESENT, ABSENT]]
    assert as_codes(-1) == UNKNOWN
    assert as_codes([]).shape == (0,)


@pytest.mark.parametrize("wrong", [2, -2, 0.5, -0.999, math.inf, -math.inf, 127, -128, 256, 257, 2**40, 1e300])
def test_anything_else_is_refused_with_its_place(wrong: float) -> None:
    with pytest.raises(InputError, match=r"^labels holds .* at \(1, 0\), and 2 such values in all: a label is 1"):
        as_codes(np.array([[1, 0], [wrong, wrong]]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([1, 255], dtype=np.uint8), r"truth holds 255 at \(1,\)"),  # it does not become a code of int8
        (["1", "0"], "truth must be numbers"),
        ([None, 1], "truth must be numbers"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "truth must be numbers"),
        ([[1, 0], [1]], "as long as the first"),
        (torch.eye(2).to_sparse(), "sparse"),
    ],
)
def test_what_is_no_code_is_refused(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_codes(values, what="truth")

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


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "uint32", "uint64"])
def test_what_has_no_sign_says_present_and_absent(dtype: str) -> None:
    assert as_codes(np.array([1, 0, 1], dtype=dtype)).tolist() == [PRESENT, ABSENT, PRESENT]


def test_tensors_lists_and_single_numbers_are_read_too() -> None:
    assert as_codes(torch.tensor([[1.0, math.nan]])).tolist() == [[PRESENT, UNKNOWN]]
    assert as_codes([[True, False]]).tolist() == [[PRESENT, ABSENT]]
    assert as_codes(-1) == UNKNOWN
    assert as_codes([]).shape == (0,)


@pytest.mark.parametrize("wrong", [2, -2, 0.5, -0.999, math.inf, -math.inf, 127, -128, 256, 257, 2**40, 1e300])
def test_anything_else_is_refused_with_its_place(wrong: float) -> None:
    with pytest.raises(InputError, match=r"^labels holds .* at \(1, 0\), and 2 such values in all: a label is 1"):
        as_codes(np.array([[1, 0], [wrong, wrong]]))


@pytest.mark.parametrize("wrong", [255, 2, 254])
def test_an_unsigned_number_does_not_wrap_around_into_a_code(wrong: int) -> None:
    with pytest.raises(InputError, match=f"truth holds {wrong} at"):
        as_codes(np.array([1, wrong], dtype=np.uint8), what="truth")


@pytest.mark.parametrize("values", [["1", "0"], [None, 1], [1j], np.array(["2020-01-01"], dtype="datetime64[D]")])
def test_what_is_no_number_is_refused(values: Any) -> None:
    with pytest.raises(InputError, match="labels must be numbers"):
        as_codes(values)


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="every row as long as the first"):
        as_codes([[1, 0], [1]])

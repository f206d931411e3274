"""Special functions against SciPy's."""

import numpy as np
import pytest
import scipy.special
from scipy.stats import t

from labelgap.core.special import expit, logit, student_quantile

ENDS = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 88.8, -88.8, 745.0, -745.0, 1e4, -1e4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_and_log_odds_are_those_of_scipy_at_the_ends_as_well(dtype: type[np.floating]) -> None:
    values = np.concatenate([np.random.default_rng(0).normal(0, 20, 1000), ENDS]).astype(dtype)
    shares = np.append(np.random.default_rng(0).random(1000), [0, 1, 0.5, np.nan]).astype(dtype)
    assert expit(values).dtype == logit(shares).dtype == dtype
    np.testing.assert_allclose(expit(values), scipy.special.expit(values), rtol=1e-6, atol=float(np.finfo(dtype).tiny))
    np.testing.assert_allclose(logit(shares), scipy.special.logit(shares), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.bool_])
def test_narrow_numbers_are_computed_in_float32(dtype: type[np.generic]) -> None:
    values = np.array([0, 1, 1], dtype=dtype)
    assert expit(values).dtype == logit(values).dtype == np.float32
    np.testing.assert_allclose(expit(values), scipy.special.expit(values.astype(np.float32)), rtol=1e-6)
    assert logit(values).tolist() == [-np.inf, np.inf, np.inf]


@pytest.mark.parametrize("freedom", [1, 2, 4, 29, 1000, 10**6])
def test_quantiles_of_student_are_those_of_scipy(freedom: int) -> None:
    shares = np.array([[0.0001, 0.01, 0.3], [0.5, 0.975, 0.999]])
    np.testing.assert_allclose(student_quantile(freedom, shares), t.ppf(shares, freedom), rtol=1e-6, atol=1e-12)

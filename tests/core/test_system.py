"""What the C library does with memory that is freed."""

import resource
import sys

import numpy as np
import pytest

from labelgap.core.system import freed_memory_is_kept


def faults() -> int:
    """Make a large array several times, and return how often the system had to give a page."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        np.ones(1 << 23)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of Linux")
def test_freed_memory_is_used_again_in_the_block_and_given_back_after_it() -> None:
    before = faults()
    with freed_memory_is_kept(), freed_memory_is_kept():
        assert faults() < before / 4
    with pytest.raises(ZeroDivisionError), freed_memory_is_kept():
        1 / 0  # noqa: B018
    assert faults() > before / 2

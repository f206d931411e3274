"""What the C library does with memory that is freed."""

import resource
import sys

import pytest

from labelgap.core.system import freed_memory_is_kept


def faults() -> int:
    """Make a large array several times, and return how often the system had to give a page."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bytearray(1 << 26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of Linux")
def test_freed_memory_is_used_again_in_the_block_and_given_back_after_it() -> None:
    with freed_memory_is_kept():
        with freed_memory_is_kept():
            pass
        faults()
        assert faults() < 1000
    with pytest.raises(ZeroDivisionError), freed_memory_is_kept():
        1 / 0  # noqa: B018
    assert faults() > 10_000

"""What the C library does with memory that is freed."""

import sys

import pytest

from labelgap.core.system import freed_memory_is_kept, used_memory

LARGE = 1 << 28


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is one of Linux")
def test_freed_memory_is_kept_until_the_last_block_ends() -> None:
    before = used_memory()
    with pytest.raises(ZeroDivisionError), freed_memory_is_kept():
        with freed_memory_is_kept():
            pass
        bytearray(LARGE)
        assert used_memory() - before > LARGE // 2
        1 / 0  # noqa: B018
    assert used_memory() - before < LARGE // 2
    bytearray(LARGE)
    assert used_memory() - before < LARGE // 2

"""Triton, or a stand-in where it is not installed: the modules of kernels can be imported, but nothing in them runs.

No module but those of kernels imports this one: importing Triton takes time.
"""

from __future__ import annotations

from typing import Any, cast


class _StandIn:
    """Every decorator and constant of Triton, as something that returns what it is given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def unchanged(value: Any = None, **_: Any) -> Any:
            return unchanged if value is None else value

        return unchanged


try:
    import triton as triton
    import triton.language

    tl = triton.language
except ImportError:
    triton = tl = cast(Any, _StandIn())

"""Studies of many runs: the demo, the comparison of methods (``compare``), simulated reviews, and their folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.core.lazy import lazy_names

if TYPE_CHECKING:
    from labelgap.studies.demo import run_demo
    from labelgap.studies.study import Study, StudyMember, open_study

__all__ = ["Study", "StudyMember", "open_study", "run_demo"]

__getattr__ = lazy_names(__name__, "study", "demo")

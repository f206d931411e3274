"""Studies of many runs: the demo, the comparison of methods (``compare``), simulated reviews, and their folders."""

from labelgap.studies.demo import run_demo
from labelgap.studies.study import Study, StudyMember, open_study

__all__ = ["Study", "StudyMember", "open_study", "run_demo"]

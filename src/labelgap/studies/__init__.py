"""Many runs: the demo, the comparison of methods, and what they came to."""

from labelgap.studies.compare.comparison import Comparison
from labelgap.studies.compare.runner import compare
from labelgap.studies.demo import run_demo
from labelgap.studies.study import Study, StudyMember, open_study

__all__ = ["Comparison", "Study", "StudyMember", "compare", "open_study", "run_demo"]

"""Many runs: the demo, the comparison of methods, and what they came to."""

from labelgap.studies.compare import compare
from labelgap.studies.comparison import Comparison
from labelgap.studies.demo import run_demo
from labelgap.studies.study import Member, Study, open_study

__all__ = ["Comparison", "Member", "Study", "compare", "open_study", "run_demo"]

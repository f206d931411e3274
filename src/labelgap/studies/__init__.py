"""Many runs: the demo, and what compares them."""

from labelgap.studies.demo import run_demo
from labelgap.studies.study import Member, Study, open_study

__all__ = ["Member", "Study", "open_study", "run_demo"]

"""Which unknown labels are probably present, and which known ones look wrong.

Every image is scored by models that have not seen its labels. Scores are made comparable between classes by what held-
out known labels tell, ranked while images pass by, and written as ``candidates.parquet``, which the review page reads.
"""

from labelgap.audit.budget import BudgetCurve, budget_curve
from labelgap.audit.candidates import Audit, open_audit
from labelgap.audit.find_missing import find_missing

__all__ = ["Audit", "BudgetCurve", "budget_curve", "find_missing", "open_audit"]

"""Compare methods: linear heads on the same features, each method at the setting that val chooses.

``compare`` trains and measures them; a ``Comparison`` holds the results and reads them back from the folder.
"""

from labelgap.studies.compare.comparison import Comparison
from labelgap.studies.compare.runner import compare

__all__ = ["Comparison", "compare"]

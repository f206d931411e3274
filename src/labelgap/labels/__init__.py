"""Labels in three states: present, absent, unknown.

``LabelTable`` holds the observed labels of all images; ``Revisions`` hold what models and people say beyond them.
``masking`` draws a partial table from a full one, and ``io`` reads and writes files.
"""

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, as_codes
from labelgap.labels.io import SPLITS, TableFile, TableOptions
from labelgap.labels.masking import paper_split
from labelgap.labels.revisions import HUMAN_SOURCES, Revision, Revisions
from labelgap.labels.sparse import LabelCounts, SoftLabels
from labelgap.labels.table import LabelTable

__all__ = [
    "ABSENT",
    "HUMAN_SOURCES",
    "LabelCounts",
    "LabelTable",
    "PRESENT",
    "Revision",
    "Revisions",
    "SPLITS",
    "SoftLabels",
    "TableFile",
    "TableOptions",
    "UNKNOWN",
    "as_codes",
    "paper_split",
]

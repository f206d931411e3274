"""The label table in three states, its revisions, and how a partial table is drawn from a full one."""

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN, as_codes
from labelgap.labels.draws import paper_split
from labelgap.labels.revisions import PERSON_SOURCES, Revision, Revisions
from labelgap.labels.table import Counts, LabelTable

__all__ = [
    "ABSENT",
    "Counts",
    "LabelTable",
    "PERSON_SOURCES",
    "PRESENT",
    "Revision",
    "Revisions",
    "UNKNOWN",
    "as_codes",
    "paper_split",
]

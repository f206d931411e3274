"""Clean tables: a copy of a table of labels without what the readers refuse, and a list of all changes."""

from labelgap.data.cleaning.changes import Change
from labelgap.data.cleaning.fix import FixedTable, fix_table

__all__ = ["Change", "FixedTable", "fix_table"]

"""Files of labels: CSV and Parquet, wide or lists, with every problem reported at once.

Importing the package registers the formats of ``LabelTable.from_csv`` and its relatives.
"""

from labelgap.labels.io.formats import read_csv, read_csv_table, read_parquet, read_table, write_csv, write_table
from labelgap.labels.io.table_file import SPLITS, TableFile, TableOptions
from labelgap.labels.table import FILE_FORMATS, FileFormat

__all__ = ["SPLITS", "TableFile", "TableOptions", "read_csv", "read_parquet"]

FILE_FORMATS.update(csv=FileFormat(read_csv_table, write_csv), parquet=FileFormat(read_table, write_table))

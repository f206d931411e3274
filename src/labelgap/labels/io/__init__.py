"""Files of labels: CSV and Parquet, wide or lists, with every problem reported at once.

``read_csv`` and ``read_parquet`` turn a file into rows of cells; ``rows`` parses these with ``header`` and ``cells``;
``class_names`` applies the renames, the chosen classes and the hierarchy. The result is a ``TableFile``. This package
also registers the formats that ``LabelTable.from_csv`` and its relatives use.
"""

from labelgap.labels.io.formats import read_csv, read_csv_table, read_parquet, read_table, write_csv, write_table
from labelgap.labels.io.table_file import SPLITS, TableFile, TableOptions
from labelgap.labels.table import FILE_FORMATS, FileFormat

__all__ = ["SPLITS", "TableFile", "TableOptions", "read_csv", "read_parquet"]

FILE_FORMATS.update(csv=FileFormat(read_csv_table, write_csv), parquet=FileFormat(read_table, write_table))

"""A Hugging Face data set on a disk, as `save_to_disk` or Parquet files; pyarrow alone reads it."""

__all__: list[str] = []

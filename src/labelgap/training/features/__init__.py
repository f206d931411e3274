"""Features of images: their keys in the cache (``keys``), extracted by a backbone (``extract``,
``block_extraction``), or given with the data (``precomputed``)."""

__all__: list[str] = []

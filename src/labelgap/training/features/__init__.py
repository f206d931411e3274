"""Features of images: their keys in the cache (``keys``), extracted by a backbone (``extract``), or given with the data
(``precomputed``)."""

__all__: list[str] = []

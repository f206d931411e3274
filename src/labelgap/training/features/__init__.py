"""Features of images: extracted by a backbone (``extract``), cached on disk (``cache``), or given with the data
(``precomputed``)."""

__all__: list[str] = []

"""The embedded data set: ``dataset`` loads it, ``scenes`` composes its images from ``glyphs`` and ``background``."""

__all__: list[str] = []

"""The papers' data sets in their published layouts; ``splits`` holds what they share."""

__all__: list[str] = []

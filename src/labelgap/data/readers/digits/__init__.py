"""The embedded data set: scenes of handwritten digits."""

__all__: list[str] = []

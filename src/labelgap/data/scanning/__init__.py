"""What all images of a data set are scanned for before training: whether they can be read, and copies."""

__all__: list[str] = []

"""Models of open_clip: their image towers as backbones, their text towers as classifiers of class names."""

__all__: list[str] = []

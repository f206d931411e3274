"""Models of timm as backbones: which there are, their weights, and the wrapper."""

__all__: list[str] = []

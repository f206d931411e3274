"""What commands write to: standard streams and consoles, safe for text that other people wrote."""

__all__: list[str] = []

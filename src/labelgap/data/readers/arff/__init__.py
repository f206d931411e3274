"""Multi-label tables in ARFF, as Mulan and MEKA publish them."""

__all__: list[str] = []

"""What all losses are built on: the contract, mixtures, per-image state, terms, options, papers and the registry."""

__all__: list[str] = []

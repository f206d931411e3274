"""What everything else stands on: errors, registries, seeds, whole files, sums over processes."""

__all__: list[str] = []

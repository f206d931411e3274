"""What every other package uses: errors, registries, seeds, files, processes, the system, the cache."""

__all__: list[str] = []

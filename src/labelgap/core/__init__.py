"""What every other package uses: errors, registries, seeds, files, processes, the system, the cache.

Import from the modules: ``labelgap.core.errors``, ``labelgap.core.registry``, ``labelgap.core.seeds`` and so on.
"""

__all__: list[str] = []

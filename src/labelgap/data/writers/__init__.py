"""Writers: ``formats.convert`` writes labels for other tools, ``shards.write_shards`` images and labels."""

__all__: list[str] = []

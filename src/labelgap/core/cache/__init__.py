"""The cache on disk: its folder and size limit (``limit``), its files and their eviction (``segments``), and rows by
key (``row_store``)."""

__all__: list[str] = []

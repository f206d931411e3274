"""Readers: a module per format, each with a function from a path and options to a ``Dataset``.

``builtin`` lists them; ``image_table`` (a table of labels with a folder of images), ``image_paths`` (names of images to
files) and ``official_splits`` (the papers' data sets) hold what several of them share.
"""

__all__: list[str] = []

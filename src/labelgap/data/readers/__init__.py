"""Readers: a module per format, each with a function from a path and options to a ``Dataset``.

``builtin`` lists them; ``layout`` (the files of a data set), ``image_table`` (a table of labels with a folder
of images) and ``image_paths`` (names of images to files) hold what several of them share; ``official`` has the papers'.
"""

__all__: list[str] = []

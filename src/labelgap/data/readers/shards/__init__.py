"""Shards: images and labels in tar files, as the package webdataset reads and writes them.

A shard holds two members per image, ``000017.jpg`` and ``000017.json``; the second is ``{"image": name, "split": …,
"present": […], "absent": […]}``, and a class in neither list is unknown. Beside the shards are ``index.json`` (classes,
and name, split, count, bytes and digest of every shard) and ``images.parquet`` (labels, shard, offset and size of every
image), so that an image is read by its offset, in any order. Shards at a URL are copied into the cache first.
"""

__all__: list[str] = []

"""Features that a backbone extracts, once per image: the inputs of the linear protocol.

They are cached by the content of an image and the network (``keys``), so that whatever split, table or command asks for
an image, it is computed once; ``labelgap cache`` lists them. Features of mirror images, which a run may average with
those of the images, are stored apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelgap.core.cache.limit import FEATURE_FOLDER, cache_folder
from labelgap.core.cache.row_store import RowStore
from labelgap.core.distributed import is_distributed, single_process
from labelgap.data.dataset import Dataset
from labelgap.data.feature_vectors import FeatureVectors
from labelgap.data.images import ImageSource
from labelgap.models import Backbone
from labelgap.models.inference import Precision, inference_precision
from labelgap.training.features.block_extraction import BlockExtraction
from labelgap.training.features.keys import content_keys, network_key, open_digests
from labelgap.training.loop.inputs import ImageInputs
from labelgap.training.loop.processes import fail_together, gather_objects, gather_own_rows, own_rows
from labelgap.training.progress import Reporter

_DTYPE: Final = np.dtype("<f4")


def split_features(
    data: Dataset,
    splits: Iterable[str],
    build_backbone: Callable[[], Backbone],
    device: torch.device,
    workers: int,
    reporter: Reporter,
    *,
    average_flips: bool = False,
    precision: Precision | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the ``(N, D)`` features of splits: the data's own vectors, or those that a backbone computes.

    Args:
        data: the data set.
        splits: names of splits.
        build_backbone: called only where the data are images.
        device: where to compute.
        workers: processes that decode images.
        reporter: shows the progress.
        average_flips: see ``extract_features``; vectors stay as they are.
        precision: see ``extract_features``.
    """
    sources = {name: data.split(name).images for name in splits}
    vectors = {name: images.vectors for name, images in sources.items() if isinstance(images, FeatureVectors)}
    if vectors:
        return vectors
    options: dict[str, Any] = {"workers": workers, "reporter": reporter, "average_flips": average_flips}
    found = extract_features(list(sources.values()), build_backbone(), device=device, precision=precision, **options)
    return dict(zip(sources, found, strict=True))


def extract_features(
    sources: Sequence[ImageSource],
    backbone: Backbone,
    *,
    device: torch.device,
    transform: str = "resize",
    batch_size: int = 32,
    workers: int = 0,
    reporter: Reporter,
    everywhere: bool = True,
    average_flips: bool = False,
    precision: Precision | None = None,
) -> list[NDArray[np.float32]]:
    """Return the ``(N, D)`` pooled features of each source, from the cache as far as they are there.

    Images with the same content are computed once. Where the cache cannot be used, features are computed without it.
    Several processes each compute their ``own_rows``, and store them in the cache of their machine.

    Args:
        sources: of images.
        backbone: moved to ``device``, in eval mode.
        device: of the computation.
        transform: of images, without augmentation; see ``ImageInputs``.
        batch_size: images at a time.
        workers: processes that decode images.
        reporter: shows the progress, how many images were computed, and what the user should know of the cache.
        everywhere: whether all processes get the features, or only the first; the others then get arrays without rows.
        average_flips: whether features are the mean of those of an image and of its mirror image.
        precision: of the convolutions, where a CPU computes with it, else float32; None for the fastest.
    """
    precision = inference_precision(backbone, device, precision)
    own = [images.select(own_rows(len(images))) for images in sources] if is_distributed() else sources
    halves: list[list[NDArray[np.float32]]] = []
    for mirrored in _halves(average_flips):
        with fail_together(), single_process():
            options = (transform, batch_size, workers, reporter, mirrored, precision)
            found, counts = _extract(own, backbone, device, *options)
        halves.append(found)
        total: Counter[str] = sum(gather_objects(counts), Counter())
        if total["images"]:
            others = "".join(f", {total[what]:,} {what}" for what in ("from the cache", "copies") if total[what])
            images = "mirror images" if mirrored else "images"
            how = "" if precision == "float32" else f" in {precision}"
            reporter.log(f"features of {total['computed']:,} of {total['images']:,} {images} computed{how}{others}")
    return [
        gather_own_rows(_mean(parts), len(images), everywhere=everywhere)
        for images, *parts in zip(sources, *halves, strict=True)
    ]


def _extract(
    sources: Sequence[ImageSource],
    backbone: Backbone,
    device: torch.device,
    transform: str,
    batch_size: int,
    workers: int,
    reporter: Reporter,
    mirrored: bool,
    precision: Precision,
) -> tuple[list[NDArray[np.float32]], Counter[str]]:
    """Return the features of one process, and how many images it computed, read from the cache and copied."""
    digests = open_digests()
    contents = [content_keys(images, digests, reporter) for images in sources]
    starts = np.cumsum([0, *map(len, sources)])
    features = np.empty((int(starts[-1]), backbone.num_features), dtype=_DTYPE)
    counts = Counter[str]()
    if len(features):
        store = _open_store(backbone, transform, reporter, mirrored, precision)
        extraction = BlockExtraction(contents, starts, features, store, batch_size, precision, mirrored)
        backbone = backbone.to(device).eval()
        inputs = [ImageInputs(images, backbone, device, workers=workers, transform=transform) for images in sources]
        counts = extraction.run(inputs, backbone, reporter)
    return [features[start:stop] for start, stop in pairwise(starts.tolist())], counts


class CachedFeatures:
    """The features of a network that are in the cache, to be read only."""

    def __init__(
        self,
        backbone: Backbone,
        device: torch.device,
        transform: str = "resize",
        *,
        average_flips: bool = False,
        precision: Precision | None = None,
    ) -> None:
        precision = inference_precision(backbone, device, precision)
        self._width, self._digests, quiet = backbone.num_features, open_digests(), Reporter(quiet=True)
        halves = _halves(average_flips)
        self._stores = [_open_store(backbone, transform, quiet, half, precision) for half in halves]

    def read(self, images: ImageSource) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which images have features, and the ``(N, D)`` features.

        Files that were not hashed before are not read, and count as images without features.
        """
        keys, rows = content_keys(images, self._digests, hash_files=False).keys, np.arange(len(images))
        found, halves = np.ones(len(images), dtype=bool), list[NDArray[np.float32]]()
        for store in self._stores:
            halves.append(np.zeros((len(images), self._width), dtype=_DTYPE))
            found &= store.read(keys, halves[-1].view(np.uint8), rows)
        return found, _mean(halves)


def count_uncached(
    sources: Sequence[ImageSource],
    backbone: Backbone,
    device: torch.device,
    reporter: Reporter | None = None,
    transform: str = "resize",
    *,
    average_flips: bool = False,
    precision: Precision | None = None,
) -> list[int]:
    """Return of each source how many images have no cached features; mirror images count too where they are used."""
    digests, quiet, precision = open_digests(), Reporter(quiet=True), inference_precision(backbone, device, precision)
    stores = [_open_store(backbone, transform, quiet, mirrored, precision) for mirrored in _halves(average_flips)]
    contents = [content_keys(images, digests, reporter) for images in sources]
    return [sum(int(np.count_nonzero(store.find(each.keys) < 0)) for store in stores) for each in contents]


def _halves(average_flips: bool) -> tuple[bool, ...]:
    """Return which features are needed: of images, of mirror images (True)."""
    return (False, True) if average_flips else (False,)


def _mean(halves: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return halves[0] if len(halves) == 1 else np.mean(halves, axis=0, dtype=np.float32)


def _open_store(
    backbone: Backbone, transform: str, reporter: Reporter, mirrored: bool, precision: Precision
) -> RowStore:
    transform = f"{transform}, mirrored" if mirrored else transform
    metadata = {
        "backbone": backbone.name,
        "size": backbone.input_spec.size,
        "width": backbone.num_features,
        "transform": transform,
        "precision": precision,
    }
    folder = cache_folder() / FEATURE_FOLDER / network_key(backbone, transform, precision)
    return RowStore(folder, backbone.num_features * _DTYPE.itemsize, metadata, reporter.log)

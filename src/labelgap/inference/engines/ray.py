"""Ray Data: the shards of a prediction, or the rows of any dataset, on a pool of actors that grows and shrinks.

Every actor holds one ``Predictor``. Ray starts actors that were killed, or whose node is lost, elsewhere, and gives
their work to others. A worker needs labelgap installed, and none of the files of the run.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labelgap.core.errors import InputError
from labelgap.inference.parts import PartJob, Summary
from labelgap.inference.predictor import Predictor
from labelgap.inference.sources import InputShard
from labelgap.training.run import Run

if TYPE_CHECKING:
    from ray.data import Dataset


@dataclass(frozen=True)
class Workers:
    """The actors: so many at least and at most, each with CPUs for decoding and a share of a GPU.

    At most None is as many as fit; one CPU is left to Ray's own tasks, which would wait for ever otherwise.
    """

    least: int = 1
    most: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    @classmethod
    def parse(cls, text: str, cpus: float = 1.0, gpus: float = 0.0) -> Workers:
        """Parse ``4`` or ``1:64``.

        Example:
            >>> Workers.parse("1:64", gpus=0.5)
            Workers(least=1, most=64, cpus=1.0, gpus=0.5)
        """
        first, colon, last = text.partition(":")
        if not (first.isdecimal() and (last.isdecimal() or not colon)) or not 0 < int(first) <= int(last or first):
            raise InputError(f"--workers {text}: a number of workers, 4, or a range, 1:64.")
        return cls(int(first), int(last or first), cpus, gpus)

    def options(self) -> dict[str, Any]:
        """Return the arguments of ``map_batches``."""
        import ray

        free = ray.cluster_resources().get("CPU", 1.0) - 1
        most = self.most or max(self.least, int(free / self.cpus) if self.cpus else self.least)
        pool = ray.data.ActorPoolStrategy(min_size=self.least, max_size=most)
        return {"compute": pool, "num_cpus": self.cpus, "num_gpus": self.gpus}


@dataclass(frozen=True)
class RayEngine:
    """Computes shards on a cluster: the one of ``address`` or RAY_ADDRESS, else the processors of this machine."""

    workers: Workers = Workers()
    address: str | None = None

    def __call__(self, job: PartJob, shards: Sequence[InputShard]) -> Iterator[Summary]:
        """Yield the summary of every shard, as it is done."""
        with connected(self.address):
            import ray

            items = [{"shard": pickle.dumps(shard)} for shard in shards]
            dataset = ray.data.from_items(items, override_num_blocks=len(items))
            options: dict[str, Any] = {"fn_constructor_args": (ray.put(job),), "batch_size": 1}
            done = dataset.map_batches(_ShardWorker, **options, **self.workers.options())
            for batch in done.iter_batches(batch_size=None, prefetch_batches=0):
                yield from map(json.loads, batch["summary"])


class _ShardWorker:
    """An actor that computes shards."""

    def __init__(self, job: Any) -> None:
        import ray

        self.job: PartJob = ray.get(job)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        return {"summary": [json.dumps(self.job.compute(pickle.loads(each))) for each in batch["shard"]]}


class _RowWorker:
    """An actor that adds what a predictor says to the rows of a dataset, and drops the images."""

    def __init__(self, predictor: Any) -> None:
        import ray

        self.predictor: Predictor = ray.get(predictor)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        kept = {name: values for name, values in batch.items() if name not in ("bytes", "image", "feature")}
        return {**kept, **self.predictor(batch)}


def predict(
    dataset: Dataset,
    run: Run | str | os.PathLike[str],
    *,
    workers: str | None = None,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    batch_size: int = 64,
    features: bool = False,
) -> Dataset:
    """Return a Ray dataset with ``score``, ``probability``, ``label`` and ``error`` of every row; nothing is run yet.

    Args:
        dataset: rows with one of the columns ``bytes``, ``path``, ``image``, ``feature``; see ``Predictor``.
        run: a finished run, or its folder, on this machine.
        workers: "4", or "1:64" for a pool that grows and shrinks; as many as fit when None.
        cpus_per_worker: CPUs for decoding, which also sets the threads of each worker.
        gpus_per_worker: 1, or a fraction where several workers share one.
        batch_size: images at a time.
        features: whether to add ``feature``.
    """
    import ray

    predictor = Predictor(run, batch_size=batch_size, features=features)
    given = Workers(cpus=cpus_per_worker, gpus=gpus_per_worker)
    pool = given if workers is None else Workers.parse(workers, cpus_per_worker, gpus_per_worker)
    options: dict[str, Any] = {"fn_constructor_args": (ray.put(predictor),), "batch_size": 4 * predictor.batch_size}
    return dataset.map_batches(_RowWorker, **options, **pool.options())


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connect to a cluster while the block runs; a connection that is there is used, and kept."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InputError(f"--engine ray needs the package ray: pip install 'labelgap[ray]' ({error}).") from None
    started = not ray.is_initialized()
    if started:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        if started:
            ray.shutdown()

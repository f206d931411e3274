"""Ray Data: the shards of a prediction, or the rows of any dataset, on a pool of actors that grows and shrinks."""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelgap.core.errors import InputError
from labelgap.inference.parts import Outcome, PartJob
from labelgap.inference.predictor import Predictor
from labelgap.inference.sources import InputShard
from labelgap.training.run import Run

if TYPE_CHECKING:
    from ray.data import Dataset


@dataclass(frozen=True)
class Workers:
    """The actors, each with CPUs and a share of a GPU; at most None: as many as fit, but one CPU for Ray's tasks."""

    least: int = 1
    most: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    @classmethod
    def parse(cls, text: str | None, cpus: float = 1.0, gpus: float = 0.0) -> Workers:
        """Parse ``4`` or ``1:64``; None is as many as fit.

        Example:
            >>> Workers.parse("1:64", gpus=0.5)
            Workers(least=1, most=64, cpus=1.0, gpus=0.5)
        """
        if text is None:
            return cls(1, None, cpus, gpus)
        ends = re.fullmatch(r"([1-9]\d*)(?::(\d+))?", text)
        least, most = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if most < least:
            raise InputError(f"--workers {text}: a number of workers, 4, or a range, 1:64.")
        return cls(least, most, cpus, gpus)

    def map(self, dataset: Dataset, worker: type, held: Any, batch_size: int) -> Dataset:
        """Return a dataset of what workers, each made with what they hold, return for its batches."""
        import ray

        free = ray.cluster_resources().get("CPU", 1.0) - 1
        most = self.most or max(self.least, int(free / self.cpus) if self.cpus else self.least)
        pool = ray.data.ActorPoolStrategy(min_size=self.least, max_size=most)
        how: dict[str, Any] = {"compute": pool, "num_cpus": self.cpus, "num_gpus": self.gpus}
        return dataset.map_batches(worker, batch_size=batch_size, fn_constructor_args=(ray.put(held),), **how)


@dataclass(frozen=True)
class RayEngine:
    """Computes shards on the cluster of ``address`` or RAY_ADDRESS, else on the processors of this machine."""

    workers: Workers = Workers()
    address: str | None = None

    def __call__(self, job: PartJob, shards: Sequence[InputShard]) -> Iterator[Outcome]:
        """Yield what became of every shard, as it is done."""
        with connected(self.address):
            import ray

            items = [{"shard": pickle.dumps(shard)} for shard in shards]
            dataset = ray.data.from_items(items, override_num_blocks=len(items))
            done = self.workers.map(dataset, _ShardWorker, job, 1)
            for batch in done.iter_batches(batch_size=None, prefetch_batches=0):
                yield from map(pickle.loads, batch["outcome"])


class _Worker:
    """An actor, with what it holds: it is fetched once."""

    def __init__(self, held: Any) -> None:
        self.held = import_module("ray").get(held)


class _ShardWorker(_Worker):
    """Computes the shards of a job."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[bytes]]:
        return {"outcome": [pickle.dumps(self.held.compute(pickle.loads(each))) for each in batch["shard"]]}


class _RowWorker(_Worker):
    """Adds what a predictor says to the rows of a dataset, and drops the images."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        kept = {name: values for name, values in batch.items() if name not in ("bytes", "image", "feature")}
        return {**kept, **self.held(batch)}


def predict(
    dataset: Dataset,
    run: Run | str | os.PathLike[str],
    *,
    workers: str | None = None,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    **options: Any,
) -> Dataset:
    """Return a Ray dataset with ``score``, ``probability``, ``label`` and ``error`` of every row; nothing is run yet.

    Args:
        dataset: rows with one of the columns that a ``Predictor`` reads.
        run: a finished run, or its folder, on this machine.
        workers: "4", or "1:64" for a pool that grows and shrinks; as many as fit when None.
        cpus_per_worker: for decoding; so many threads a worker has.
        gpus_per_worker: 1, or a fraction where several workers share one.
        **options: of ``Predictor``: batch_size, features.
    """
    predictor, pool = Predictor(run, **options), Workers.parse(workers, cpus_per_worker, gpus_per_worker)
    return pool.map(dataset, _RowWorker, predictor, 4 * predictor.batch_size)


@contextmanager
def connected(address: str | None = None) -> Iterator[None]:
    """Connect to a cluster while the block runs; a connection that is there is used and kept."""
    try:
        import ray.data
    except ImportError as error:
        raise InputError(f"--engine ray needs the package ray: pip install 'labelgap[ray]' ({error}).") from None
    if started := not ray.is_initialized():
        os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that starts here; 15 else
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield
    finally:
        if started:
            ray.shutdown()

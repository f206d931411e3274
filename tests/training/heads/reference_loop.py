"""One head at a time in a plain training loop: the reference of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelgap.core.seeds import derive_seed, numpy_generator, seed_everything
from labelgap.labels import PRESENT, UNKNOWN, LabelTable, Revisions
from labelgap.losses import loss
from labelgap.models.heads import LinearHead
from labelgap.training.heads import HeadPlan, LinearEngine

IMAGES, CLASSES, WIDTH, BATCH, EPOCHS = 30, 6, 12, 16, 7


def some_labels(seed: int = 0, *, images: int = IMAGES, unknown: float = 0.6) -> LabelTable:
    """Every class present in some images and absent in others; of every image one present label is known."""
    random = np.random.default_rng(seed)
    labels = (random.random((images, CLASSES)) < 0.3).astype(np.int8)
    labels[random.random(labels.shape) < unknown] = UNKNOWN
    labels[np.arange(images), random.integers(CLASSES, size=images)] = PRESENT
    return LabelTable.from_dense(labels)


def some_features(labels: LabelTable, dtype: torch.dtype = torch.float64, *, noise: float = 1.0) -> Tensor:
    """Features that depend on the labels."""
    random = np.random.default_rng(5)
    signal = (labels.to_dense() == PRESENT) @ random.normal(size=(CLASSES, WIDTH))
    return torch.from_numpy(signal + noise * random.normal(size=signal.shape)).to(dtype)


class Alone:
    """A head with torch's optimizer, autograd, and every hook of its loss."""

    def __init__(self, plan: HeadPlan, features: Tensor, *, optimizer: str = "adam", **options: Any) -> None:
        self.plan, self.features = plan, features
        self.loss_fn = loss(plan.method, **plan.options)
        self.loss_fn.prepare(plan.labels, epochs=EPOCHS, seed=plan.seed)
        self.loss_fn.to(features.dtype)
        seed_everything(derive_seed(plan.seed, "initialisation"))
        self.head = LinearHead(features.shape[1], len(plan.labels.classes)).to(features.dtype)
        own = {"params": list(self.head.parameters()), "weight_decay": plan.weight_decay}
        kind: Any = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        self.optimizer = kind([own, *self.loss_fn.parameter_groups(plan.lr)], lr=plan.lr, **options)

    def train_epoch(self, epoch: int) -> tuple[float, Revisions]:
        """Return the mean loss, and the revisions."""
        self.loss_fn.set_epoch(epoch)
        order = torch.from_numpy(numpy_generator(0, "order", epoch).permutation(len(self.features)))
        total = 0.0
        for rows in torch.split(order, BATCH):
            features, labels = self.features[rows], self.plan.labels.batch(rows)
            loss = self.loss_fn(self.head(features), labels, index=rows, features=features)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss + self.loss_fn.penalty(self.head.parameters()))
            self.optimizer.step()
            self.loss_fn.after_step()
            total += loss.item() * len(rows)
        return total / len(order), self.loss_fn.end_epoch(self.scores if "scores" in self.loss_fn.needs else None)

    def scores(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the logits of all training images."""
        yield torch.arange(len(self.features)), self.head(self.features).detach()


def train_together(plans: list[HeadPlan], features: Tensor, **settings: Any) -> LinearEngine:
    """Train all heads to the end."""
    engine = LinearEngine(features, plans, epochs=EPOCHS, batch_size=BATCH, dtype=features.dtype, **settings)
    return train_epochs(engine, 1, EPOCHS)


def train_epochs(engine: LinearEngine, first: int, last: int) -> LinearEngine:
    """Train all heads of an engine for some epochs."""
    for epoch in range(first, last + 1):
        engine.train_epoch(epoch)
        engine.end_epoch()
    return engine

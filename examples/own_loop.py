"""Use one of the losses in a training loop of your own: plain PyTorch, nothing else of labelgap.

Labels are 1 (present), 0 (absent) and -1 (unknown), or NaN for unknown in float tensors.
"""

from __future__ import annotations

import torch
from torch import nn

import labelgap as lg


def stateless(features: torch.Tensor, labels: torch.Tensor) -> float:
    """A loss that needs only logits and labels: use it like any other."""
    network = nn.Linear(features.shape[1], labels.shape[1])
    loss_fn = lg.loss("ll-ct", delta_rel=2)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for epoch in range(1, 11):
        loss_fn.set_epoch(epoch)  # some methods have a schedule; the others do not mind
        for rows in torch.randperm(len(features)).split(32):
            loss = loss_fn(network(features[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


def with_memory(features: torch.Tensor, labels: torch.Tensor) -> lg.Revisions:
    """A loss that remembers something per image: tell it the rows, and call the hooks."""
    network = nn.Linear(features.shape[1], labels.shape[1])
    loss_fn = lg.loss("ll-cp", delta_rel=2)
    loss_fn.prepare(lg.LabelTable.from_dense(labels), epochs=10)
    groups = [{"params": list(network.parameters())}, *loss_fn.parameter_groups(lr=1e-2)]
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    revisions = lg.Revisions()
    for epoch in range(1, 11):
        loss_fn.set_epoch(epoch)
        for rows in torch.randperm(len(features)).split(32):
            loss = loss_fn(network(features[rows]), labels[rows], index=rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_fn.after_step()
        revisions = revisions + loss_fn.end_epoch()
    return revisions


def main() -> None:
    """Make labels of which most are missing, and train with both."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(256, 16, generator=generator)
    truth = (features @ torch.randn(16, 8, generator=generator) > 2).int()
    labels = torch.where(truth.bool() & (torch.rand(truth.shape, generator=generator) < 0.5), 1, -1)
    print(f"ll-ct: last loss {stateless(features, labels):.3f}")
    print(f"ll-cp: {len(with_memory(features, labels))} labels corrected")


if __name__ == "__main__":
    main()

"""The training loop: trainers of a network and of a linear head, and what they use.

``trainer`` is the loop itself, ``linear_trainer`` its counterpart on fixed features; ``epoch_end`` is what both do
after an epoch: selection, checkpoint, revisions, trace.
"""

__all__: list[str] = []

"""What a run writes to resume: checkpoints, best weights, random states, ``metrics.jsonl`` and what its measures say;
and deferred interrupts."""

__all__: list[str] = []

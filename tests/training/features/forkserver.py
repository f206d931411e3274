"""Processes that start at once: they are forked from one that has imported everything already. They can be killed."""

from __future__ import annotations

import multiprocessing

__all__ = ["FORKS"]

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.training.features.tiny_backbone"])

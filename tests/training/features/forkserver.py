"""Processes that start quickly, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing

__all__ = ["FORKSERVER"]

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.training.features.tiny_backbone"])

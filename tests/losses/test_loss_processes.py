"""Two real processes, each with a shard of the batch, learn what one process learns from the whole of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.core.process_pair import run_pair
from tests.losses.reference import references
from tests.losses.two_processes import compare


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    run_pair(compare, tmp_path)
    found = json.loads((tmp_path / "apart.json").read_text())
    assert {story.split()[0] for story in found} == set(references())
    apart = {story: distance for story, distance in found.items() if not distance < 1e-9}
    assert not apart, apart

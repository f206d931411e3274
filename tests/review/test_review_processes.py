"""Real servers in processes of their own: two on one folder, killed while people decide, stalled by other clients."""

from __future__ import annotations

import csv
import signal
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.review.http_client import ReviewClient, running
from tests.review.test_connections import ATTACKS, STALLED, stalled

import labelgap as lg
from labelgap.labels.codes import PRESENT
from labelgap.review import ReviewFolder, create_random_review, decisions, open_review_folder
from labelgap.review.apply import apply_decisions
from labelgap.review.candidates import Candidates

CLASSES = tuple("abcdefgh")
IMAGES = 24
FEW_FILES = 256
"""Files that a process may open on some systems; fewer than there are stalled connections."""


@pytest.fixture
def review_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReviewFolder:
    """A review of images, each with seven unknown labels."""
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    rows = [["image", "split", *CLASSES]]
    for number in range(IMAGES):
        pixels = np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
        rows.append([f"{number}.png", "train", *("1" if at == number % 8 else "" for at in range(8))])
    with (tmp_path / "tags.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    data = lg.load("csv", tmp_path / "tags.csv", images=tmp_path / "photos", duplicates="off")
    return create_random_review(data, "train", IMAGES, 0, tmp_path / "review")


@dataclass
class Reviewer:
    """Somebody who decides without pause, until the server is gone or all is decided."""

    client: ReviewClient
    ids: list[str]
    confirmed: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work)
        self.started = threading.Event()

    def _work(self) -> None:
        for identity in self.ids:
            try:
                answer = self.client.decide(identity, PRESENT)
            except (OSError, HTTPException):
                self.started.set()
                return
            if answer.status == 200:
                self.confirmed.append(identity)
            else:
                self.refused.append(answer.status)
            self.started.set()


def check_one_moment(folder: ReviewFolder, out: Path) -> int:
    """Apply while people decide; the table and the list of changes must be of the same moment."""
    result = apply_decisions(folder, out, force=True)
    with result.provenance.open(newline="") as file:
        listed = {(row["image"], row["class"]) for row in csv.DictReader(file)}
    with out.open(newline="") as file:
        table = {(row["image"], name) for row in csv.DictReader(file) for name in CLASSES if row[name] == "1"}
    observed = {(f"{number}.png", CLASSES[number % 8]) for number in range(IMAGES)}
    assert table == observed | listed
    assert result.decided == len(listed) == result.changed.get("review", 0)
    return result.decided


def test_two_servers_a_kill_stalled_clients_and_apply_lose_no_decision(
    review_folder: ReviewFolder, tmp_path: Path
) -> None:
    candidates = Candidates(review_folder.path / "candidates.parquet", CLASSES)
    ids = [f"{int(each):016x}" for each in candidates.columns.ids]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running(review_folder.path, "--fixed-order", files=FEW_FILES)) for _ in range(2)
        )
        for server in (first, second):
            server.client.enter()
        for name in ("nothing is sent", "half a header", "half a body"):
            stack.enter_context(stalled(second.client, ATTACKS[name], STALLED))
        people = [
            Reviewer(server.client.another(f"person {number}"), ids[number::4])
            for number, server in enumerate((first, second, first, second))
        ]
        for person in people:
            person.thread.start()
        for person in people:
            assert person.started.wait(120)
        counts = [check_one_moment(review_folder, tmp_path / "better.csv") for _ in range(10)]
        assert counts == sorted(counts)
        first.process.send_signal(signal.SIGKILL)
        for person in people:
            person.thread.join(300)
            assert not person.refused
        assert len(people[1].confirmed) == len(people[1].ids), "the other server goes on"
        confirmed = {identity for person in people for identity in person.confirmed}
        stored = {revision.image + revision.class_name for revision in decisions(review_folder.path)}
        for identity in confirmed:
            number = candidates.index(identity)
            assert number is not None
            key = candidates.key(number)
            assert key.image + key.class_name in stored
        assert second.client.request("/").status == 200
    assert check_one_moment(open_review_folder(review_folder.path), tmp_path / "after.csv") >= len(confirmed)

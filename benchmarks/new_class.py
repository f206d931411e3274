"""A class that nobody labeled: how many of its photos come first after 5, 10 and 20 examples?

    python benchmarks/new_class.py [--data VOCdevkit] [--classes bird,boat]

One class of VOC 2012 is left out of the table; of the others one present label of each photo is known. A run (linear
heads on efficientnet-lite0) is trained and audited, and its review page is served. A simulated reviewer, who knows the
truth, adds the class through the page's own HTTP interface. They page through the random order to the first photo that
shows the class, sort by similarity to it, mark what shows the class until there are 5 examples, and then go on in the
order of the page, which has learned from them, to 10 and 20. "yes only" answers nothing else; "yes and no" answers
everything that was looked at.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

import labelgap as lg
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, open_review_folder
from labelgap.review.database import FILE
from labelgap.review.server import create_server

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import DEVKIT, parse_arguments, print_ratios

CLASSES: Final = "bird,boat,chair,cow,pottedplant,tvmonitor"
EXAMPLES: Final = (5, 10, 20)
FIRST: Final = 100
TILE: Final = re.compile(r'data-id="(\w+)" data-image="(\w+)" data-name="([^"]+)"')


class Page:
    """The page, used as a browser uses it."""

    def __init__(self, address: str) -> None:
        self.host, token = address.split("/")[2], address.partition("?token=")[2]
        self.cookie = f"labelgap-{self.host.rpartition(':')[2]}={token}"
        page = self.get("/")
        self.csrf_token, self.store = (
            re.findall(rf'data-{name}="([^"]+)"', page)[0] for name in ("csrf-token", "store")
        )

    def get(self, path: str) -> str:
        """Return a page."""
        return self._request("GET", path)

    def post(self, path: str, message: dict[str, Any]) -> Any:
        """Send a message, and return the answer."""
        body = json.dumps({"store": self.store, "reviewer": "simulated", **message})
        return json.loads(
            self._request("POST", path, body, {"Content-Type": "application/json", "X-CSRF-Token": self.csrf_token})
        )

    def tiles(self, class_number: int, query: str) -> list[tuple[str, str, str]]:
        """Return id, image id and name of the candidates on a page."""
        return TILE.findall(self.get(f"/class/{class_number}?{query}"))

    def decide(self, answers: dict[str, int]) -> None:
        """Send answers by candidate."""
        made = [
            {"request_id": uuid.uuid4().hex, "id": identity, "value": value, "base_version": 0}
            for identity, value in answers.items()
        ]
        for start in range(0, len(made), 200):
            self.post("/api/decisions", {"client": "benchmark-1", "actions": made[start : start + 200]})

    def _request(self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> str:
        with closing(http.client.HTTPConnection(self.host, timeout=120)) as connection:
            connection.request(method, path, body, {"Cookie": self.cookie, **(headers or {})})
            response = connection.getresponse()
            if given := response.getheader("set-cookie"):
                self.cookie += f"; {given.partition(';')[0]}"
            text = response.read().decode()
        assert response.status == 200, text
        return text


@contextmanager
def served(run: Path) -> Iterator[tuple[Review, Page]]:
    """Serve a run, with rankings."""
    with closing(Review(open_review_folder(run))) as review:
        server, listener, address = create_server(review, port=0)
        if review.rankings is None:
            review.start_ranking()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        yield review, Page(address)
        server.should_exit = True
        thread.join()
        listener.close()


def audited_run(data: lg.Dataset, left_out: str, place: Path) -> Path:
    """Write a table without a class, train on it, audit the run, and return its folder."""
    kept = [name for name in data.classes if name != left_out]
    rows = ["image,split," + ",".join(kept)]
    for split in data.splits:
        labels = split.evaluation_labels.with_classes(kept)
        labels = labels.observe(1, 0, seed=1200) if split.name == "train" else labels
        for name, codes in zip(labels.images, labels.to_dense().tolist(), strict=True):
            cells = ["1" if code == PRESENT else "0" if code == ABSENT else "" for code in codes]
            rows.append(f"{name},{split.name},{','.join(cells)}")
    (place / "tags.csv").write_text("\n".join(rows) + "\n")
    images = data.train.images
    table = lg.load("csv", place / "tags.csv", images=images.root, duplicates="off", allow_leaks=True)  # type: ignore[attr-defined]
    run = lg.fit(table, backbone="efficientnet-lite0", protocol="linear", out=place / "run", device="cpu", quiet=True)
    lg.find_missing([run])
    return Path(run.path)


def wait_for_ranking(review: Review, decisions: int) -> None:
    """Wait until the order has learned from so many decisions."""
    end = time.monotonic() + 300
    while (ranking := review.ranking()) is None or ranking.decisions < decisions:
        assert review.rankings is not None and not review.rankings.problem and time.monotonic() < end
        time.sleep(0.1)


def review_class(run: Path, name: str, shows: set[str], answer_no: bool) -> tuple[list[int], list[int], int]:
    """Add a class and mark examples.

    Returns:
        After each number of examples, how many of the first photos show the class, and how many photos were looked at;
        and at which of the random order the first one was found.
    """
    for file in run.glob(f"{FILE}*"):
        file.unlink()
    found, looked_at, examples, decided, looked = [], [], list[str](), 0, 0
    with served(run) as (review, page):
        number = page.post("/api/classes", {"name": name})["number"]
        first = next(
            (at, tile)
            for at, tile in enumerate((tile for at in range(99) for tile in page.tiles(number, f"skip={60 * at}")), 1)
            if tile[2] in shows
        )
        looked = first[0]
        page.decide({first[1][0]: PRESENT})
        examples.append(first[1][1])
        decided += 1
        query = f"near={examples[0]}"
        deadline = time.monotonic() + 120
        while "being computed" in page.get(f"/class/{number}?{query}"):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        for wanted in EXAMPLES:
            at = 1
            while len(examples) < wanted:
                answers: dict[str, int] = {}
                tiles = page.tiles(number, f"{query}&skip={60 * (at - 1)}")
                if not tiles or (at > 20 and not answer_no):
                    break
                for identity, image, photo in tiles:
                    if len(examples) == wanted:
                        break
                    looked += 1
                    if photo in shows:
                        answers[identity] = PRESENT
                        examples.append(image)
                    elif answer_no:
                        answers[identity] = ABSENT
                page.decide(answers)
                decided += len(answers)
                at += 0 if answer_no else 1
            wait_for_ranking(review, decided)
            query = ""
            found.append(sum(photo in shows for _, _, photo in page.tiles(number, f"size={FIRST}")))
            looked_at.append(looked)
    return found, looked_at, first[0]


def main() -> None:
    """Review every class twice, and print a table."""
    arguments = parse_arguments(__doc__, data=DEVKIT, classes=CLASSES)
    data = lg.load("voc2012", arguments.data).reveal()
    truth = data.train.evaluation_labels
    print(f"{len(truth):,} photos of train. Of the first {FIRST} open ones so many show the class:\n")
    print("| class | photos that show it | answers | random order | after 5 | 10 | 20 examples | looked at for these |")
    print("|---|---|---|---|---|---|---|---|")
    shares: dict[bool, list[Sequence[float]]] = {False: [], True: []}
    for name in arguments.classes.split(","):
        codes = truth.to_dense()[:, truth.classes.index(name)]
        shows = {image for image, code in zip(truth.images, codes, strict=True) if code == PRESENT}
        with tempfile.TemporaryDirectory() as place:
            run = audited_run(data, name, Path(place))
            for answer_no in (False, True):
                found, looked, _ = review_class(run, f"{name} (new)", shows, answer_no)
                chance = [FIRST * (len(shows) - wanted) / (len(truth) - wanted) for wanted in EXAMPLES]
                shares[answer_no].append([count / each for count, each in zip(found, chance, strict=True)])
                cells = f"{'yes and no' if answer_no else 'yes only'} | {chance[0]:.1f} | {' | '.join(map(str, found))}"
                print(f"| {name} | {len(shows):,} | {cells} | {', '.join(map(str, looked))} |", flush=True)
    print()
    for answer_no, ratios in shares.items():
        names = (f"new_class_{'yes_no' if answer_no else 'yes'}_{wanted}" for wanted in EXAMPLES)
        print_ratios(dict(zip(names, np.mean(ratios, axis=0).tolist(), strict=True)), 1)


if __name__ == "__main__":
    main()

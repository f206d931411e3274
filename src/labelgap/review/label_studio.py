"""The server that Label Studio asks for predictions and tells of annotations: its "machine learning backend".

A prediction is what is known and decided of an image of the review, and the likely candidates by the newest ranking;
other images are fetched and scored with the run. An annotation of an image of the review is stored as decisions.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from xml.etree import ElementTree

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from labelgap.core.errors import InputError, LabelGapError
from labelgap.core.stored import parse_xml
from labelgap.data.readers.image_paths import match_name
from labelgap.data.writers.exchange import ExchangeTable
from labelgap.data.writers.label_studio import image_name, table_of_tasks
from labelgap.inference.predictor import Predictor
from labelgap.labels.codes import PRESENT, UNKNOWN
from labelgap.review.external_tools import store_labels
from labelgap.review.session import Review
from labelgap.review.store import Undo

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
API_KEY: Final = "LABEL_STUDIO_API_KEY"
"""The environment variable with a token of Label Studio, where it does not give a valid one itself."""
_PLACE: Final = Path("Label Studio")  # where labels are from, for errors
_MAX_BYTES: Final = 256 << 20
_TIMEOUT: Final = 30.0
_ADDRESS: Final = re.compile(r"/|[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class _Question(BaseModel, extra="ignore"):
    """What Label Studio sends to ``/setup`` and ``/predict``."""

    tasks: list[dict[str, Any]] = []
    label_config: str | None = None
    hostname: str = ""
    access_token: str = ""


class _Event(BaseModel, extra="ignore"):
    """What Label Studio sends to ``/webhook``."""

    action: str
    project: Any = None
    task: dict[str, Any] = {}
    annotation: dict[str, Any] = {}
    annotations: list[dict[str, Any]] = []


class LabelStudioBackend:
    """Predictions for tasks, and decisions from annotations; what is not chosen is ``unlisted``."""

    def __init__(self, review: Review, unlisted: str = "unknown") -> None:
        self.review, self.unlisted = review, unlisted
        self.hostname = self.token = ""
        splits = review.folder.data.splits
        self._rows = {name: (split, row) for split in splits for row, name in enumerate(split.labels.images)}
        self._image_numbers = {key: number for number, key in enumerate(review.candidates.columns.images)}
        self._lock = threading.Lock()  # a network predicts in one thread at a time

    @property
    def version(self) -> str:
        """The version of the predictions: it changes with every ranking."""
        ranking = self.review.ranking()
        return f"{self.review.name}-{0 if ranking is None else ranking.number}"

    def predict(self, tasks: list[dict[str, Any]], interface: str) -> list[dict[str, Any]]:
        """Return a prediction for each task; the lower its score, the more an annotation is expected to find."""
        control, image, choices = _choices_of(interface)
        version, found = self.version, []
        for task in tasks:
            try:
                probability = self._probabilities(task)
            except (InputError, KeyError) as error:  # the other tasks get their predictions
                print(f"labelgap: task {task.get('id')}: {error}", file=sys.stderr, flush=True)
                probability = {}
            names = [name for name, value in probability.items() if value >= 0.5 and name in choices]
            result = {"from_name": control, "to_name": image, "type": "choices", "value": {"choices": names}}
            is_open = [value for value in probability.values() if value < 1]
            score = round(1 - max(is_open, default=0.0), 6)
            found.append({"result": [result] if names else [], "score": score, "model_version": version})
        return found

    def _probabilities(self, task: Mapping[str, Any]) -> dict[str, float]:
        """Return the probability of each class that may be present; 1 for one that is known to be."""
        name = match_name(image_name(task["data"]), self._rows)
        return self._score_image(task["data"]) if name is None else self._of_review(name)

    def _of_review(self, name: str) -> dict[str, float]:
        review, (split, row) = self.review, self._rows[name]
        current, ranking, columns = review.current, review.ranking(), review.candidates.columns
        classes = review.candidates.classes
        with current.lock:
            current.refresh()
            codes = dict(zip(split.labels.classes, split.labels.batch([row])[0].tolist(), strict=True))
            codes |= {key.class_name: code for key, code in current.others.items() if key[:2] == (split.name, name)}
            known = {each: 1.0 for each, code in codes.items() if code == PRESENT}
            number = self._image_numbers.get((split.name, name))
            for place in [] if number is None else review.candidates.of_image(number).tolist():
                asked = classes[columns.class_number[place]]
                learned = np.nan if ranking is None else float(ranking.probability[place])
                if current.decided[place]:
                    known[asked] = float(current.value[place] == PRESENT)
                elif codes.get(asked, UNKNOWN) == UNKNOWN:
                    known[asked] = float(columns.score[place]) if np.isnan(learned) else learned
        return {name: value for name, value in known.items() if value > 0}

    def _score_image(self, data: Mapping[str, Any]) -> dict[str, float]:
        if self._predictor is None:
            return {}
        with self._lock:
            answer = self._predictor({"bytes": [self._fetch(data)]})
        if answer["error"][0]:
            raise InputError(f"{image_name(data)} cannot be read: {answer['error'][0]}")
        values = np.where(np.isnan(answer["probability"][0]), answer["score"][0], answer["probability"][0])
        return dict(zip(self._predictor.classes, np.clip(values, 0, 1 - 1e-6).tolist(), strict=True))

    @cached_property
    def _predictor(self) -> Predictor | None:
        return None if self.review.folder.run is None else Predictor(self.review.folder.run)

    def _fetch(self, data: Mapping[str, Any]) -> bytes:
        url = next((each for each in data.values() if isinstance(each, str) and _ADDRESS.match(each)), None)
        if url is None:
            raise InputError(f"the task of {image_name(data)} has no address of an image.")
        headers = {}
        if not urlsplit(url).scheme:
            url, headers = self.hostname.rstrip("/") + url, {"Authorization": self._authorization()}
        if urlsplit(url).scheme not in ("http", "https"):
            raise InputError(f"{url} is not an address that can be fetched: http and https are.")
        return _open(url, headers)

    def _authorization(self) -> str:
        """Return what Label Studio wants to see: its own token, or an access token for a personal one (a JWT)."""
        token = os.environ.get(API_KEY, self.token)
        if token.count(".") != 2:
            return f"Token {token}"
        body = json.dumps({"refresh": token}).encode()
        url, headers = self.hostname.rstrip("/") + "/api/token/refresh/", {"Content-Type": "application/json"}
        return f"Bearer {json.loads(_open(url, headers, body))['access']}"

    def store(self, task: Mapping[str, Any], annotation: Mapping[str, Any], interface: str = "") -> int:
        """Store an annotation in place of an earlier state of it; a class is absent only if the interface has it."""
        name = match_name(image_name(task["data"]), self._rows)
        if name is None:
            return 0
        own = {"data": {"name": name}, "annotations": [dict(annotation)]}
        chosen = table_of_tasks([own], _PLACE, None, "unknown").table
        classes = self.review.candidates.classes
        shown = _values(parse_xml(interface.encode())) if interface else {*classes}
        table = chosen.with_classes([each for each in classes if each in shown.union(chosen.classes)])
        if self.unlisted == "absent" and not annotation.get("was_cancelled"):
            table = table.with_unknown_absent()
        person = annotation.get("completed_by")
        person = person.get("email") if isinstance(person, dict) else person
        self.withdraw(annotation, but={table.classes[column] for column in table.columns.tolist()})
        exchange, reviewer = ExchangeTable(table, None), str(person or "Label Studio")
        return store_labels(self.review, exchange, reviewer, _PLACE, client=_client(annotation)).decided

    def withdraw(self, annotation: Mapping[str, Any], but: set[str] | None = None) -> None:
        """Withdraw what an annotation decided, but for some classes: it was deleted, or chooses others now."""
        client = _client(annotation)
        # of earlier states as well: undoing the newest decision puts the one before back in force
        mine = [event for event in self.review.store.accepted() if event.client == client]
        undone = [Undo(event.id, secrets.token_hex(16)) for event in mine if event.key.class_name not in (but or ())]
        if undone:
            self.review.store.append(undone, reviewer=mine[0].reviewer, client=client)


def _open(url: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    request = urllib.request.Request(url, body)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # Label Studio sends on to a bucket: the token is not for that
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            content: bytes = answer.read(_MAX_BYTES)
    except OSError as error:
        raise InputError(
            f"{url} cannot be fetched: {error}. A personal access token of Label Studio in {API_KEY} may help."
        ) from None
    return content


def _client(annotation: Mapping[str, Any]) -> str:
    return f"label-studio-{annotation['id']}"


def _choices_of(interface: str) -> tuple[str, str, set[str]]:
    """Return the list of choices for what is present, the image it is about, and the choices."""
    try:
        lists = parse_xml(interface.encode()).findall(".//Choices")
    except ValueError as error:
        raise InputError(f"the labeling interface cannot be read: {error}") from None
    lists = [each for each in lists if each.get("name") == "present"] or lists
    if not lists:
        raise InputError("the labeling interface has no <Choices>: labelgap predicts choices of several classes.")
    return lists[0].get("name", ""), lists[0].get("toName", ""), _values(lists[0])


def _values(choices: ElementTree.Element) -> set[str]:
    return {each.get("value", "") for each in choices.iter() if each.tag in ("Choice", "Label")}


def create_backend(backend: LabelStudioBackend, password: str = "") -> FastAPI:
    """Return the application with Label Studio's routes; with a password, it asks for that of any user name."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.middleware("http")
    async def check(request: Request, answer: Callable[..., Any]) -> Any:
        if password:
            given = ""
            with suppress(ValueError):
                given = base64.b64decode(request.headers.get("authorization", "").removeprefix("Basic ")).decode()
            if secrets.compare_digest(given.partition(":")[2].encode(), password.encode()):
                return await answer(request)
            return JSONResponse({"detail": "a password is needed"}, 401)
        if request.url.hostname not in _LOOPBACK:  # a web site whose name leads here
            return JSONResponse({"detail": "this server has another name"}, 400)
        return await answer(request)

    @app.exception_handler(LabelGapError)
    async def refuse(request: Request, error: LabelGapError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 400)

    @app.get("/")
    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "UP", "model_class": "labelgap"}

    @app.post("/setup")
    def setup(question: _Question) -> dict[str, str]:
        backend.hostname, backend.token = question.hostname, question.access_token
        return {"model_version": backend.version}

    @app.post("/predict")
    def predict(question: _Question) -> dict[str, Any]:
        if question.label_config is None:
            raise HTTPException(422, "there is no label_config")
        found = backend.predict(question.tasks, question.label_config)
        return {"results": found, "model_version": backend.version}

    @app.post("/webhook", status_code=201)
    def webhook(event: _Event) -> dict[str, int]:
        if event.action in ("ANNOTATION_CREATED", "ANNOTATION_UPDATED"):
            project = event.project if isinstance(event.project, dict) else {}
            return {"decided": backend.store(event.task, event.annotation, project.get("label_config") or "")}
        if event.action in ("ANNOTATION_DELETED", "ANNOTATIONS_DELETED"):
            for annotation in event.annotations or [event.annotation]:
                backend.withdraw(annotation)
        return {"decided": 0}

    return app


def serve_backend(
    review: Review,
    host: str,
    port: int,
    unlisted: str = "unknown",
    password: str = "",
    on_start: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until Ctrl-C; ``on_start`` is called with the address that is typed into Label Studio."""
    import uvicorn

    from labelgap.review.server import listen

    if host not in _LOOPBACK and not password:
        raise InputError(f"--host {host}: others can reach this server, so it needs --password.")
    app = create_backend(LabelStudioBackend(review, unlisted), password)
    listener = listen(host, port)
    review.start_ranking()
    on_start(f"http://{host}:{listener.getsockname()[1]}")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", ws="none"))
    with listener, suppress(KeyboardInterrupt):
        server.run(sockets=[listener])

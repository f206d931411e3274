"""Label Studio's backend: predictions for tasks, annotations as decisions. The program itself was tried by hand."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.serving import serve

from labelgap.inference.predictor import Predictor
from labelgap.labels.codes import ABSENT, PRESENT
from labelgap.review import Review, decisions
from labelgap.review.label_studio import LabelStudioBackend, create_backend

INTERFACE = """<View><Image name="photo" value="$image"/><Choices name="tags" toName="photo" choice="multiple">
<Choice value="cat"/><Choice value="dog"/></Choices></View>"""


@pytest.fixture
def client(photos_review: Review) -> Iterator[TestClient]:
    with TestClient(create_backend(LabelStudioBackend(photos_review)), base_url="http://127.0.0.1") as opened:
        yield opened


def decided(review: Review) -> dict[tuple[str, str], int]:
    return {(made.image, made.class_name): made.value for made in decisions(review.path)}


def task(name: str) -> dict[str, Any]:
    return {"id": 7, "data": {"image": f"/data/local-files/?d=some/folder/{name}"}}


def annotation(number: int, *choices: str) -> dict[str, Any]:
    result = {"from_name": "tags", "to_name": "photo", "type": "choices", "value": {"choices": list(choices)}}
    return {"id": number, "completed_by": {"id": 1, "email": "ann@example.org"}, "result": [result]}


def predict(client: TestClient, *names: str) -> list[dict[str, Any]]:
    answer = client.post("/predict", json={"tasks": [task(name) for name in names], "label_config": INTERFACE})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["results"]
    return found


def send(client: TestClient, action: str, **body: Any) -> None:
    assert client.post("/webhook", json={"action": action, **body}).status_code == 201


def test_what_is_known_and_likely_is_predicted(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "UP"
    assert client.post("/setup", json={"hostname": "http://127.0.0.1:1", "access_token": "x"}).json()["model_version"]
    first, third, fifth = predict(client, "0.jpg", "3.jpg", "5.jpg")
    (result,) = first["result"]
    assert (result["from_name"], result["to_name"], result["type"]) == ("tags", "photo", "choices")
    assert sorted(result["value"]["choices"]) == ["cat", "dog"], "cat is known; owl is no choice of this project"
    scores = [each["score"] for each in (first, third, fifth)]
    assert scores == pytest.approx([0.1, 0.6, 0.7]), "what probably misses a label comes first"


def test_an_annotation_is_a_decision_until_it_changes_or_goes(client: TestClient, photos_review: Review) -> None:
    send(client, "ANNOTATION_CREATED", task=task("0.jpg"), annotation=annotation(4, "cat", "dog"))
    assert decided(photos_review) == {("0.jpg", "dog"): PRESENT}
    assert {event.reviewer for event in photos_review.store.events()} == {"ann@example.org"}
    assert predict(client, "0.jpg")[0]["score"] == pytest.approx(0.4), "owl is left"
    send(client, "ANNOTATION_UPDATED", task=task("0.jpg"), annotation=annotation(4, "cat"))
    assert decided(photos_review) == {}, "dog is unknown again, not absent"
    send(client, "ANNOTATION_CREATED", task=task("3.jpg"), annotation=annotation(5, "cat"))
    send(client, "ANNOTATIONS_DELETED", annotations=[{"id": 5}])
    send(client, "ANNOTATION_CREATED", task=task("other.jpg"), annotation=annotation(6, "cat"))
    send(client, "PROJECT_UPDATED")
    assert decided(photos_review) == {}


def test_annotators_that_saw_every_choice_say_absent(photos_review: Review) -> None:
    app, project = create_backend(LabelStudioBackend(photos_review, unlisted="absent")), {"label_config": INTERFACE}
    with TestClient(app, base_url="http://localhost:9090") as client:
        send(client, "ANNOTATION_CREATED", task=task("5.jpg"), annotation=annotation(4, "cat"), project=project)
        found = decided(photos_review)
        assert found["5.jpg", "dog"] == ABSENT and ("5.jpg", "owl") not in found, "nobody was asked about owl"
        changed = annotation(4, "dog", "blurry")
        send(client, "ANNOTATION_UPDATED", task=task("5.jpg"), annotation=changed, project=project)
        assert decided(photos_review)["5.jpg", "dog"] == PRESENT, "a choice that is no class is left out"
        send(client, "ANNOTATION_DELETED", annotation={"id": 4})
    assert decided(photos_review) == {}, "an earlier state of an annotation does not count again"


def test_a_new_photo_is_fetched_from_label_studio(
    photos_review: Review, digits_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = (photos_review.folder.data.train.images.root / "0.jpg").read_bytes()  # type: ignore[attr-defined]
    asked: list[str | None] = []

    class LabelStudio(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self._answer(b'{"access": "short"}')

        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            if self.path.startswith("/data"):
                self.send_response(302)
                self.send_header("Location", "/bucket/new.jpg")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._answer(content)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    backend = LabelStudioBackend(photos_review)
    assert backend._predictor is None, "a review without a run scores no other image"
    vars(backend)["_predictor"] = Predictor(digits_run)
    with serve(LabelStudio) as address, TestClient(create_backend(backend), base_url="http://127.0.0.1") as client:
        client.post("/setup", json={"hostname": address, "access_token": "legacy"})
        new = {
            "tasks": [{"data": {"name": "a/new.jpg", "image": "/data/upload/1/0123abcd-new.jpg"}}],
            "label_config": INTERFACE,
        }
        assert client.post("/predict", json=new).json()["results"][0]["score"] > 0
        monkeypatch.setenv("LABEL_STUDIO_API_KEY", "a.b.c")
        assert client.post("/predict", json=new).status_code == 200
        assert asked == ["Token legacy", None, "Bearer short", None], (
            "the token is for Label Studio, not for its bucket"
        )
        new["tasks"][0]["data"]["image"] = "ftp://example.org/new.jpg"  # type: ignore[index]
        new["tasks"] += [{"data": {"image": "new.jpg"}}, {"data": {}}, task("0.jpg")]  # type: ignore[operator]
        results = client.post("/predict", json=new).json()["results"]
        assert [len(each["result"]) for each in results] == [0, 0, 0, 1], "one that cannot be read costs no other"
        problems = capsys.readouterr().err
        assert "ftp://example.org/new.jpg is not" in problems and "no address" in problems


def test_who_may_ask(photos_review: Review) -> None:
    backend = LabelStudioBackend(photos_review)
    with TestClient(create_backend(backend), base_url="http://evil.example") as client:
        assert client.get("/health").status_code == 400
    with TestClient(create_backend(backend, "secret"), base_url="http://labels.example") as client:
        assert client.get("/health").status_code == 401
        for password, status in (("wrong", 401), ("secret", 200)):
            given = base64.b64encode(f"anybody:{password}".encode()).decode()
            assert client.get("/health", headers={"Authorization": f"Basic {given}"}).status_code == status
    with TestClient(create_backend(backend), base_url="http://127.0.0.1") as client:
        answer = client.post("/predict", json={"tasks": [task("0.jpg")], "label_config": "<View/>"})
        assert answer.status_code == 400 and "Choices" in answer.json()["detail"]

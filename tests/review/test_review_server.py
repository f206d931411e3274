"""The page over a real socket: what a browser gets, its images, and what a hostile client does not get."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import socket
import sqlite3
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from tests.data.decoding.postscript import POSTSCRIPT, GhostscriptTrace
from tests.review.http_client import ReviewClient, ids, run_server
from tests.review.samples import make_photos
from tests.waiting import PATIENCE

from labelgap.data.prior import read_prior
from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review import Review, create_random_review, decisions, open_review_folder
from labelgap.review.database import FILE
from labelgap.review.security import MAX_BODY_BYTES
from labelgap.review.server import serve
from labelgap.review.store import Decision, DecisionStore
from labelgap.review.views import make_tile


def test_every_answer_forbids_what_the_page_does_not_need(client: ReviewClient) -> None:
    page = client.request("/class/1").text
    paths = [
        "/",
        "/class/1",
        "/api/session",
        "/nowhere",
        *re.findall(r'(?:src|href)="(/(?:static|thumbnail)[^"]+)"', page),
    ]
    for path in paths[:12]:
        headers = client.request(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "cache-control" in headers and "server" not in headers
    assert not re.search(r"<script>|<style|style=|\son\w+=|https?://", page)


def test_photos_lose_their_metadata_and_keep_their_shape(photos: Review, tmp_path: Path) -> None:
    with run_server(photos) as client:
        page = client.request("/class/0").text
        image = re.findall(r"/thumbnail/([0-9a-f]{16})", page)[0]
        for path, longest in ((f"/thumbnail/{image}", 240), (f"/large/{image}", 360)):
            body = client.request(path).body
            assert b"SECRET" not in body and b"EXIF" not in body and b"Exif" not in body
            with Image.open(io.BytesIO(body)) as picture:
                assert picture.size == (longest, longest * 3 // 4)
        assert client.request(f"/heat/{ids(page)[0]}").status == 404, "no run, no network, no heat map"
        assert "data-score" not in page and 'id="scores"' not in page, "a random image has no score"
        first, *_ = (tmp_path / "cache").rglob("*.webp")
        content = first.read_bytes()
        first.write_bytes(content[:50])
        assert {client.request(f"/{kind}/{image}").status for kind in ("thumbnail", "large")} == {200}
        assert first.read_bytes() == content, "half a file is made again"
        name = photos.candidates.columns.images[photos.candidates.image_index(image) or 0][1]
        (tmp_path / "photos" / name).unlink()
        assert client.request(f"/large/{image}").status == 404


def test_who_said_it_is_shown_beside_the_score(folder: Path, tmp_path: Path) -> None:
    with closing(Review(open_review_folder(folder))) as plain:
        key = plain.candidates.key(0)
    (tmp_path / "clip.csv").write_text(f"image,class,probability\n{key.image},{key.class_name},0.93\n")
    opened = open_review_folder(folder)
    asked = replace(opened, recipe={**opened.recipe, "options": {"prior": "clip.csv"}})
    data = opened.data
    prior, _ = read_prior(tmp_path / "clip.csv", data.classes, set(data.train.labels.images))
    asked.__dict__["data"] = replace(data, prior=prior)
    with closing(Review(asked)) as review, run_server(review) as client:
        tiles = [make_tile(review, number)["said"] for number in range(2)]
        assert tiles == ["clip 93 %", ""]
        page = client.request(f"/class/{data.classes.index(key.class_name)}").text
        assert "clip 93 %" in page and 'id="scores"' in page


def test_what_another_process_writes_is_seen(client: ReviewClient, review: Review, folder: Path) -> None:
    other = DecisionStore(folder / FILE)
    entry = review.candidates.key(0)
    other.append([Decision(entry, PRESENT, "from-elsewhere")], reviewer="carl", client="other-window")
    other.close()
    (change,) = client.request("/api/changes?since=0").json["changes"]
    assert change["who"] == "carl"
    many = [Decision(review.candidates.key(n % len(review.candidates)), PRESENT, f"many-{n:05d}") for n in range(2100)]
    review.store.append(many, reviewer="dora", client="third-window")
    assert client.request("/api/changes?since=1").json["reload"] is True


def test_a_name_that_is_a_script_stays_a_text(review: Review) -> None:
    evil = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
    with run_server(review, reviewer="</title><script>alert(2)</script>", budget=900) as client:
        assert client.post("/api/classes", {"name": evil}).json == {"number": 10, "name": evil}
        page = client.request("/class/10").text
        remaining = int(re.findall(r'data-remaining="(-?\d+)"', page)[0])
        assert client.request("/api/changes?since=0").json["remaining"] <= remaining <= 900
        identity, image = ids(page)[0], re.findall(r'data-image="([0-9a-f]{16})"', page)[0]
        for path in ("/", "/class/10", f"/detail/{identity}", f"/image/{image}", "/ask/random?class=10"):
            page = client.request(path).text
            assert "<img src=x" not in page and "<script>alert" not in page and "&lt;img src=x" in page, path


Attack = Callable[[ReviewClient, str], tuple[str, str, bytes | None, dict[str, str]]]


def post(body: Any, path: str = "/api/decisions", **headers: str | None) -> Attack:
    def attack(client: ReviewClient, identity: str) -> tuple[str, str, bytes | None, dict[str, str]]:
        good = {"store": client.store, "client": client.client, "reviewer": "eve"}
        good["actions"] = [{"request_id": uuid.uuid4().hex, "id": identity, "value": 1, "base_version": 0}]  # type: ignore[assignment]
        sent = body(good) if callable(body) else body
        data = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
        base: dict[str, str | None] = {"Content-Type": "application/json", "X-CSRF-Token": client.csrf_token}
        base |= {name.replace("_", "-"): value for name, value in headers.items()}
        return path, "POST", data, {name: value for name, value in base.items() if value is not None}

    return attack


def changed(**fields: Any) -> Attack:
    return post(lambda good: {**good, **fields})


def action(**fields: Any) -> Attack:
    return post(lambda good: {**good, "actions": [{**good["actions"][0], **fields}]})


def lease(**fields: Any) -> Attack:
    own = {"reviewer": "eve", "lease": "page-0001", "class_number": 3, "ids": []}
    return post(lambda good: {"store": good["store"], **own, **fields}, "/api/leases")


def new_class(name: Any = "bright", **fields: Any) -> Attack:
    return post(lambda good: {"store": good["store"], "reviewer": "eve", "name": name, **fields}, "/api/classes")


def get(path: str, **headers: str) -> Attack:
    return lambda client, identity: (path, "GET", None, {n.replace("_", "-"): v for n, v in headers.items()})


ATTACKS: dict[str, Attack] = {
    "no CSRF token": post(lambda good: good, X_CSRF_Token=None),
    "wrong CSRF token": post(lambda good: good, X_CSRF_Token="guess"),
    "foreign origin": post(lambda good: good, Origin="https://evil.example"),
    "origin of another scheme": post(lambda good: good, Origin="https://{host}"),
    "origin of another port": post(lambda good: good, Origin="http://127.0.0.1:1"),
    "origin with a path": post(lambda good: good, Origin="http://{host}/"),
    "broken origin": post(lambda good: good, Origin="http://["),
    "opaque origin": post(lambda good: good, Origin="null"),
    "cross-site fetch": post(lambda good: good, Sec_Fetch_Site="cross-site"),
    "same site, other port": post(lambda good: good, Sec_Fetch_Site="same-site"),
    "foreign host": post(lambda good: good, Host="evil.example"),
    "host that only begins like ours": post(lambda good: good, Host="127.0.0.1.evil.example"),
    "host with a user": post(lambda good: good, Host="127.0.0.1@evil.example"),
    "image for another site": get("/class/1", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"),
    "page in a frame of another site": get(
        "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe"
    ),
    "a form": post(lambda good: good, Content_Type="application/x-www-form-urlencoded"),
    "plain text": post(lambda good: good, Content_Type="text/plain"),
    "no json": post(b"value=1"),
    "half a json": post(b'{"store": "'),
    "bytes": post(b"\xff\xfe\x00\x01"),
    "deeply nested": post(b"[" * 100_000),
    "huge": post(b"x" * (MAX_BODY_BYTES + 1)),
    "huge name": changed(reviewer="e" * 100_000),
    "empty name": changed(reviewer="  "),
    "name with a control character": changed(reviewer="e\u0000ve\u001b[2J"),
    "name that is half a character": changed(reviewer="\ud800"),
    "another store": changed(store="0" * 32),
    "client with a path": changed(client="../../etc/passwd"),
    "unknown field": changed(admin=True),
    "no actions": changed(actions=[]),
    "too many actions": post(lambda good: {**good, "actions": good["actions"] * 501}),
    "actions of another kind": changed(actions="all"),
    "value out of range": action(value=2),
    "value as text": action(value="1"),
    "negative version": action(base_version=-1),
    "id of nobody": action(id="0" * 16),
    "id that is a path": action(id="../../../../etc"),
    "request with quotes": action(request="'; DROP TABLE events; --"),
    "not a number": post(b'{"store": NaN, "client": Infinity}'),
    "a lease of too much": lease(ids=["0" * 16] * 2001),
    "a lease of a path": lease(ids=["../../etc/passwd"]),
    "a lease of markup": lease(lease="<b>"),
    "a lease of a class that is text": lease(class_number="3"),
    "a lease with a field more": lease(more=1),
    "a class without a name": new_class(""),
    "a class with a long name": new_class("x" * 5000),
    "a class with a control character": new_class("a\x00b"),
    "a class that is a separator": new_class("a;b"),
    "a class that is a split": new_class("split"),
    "a class that is there": new_class("3"),
    "a class that is a list": new_class(["a"]),
    "a class for another store": new_class(store="0" * 32),
    "a class of a foreign page": post({"name": "bright"}, "/api/classes", X_CSRF_Token="x" * 32),
    "traversal": get("/static/x/../../../../etc/passwd"),
    "traversal, encoded": get("/static/x/%2e%2e%2f%2e%2e%2fstore.py"),
    "traversal, backslash": get("/static/x/..%5c..%5cstore.py"),
    "picture by path": get("/thumbnail/..%2f..%2f..%2fetc%2fpasswd"),
    "picture by a long id": get("/thumbnail/" + "a" * 4000),
    "picture of nobody": get("/large/" + "0" * 16),
    "the database": get("/review.sqlite"),
    "docs of the interface": get("/openapi.json"),
    "no host": get("/", Host=""),
}
ADDRESSES = {
    "/class/10": 404,
    "/class/1e3": 422,
    "/class/1?size=5000000": 422,
    "/class/1?skip=-1": 422,
    "/class/0?near=0123456789abcdef": 404,
    "/class/0?near=../../etc": 422,
    "/?aim=%3Cscript%3E": 422,
    "/ask/missing": 422,
    "/ask/random?class=10": 404,
    "/wrong?show=all": 422,
    f"/plan?reviewer={'a' * 81}": 422,
    "/plan?reviewer=%3Cb%3E": 200,
    "/wrong?skip=99999": 200,
    "/api/changes?since=0&aim=wrong": 422,
    "/api/changes?since=0&aim=classifier&ranking=1&class=99": 200,
}


@pytest.fixture(scope="module")
def fortress(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for all attacks, with one decision that must survive them."""
    folder = shutil.copytree(digits_run, tmp_path_factory.mktemp("fortress") / "run")
    with closing(Review(open_review_folder(folder))) as review, run_server(review) as client:
        identity = ids(client.request("/class/3").text)[0]
        assert client.decide(identity, ABSENT).status == 200
        yield client, identity, folder


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_request_gets_4xx_and_changes_nothing(fortress: Any, name: str) -> None:
    client, identity, folder = fortress
    path, method, body, headers = ATTACKS[name](client, identity)
    headers = {name: value.replace("{host}", f"127.0.0.1:{client.port}") for name, value in headers.items()}
    answer = client.request(path, method, body, headers)
    assert 400 <= answer.status < 500, (answer.status, answer.body[:200])
    assert b"root:" not in answer.body and b"import" not in answer.body and len(answer.body) < 5000
    with closing(sqlite3.connect(folder / "review.sqlite")) as connection:
        assert connection.execute("SELECT reviewer, value FROM events").fetchall() == [("anna", ABSENT)]
        assert connection.execute("SELECT * FROM classes").fetchall() == []


def test_values_in_addresses_are_checked_and_never_returned(fortress: Any) -> None:
    client, _, _ = fortress
    for path, status in ADDRESSES.items():
        response = client.request(path)
        assert response.status == status, path
        assert b"<script>" not in response.body and b"<b>anna" not in response.body
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert 400 <= client.request("/api/decisions", method).status < 500
    page = client.request("/class/person", headers={"Accept": "text/html"})
    assert page.status == 422 and page.text.startswith("<!doctype")
    assert client.request("/class/person").json["problem"] == "invalid"


def test_a_body_of_unknown_length_is_stopped_where_it_becomes_too_long(fortress: Any) -> None:
    client, _, folder = fortress
    head = (
        f"POST /api/decisions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Cookie: {client.entrance}\r\nX-CSRF-Token: {client.csrf_token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", client.port), timeout=PATIENCE) as connection:
        connection.sendall(head.encode())
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(16):
                connection.sendall(chunk)
            connection.sendall(b"0\r\n\r\n")
        except OSError:
            pass  # it hung up
        answer = connection.recv(4000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert len(decisions(folder)) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_nothing_is_shown_and_nothing_decided_without_the_token_of_the_link(review: Review, host: str) -> None:
    with run_server(review, host=host) as client:
        inside, token = client.another("anna"), client.token
        client.token = ""
        image = f"{int(review.candidates.columns.image_ids[0]):016x}"
        closed = (
            "/",
            "/class/1",
            "/api/session",
            f"/large/{image}",
            "/static/x/review.js",
            "/?token=guess",
            "/?token=",
        )
        for path in closed:
            answer = client.request(path)
            assert answer.status == 401 and answer.json["problem"] == "token", path
        page = client.request("/?token=guess", headers={"Accept": "text/html"})
        assert page.status == 401 and "token=" in page.text and token not in page.text
        assert client.request(f"/?token={token}", "POST").status == 401
        assert client.request("/", headers={"Cookie": f"labelgap-{client.port + 1}={token}"}).status == 401
        opened = client.request(f"/class/3?size=60&token={token}")
        assert (
            opened.headers["refresh"] == "0; url=/class/3?size=60"
            and opened.headers["referrer-policy"] == "no-referrer"
        )
        name, _, attributes = opened.headers["set-cookie"].partition(";")
        assert name == client.entrance + token and {"HttpOnly", "SameSite=strict"} <= {*attributes.strip().split("; ")}
        elsewhere = client.request(f"//evil.example/%0d%0aSet-Cookie:%20a=b?token={token}")
        assert elsewhere.headers["refresh"] == "0; url=/evil.example/%0D%0ASet-Cookie%3A%20a%3Db"
        assert inside.request("/").status == 200
        identity = ids(inside.request("/class/3").text)[0]
        assert inside.decide(identity, PRESENT).status == 200
        assert inside.request("/", headers={"Host": "evil.example"}).status == 400
        beyond = inside.request("/", headers={"Host": f"192.168.7.7:{client.port}"})
        assert beyond.status == (200 if host == "0.0.0.0" else 400)
        inside.token = ""
        assert inside.decide(identity, ABSENT).status == 401


def test_a_browser_is_not_told_the_token_by_its_arguments(
    review: Review, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told, links = list[tuple[str, str, int]](), list[str]()

    def look(address: str) -> None:
        path = Path(urlsplit(address).path)
        told.append((address, path.read_text(), path.stat().st_mode & 0o777))
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("labelgap.review.server._has_display", lambda: True)
    monkeypatch.setattr("labelgap.review.server.webbrowser.open", look)
    serve(review, port=0, live=False, on_start=links.append)
    ((address, page, mode),), token = told, links[0].partition("?token=")[2]
    assert urlsplit(address).scheme == "file" and token and token not in address and links[0] in page and mode == 0o600
    assert not [*review.path.glob("*.html"), *review.path.glob(".*.html")]


def test_a_full_disk_is_told_to_the_page_and_in_the_terminal(
    small_disk: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    review = Review(create_random_review(make_photos(tmp_path), "train", 5, 0, small_disk / "review"))
    ballast, identity = small_disk / "ballast", f"{int(review.candidates.columns.ids[0]):016x}"
    with run_server(review) as client:
        client.enter()
        ballast.write_bytes(bytes(150_000))
        confirmed = 0
        while (answer := client.decide(identity, confirmed % 2)).status == 200:
            confirmed += 1
        assert (
            answer.status == 507 and answer.json["problem"] == "unsaved" and "the disk is full" in answer.json["detail"]
        )
        assert client.decide(identity, PRESENT).status == 507, "it is tried again"
        assert client.request("/").status == 200
        ballast.unlink()
        assert client.decide(identity, UNKNOWN).status == 200
        assert review.store.last_id() == confirmed + 1 and confirmed > 0
    review.close()
    told = capfd.readouterr().err
    assert told.count("labelgap: the disk is full") == 1 and "Traceback" not in told


def test_a_store_that_is_damaged_while_it_is_served_is_told_in_words(
    client: ReviewClient, review: Review, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client.enter()
    identity = f"{int(review.candidates.columns.ids[0]):016x}"
    assert client.decide(identity, PRESENT).status == 200
    for suffix in ("", "-wal"):
        path = folder / f"review.sqlite{suffix}"
        path.write_bytes(b"\x5a" * path.stat().st_size)
    review.store._connection.execute("PRAGMA shrink_memory")  # what SQLite has in memory is intact
    for _ in range(2):
        answer = client.decide(identity, ABSENT)
        assert answer.status == 503 and answer.json["problem"] == "unsaved", answer.body
        assert "review.sqlite is damaged" in answer.json["detail"] and "recover" in answer.json["detail"]
    page = client.request("/", headers={"Accept": "text/html"})
    assert page.status in (200, 503) and "Traceback" not in page.text
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_postscript_and_too_many_pixels_are_refused(
    photos: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "100000")
    ghostscript = GhostscriptTrace(tmp_path, monkeypatch)
    with run_server(photos) as client:
        image = re.findall(r"/thumbnail/([0-9a-f]{16})", client.request("/class/0").text)[0]
        photo = tmp_path / "photos" / photos.candidates.columns.images[photos.candidates.image_index(image) or 0][1]
        assert client.request(f"/thumbnail/{image}").status == 200
        photo.write_bytes(POSTSCRIPT)
        for path in (f"/thumbnail/{image}", f"/large/{image}"):
            answer = client.request(path)
            assert answer.status == 404 and "PostScript" in answer.json["detail"]
        Image.new("RGB", (400, 251)).save(photo)
        answer = client.request(f"/thumbnail/{image}")
        assert answer.status == 404 and "LABELGAP_MAX_PIXELS" in answer.json["detail"]
        assert not ghostscript.started

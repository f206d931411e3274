"""Images of the page: one decode per image whoever asks, a bound on large ones, and files that are no photos."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.decoding.postscript import POSTSCRIPT, GhostscriptTrace
from tests.review.http_client import ReviewClient, run_server
from tests.review.sample_photos import make_photos

from labelgap.core.errors import InputError
from labelgap.data import decoding
from labelgap.data.decoding import DecodedImage
from labelgap.review import Review, create_random_review, thumbnails


@pytest.fixture
def review(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Review]:
    monkeypatch.setenv("LABELGAP_CACHE", str(tmp_path / "cache"))
    opened = Review(create_random_review(make_photos(tmp_path), "train", 5, 0, tmp_path / "review"))
    yield opened
    opened.close()


class SlowDecoder:
    """Stands for ``decoded``; every call waits until it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.started, self.release = threading.Event(), threading.Event()
        self.error: InputError | None = None

    @contextmanager
    def __call__(self, *arguments: Any, **options: Any) -> Iterator[DecodedImage]:
        self.calls += 1
        self.started.set()
        assert self.release.wait(60)
        if self.error is not None:
            raise self.error
        yield DecodedImage(np.full((30, 40, 3), 99, np.uint8))


def ask_at_once(review: Review, decoder: SlowDecoder, count: int) -> list[bytes | BaseException]:
    """Ask for one thumbnail ``count`` times while its first decode is under way."""
    made = thumbnails.ReviewThumbnails(review)
    waiting = threading.Barrier(count)

    def ask(number: int) -> bytes:
        if number:
            assert decoder.started.wait(60)
        waiting.wait(60) if number else None
        return made.get(0, 240)

    with ThreadPoolExecutor(count) as threads:
        asked = [threads.submit(ask, number) for number in range(count)]
        assert decoder.started.wait(60)
        waiting.wait(60)
        decoder.release.set()
        answers = [each.exception() or each.result() for each in asked]
    assert not made._requests
    return answers


def test_requests_for_one_image_at_the_same_time_share_one_decode(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = SlowDecoder()
    monkeypatch.setattr(thumbnails, "decoded", decoder)
    answers = ask_at_once(review, decoder, 6)
    assert decoder.calls == 1 and len(set(answers)) == 1 and isinstance(answers[0], bytes)


def test_an_image_that_cannot_be_decoded_is_an_error_for_all_who_asked_and_is_tried_again(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = SlowDecoder()
    decoder.error = InputError("damaged")
    monkeypatch.setattr(thumbnails, "decoded", decoder)
    assert all(isinstance(answer, InputError) for answer in ask_at_once(review, decoder, 3))
    before, decoder.error = decoder.calls, None
    assert thumbnails.ReviewThumbnails(review).get(0, 240)[:4] == b"RIFF" and decoder.calls == before + 1


def test_large_images_are_decoded_one_after_another_whoever_asks(
    review: Review, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photo has 97,200 pixels: two at once would be more than the budget."""
    monkeypatch.setattr(decoding, "_budget", decoding._PixelBudget(100_000))
    lock, active, most, made = threading.Lock(), 0, 0, DecodedImage.thumbnail

    def count(self: DecodedImage, size: int) -> Image.Image:
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        try:
            return made(self, size)
        finally:
            with lock:
                active -= 1

    monkeypatch.setattr(DecodedImage, "thumbnail", count)
    with run_server(review) as client, ThreadPoolExecutor(10) as threads:
        images = sorted(set(re.findall(r"/thumbnail/([0-9a-f]{16})", client.request("/class/0").text)))
        paths = [f"/{kind}/{image}" for image in images for kind in ("thumbnail", "large")]
        assert len(paths) >= 6 and all(answer.status == 200 for answer in threads.map(client.request, paths))
    assert most == 1


def image_of(client: ReviewClient, review: Review) -> tuple[str, str]:
    """The id and the file name of one image of the page."""
    image = re.findall(r"/thumbnail/([0-9a-f]{16})", client.request("/class/0").text)[0]
    return image, review.candidates.columns.images[review.candidates.image_index(image) or 0][1]


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_a_photo_that_is_postscript_is_refused_by_the_page(
    review: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghostscript = GhostscriptTrace(tmp_path, monkeypatch)
    with run_server(review) as client:
        image, name = image_of(client, review)
        (tmp_path / "photos" / name).write_bytes(POSTSCRIPT)
        for path in (f"/thumbnail/{image}", f"/large/{image}"):
            answer = client.request(path)
            assert answer.status == 404 and "is a PostScript file (EPS)" in answer.json["detail"]
    assert not ghostscript.started


def test_a_photo_of_too_many_pixels_is_refused_by_the_page_with_the_remedy(
    review: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "100000")
    with run_server(review) as client:
        image, name = image_of(client, review)
        assert client.request(f"/thumbnail/{image}").status == 200
        Image.new("RGB", (400, 251)).save(tmp_path / "photos" / name)
        answer = client.request(f"/thumbnail/{image}")
        assert answer.status == 404 and "LABELGAP_MAX_PIXELS" in answer.json["detail"]

"""Images of the page: one decode per image whoever asks, a bound on large ones, and files that are no photos."""

from __future__ import annotations

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image
from tests.data.decoding.postscript import POSTSCRIPT, GhostscriptTrace
from tests.review.http_client import ReviewClient

from labelgap.core.errors import InputError
from labelgap.review import Review, thumbnails


@pytest.fixture
def review(photos: Review) -> Review:
    """Of photos, also for the client."""
    return photos


def test_requests_at_the_same_time_share_one_decode(review: Review, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, encode = list[int](), thumbnails._encode

    def slow(*arguments: object) -> bytes:
        calls.append(0)
        time.sleep(0.1)
        if len(calls) == 1:
            raise InputError("damaged")
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(thumbnails, "_encode", slow)
    made = thumbnails.ReviewThumbnails(review)
    with pytest.raises(InputError):
        made.get(0, 240)
    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(made.get, [0] * 6, [240] * 6))) == 1 and len(calls) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_postscript_and_too_many_pixels_are_refused(
    review: Review, client: ReviewClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELGAP_MAX_PIXELS", "100000")
    ghostscript = GhostscriptTrace(tmp_path, monkeypatch)
    image = re.findall(r"/thumbnail/([0-9a-f]{16})", client.request("/class/0").text)[0]
    photo = tmp_path / "photos" / review.candidates.columns.images[review.candidates.image_index(image) or 0][1]
    assert client.request(f"/thumbnail/{image}").status == 200
    photo.write_bytes(POSTSCRIPT)
    for path in (f"/thumbnail/{image}", f"/large/{image}"):
        answer = client.request(path)
        assert answer.status == 404 and "PostScript" in answer.json["detail"]
    Image.new("RGB", (400, 251)).save(photo)
    answer = client.request(f"/thumbnail/{image}")
    assert answer.status == 404 and "LABELGAP_MAX_PIXELS" in answer.json["detail"]
    assert not ghostscript.started

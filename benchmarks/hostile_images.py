"""Decode damaged images, and measure the memory that very large ones take.

    python benchmarks/hostile_images.py [--mutations 20000] [--seed 0] [--images 20]

First, small images of every format are damaged and decoded, with a limit of 20 million pixels: counted are errors that
are not labelgap's, files left open, and the largest growth of memory. Then, in a process of its own each: the peak of
memory above that of the imports for a thumbnail and the array of a PNG of 9000 × 9000 pixels, the scan of one of
13,000 × 13,000, and a review server that is asked for the thumbnails of twenty different ones at once, which also says
what it keeps afterwards. Linux only. About 600 MB of disk and ten minutes on two slow cores.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, PngImagePlugin

import labelgap as lg
from labelgap.core.errors import LabelGapError
from labelgap.data import scanning
from labelgap.data.decoding import decode, decoded
from labelgap.data.images import FileImages
from labelgap.review import Review, create_random_review
from labelgap.review.server import create_server

SIDE, SCAN_SIDE = 9000, 13_000
MEASURES: Final = ("thumbnail", "array", "scan", "page")
NUMBERS: Final = (0, 1, 0x7F, 0xFF, 0x100, 0x4000, 0x7FFF, 0xFFFF, 0x10000, 0x4000_0000, 0x7FFF_FFFF, 0xFFFF_FFFF)


def memory(key: str) -> int:
    """Return ``VmRSS`` or its peak ``VmHWM`` of this process in megabytes."""
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) // 1000 if found else 0


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 30, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)


def samples() -> Iterator[bytes]:
    """Yield small files of all formats and of their common variants."""
    exif, text, image = Image.Exif(), PngImagePlugin.PngInfo(), smooth(48, 36)
    exif[0x0112], exif[0x010F] = 6, "camera"
    text.add_text("a", "b" * 400, zip=True)
    frames: dict[str, Any] = {"save_all": True, "append_images": [image.rotate(90), image], "duration": 10}
    variants: dict[str, list[dict[str, Any]]] = {
        "JPEG": [{}, {"progressive": True}, {"exif": exif}, {"icc_profile": bytes(500)}],
        "MPO": [{**frames, "append_images": [image.rotate(90)]}],
        "PNG": [
            {},
            {"pnginfo": text},
            {"exif": exif},
            {"icc_profile": bytes(500)},
            {"transparency": (1, 2, 3)},
            frames,
        ],
        "GIF": [{}, {**frames, "comment": b"c" * 600}],
        "WEBP": [{}, {"lossless": True}, {"exif": exif}, frames],
        "TIFF": [{}, *({"compression": name} for name in ("tiff_lzw", "tiff_deflate", "jpeg")), {"exif": exif}, frames],
        **{"BMP": [{}], "PPM": [{}], "JPEG2000": [{}], "AVIF": [{}]},
    }
    shown = [(image, name, options) for name, all_options in variants.items() for options in all_options]
    shown += [(image.convert(mode), "PNG", {}) for mode in ("1", "P", "LA", "RGBA", "I;16")]
    shown += [(image.convert(mode), "TIFF", {}) for mode in ("1", "F", "CMYK")] + [(image.convert("CMYK"), "JPEG", {})]
    for each, name, options in shown:
        buffer = io.BytesIO()
        each.copy().save(buffer, name, **options)
        yield buffer.getvalue()


def damage(content: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        place = draw.randrange(min(len(damaged), draw.choice((120, 120, len(content)))) or 1)
        match draw.randrange(6):
            case 0 | 1:
                damaged[place : place + 1] = bytes([draw.randrange(256)])
            case 2:
                kind = draw.choice(("<I", ">I", "<H", ">H"))
                number = draw.choice(NUMBERS) % (1 << 8 * struct.calcsize(kind))
                damaged[place : place + struct.calcsize(kind)] = struct.pack(kind, number)
            case 3:
                del damaged[place : place + draw.randrange(1, 40)]
            case 4:
                damaged[place:place] = damaged[: draw.randrange(1, 200)]
            case _:
                del damaged[max(place, 8) :]
    return bytes(damaged)


def fuzz(count: int, seed: int, path: Path) -> None:
    os.environ["LABELGAP_MAX_PIXELS"] = "20000000"
    draw, files, outcomes, largest = random.Random(seed), list(samples()), Counter[str](), 0
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(count):
        path.write_bytes(damage(files[number % len(files)], draw) or b"\0")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        try:
            decode(path, draw.choice((None, 16)))
            with decoded(path) as image:
                image.thumbnail(24)
            del image
            outcomes["read"] += 1
        except LabelGapError:
            outcomes["refused"] += 1
        except Exception as error:
            outcomes[f"FAILED: {error!r}"] += 1
        outcomes["files left open"] += len(list(Path("/proc/self/fd").iterdir())) - descriptors
        largest = max(largest, memory("VmHWM") - before)
    print(f"{count:,} damaged images: {dict(outcomes)}, largest growth {largest} MB", flush=True)


def page(folder: Path, names: list[str]) -> int:
    """Ask a real server for all thumbnails at once; return what it keeps, in megabytes."""
    rows = "".join(f"{name},train,1,\n" for name in names) + "v.png,val,1,0\nt.png,test,0,1\n"
    for name in "vt":
        smooth(9, 9).save(folder / f"{name}.png")
    (folder / "tags.csv").write_text("image,split,cat,dog\n" + rows)
    nothing = scanning.ImageSignature(0, 0.0, (0.0, 0.0))
    scanning._scan_image = lambda images, row: nothing  # the scan is measured by itself
    data = lg.load("csv", folder / "tags.csv", duplicates="off")
    server, listener, address = create_server(
        Review(create_random_review(data, "train", len(names), 0, folder / "r")), port=0
    )
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()

    def get(path: str) -> bytes:
        with urllib.request.urlopen(address + path, timeout=600) as answer:
            return bytes(answer.read())

    images = sorted(set(re.findall(rb"/thumbnail/([0-9a-f]{16})", get("class/1"))))
    before = memory("VmRSS")
    with ThreadPoolExecutor(len(images)) as threads:
        list(threads.map(lambda image: get(f"thumbnail/{image.decode()}"), images))
    return memory("VmRSS") - before


def measure(name: str, folder: Path) -> None:
    names, kept = sorted(path.name for path in folder.glob("p*.png")), ""
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    if name == "thumbnail":
        with decoded(folder / names[0]) as image:
            image.thumbnail(240)
    elif name == "array":
        decode(folder / names[0])
    elif name == "scan":
        scanning.scan_images(FileImages(folder, ["large.png"]))
    else:
        kept = f", kept {page(folder, names)} MB, {len(names)} images"
    print(f"{name}: peak {memory('VmHWM') - before} MB above {before} MB{kept}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--mutations", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--images", type=int, default=20, help="of the review page; 0 leaves memory out")
    options.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        measure(given.measure[0], Path(given.measure[1]))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fuzz(given.mutations, given.seed, folder / "photo.jpg")
        for number in range(given.images):
            smooth(SIDE, SIDE, number).save(folder / f"p{number:02}.png", compress_level=1)
        if given.images:
            smooth(SCAN_SIDE, SCAN_SIDE).save(folder / "large.png", compress_level=1)
        environment = {key: value for key, value in os.environ.items() if key != "LABELGAP_MAX_PIXELS"}
        for name in MEASURES if given.images else ():
            command = [sys.executable, __file__, "--measure", name, place]
            subprocess.run(command, check=True, env={**environment, "LABELGAP_CACHE": str(folder / "cache")})


if __name__ == "__main__":
    main()

"""The script beside an exported network: it predicts without labelgap and torch."""

from __future__ import annotations

from inspect import getsource, unwrap
from typing import Final

from labelgap.core.text import CONTROL, FORMULA
from labelgap.data.decoding import (
    FORMATS,
    PLUGINS,
    brightest_sample,
    exif_orientation,
    full_scale,
    is_deep,
    readable_formats,
    to_rgb,
    upright,
)
from labelgap.data.readers.image_paths import IMAGE_SUFFIX

_TEMPLATE: Final = '''\
"""Labels of images by an exported network. Needs onnxruntime and Pillow: python predict_onnx.py photo.jpg folder/"""

from __future__ import annotations
import csv, json, math, os, re, sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
try:
    import numpy as np, onnxruntime
    from PIL import ExifTags, Image
except ImportError as error:
    sys.exit(f"this script needs onnxruntime and Pillow ({error}): pip install onnxruntime pillow")

HERE, FORMATS, PLUGINS = Path(__file__).resolve().parent, @FORMATS@, @PLUGINS@

# how labelgap reads an image
@DECODING@

def files(paths):  # a folder is replaced by the images below it, sorted, without hidden ones
    suffix = r"\\.npy" if SPEC["input"] == "features" else @SUFFIX@
    for path in paths:
        if not Path(path).is_dir():
            yield path
        for top, folders, names in os.walk(path) if Path(path).is_dir() else ():
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                if not name.startswith(".") and re.fullmatch(suffix, Path(name).suffix, re.IGNORECASE):
                    yield str(Path(top, name))

def inputs(path):  # an image as bytes (1, C, size, size): upright, on white, resized; or an .npy of features (N, D)
    if SPEC["input"] == "features":
        return np.load(path).astype(np.float32)
    size, side, image = SPEC["size"], SPEC["resize"] or SPEC["size"], Image.open(path, formats=readable_formats())
    image.draft(None, (2 * side, 2 * side))
    white = full_scale(image.mode, brightest_sample(image)) if is_deep(image.mode) else 255
    image = Image.fromarray(np.ascontiguousarray(upright(to_rgb(image, white), exif_orientation(image))))
    shape = [side * length // min(image.size) for length in image.size] if SPEC["resize"] else [size, size]
    image = image.resize(shape, Image.Resampling[SPEC["interpolation"].upper()])
    left, top = (round((length - size) / 2) for length in shape)
    image = image.crop((left, top, left + size, top + size)).convert("L" if SPEC["channels"] == 1 else "RGB")
    return np.asarray(image, dtype=np.uint8).reshape(1, size, size, SPEC["channels"]).transpose(0, 3, 1, 2)

def sigmoid(logit):
    return 0.5 * (1 + math.tanh(0.5 * logit))

def label(logit, known):  # unsure: the odds are near the threshold's, or the threshold is a default
    within, cut = SPEC["unsure_within_odds"][known["mark"]], min(max(known["threshold"], 1e-12), 1 - 1e-12)
    apart = (known["scale"] or 1) * (logit - math.log(cut / (1 - cut)))
    return "unsure" if within is None or abs(apart) < math.log(within) else "present" if apart > 0 else "absent"

def shown(text):  # what a terminal obeys is escaped
    return re.sub(@CONTROL@, lambda match: match[0].encode("unicode_escape").decode(), text)

def text(name):  # a cell that no spreadsheet takes for a formula
    return shown("'" + name if re.match(@FORMULA@, name) else name)

def predict(paths):
    session = onnxruntime.InferenceSession(str(HERE / SPEC["model"]), providers=["CPUExecutionProvider"])
    rows = csv.writer(sys.stdout)
    rows.writerow(["image", "class", "score", "probability", "label", "mark"])
    unread = 0
    for path in paths:
        try:
            given = inputs(path)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            formats = ", ".join(readable_formats())
            print(shown(f"{path} cannot be read ({error}). The formats are {formats}."), file=sys.stderr)
            unread += 1
            continue
        for logits in session.run(["logits"], {SPEC["input"]: given})[0].tolist():
            for logit, known in zip(logits, SPEC["classes"]):
                calibrated = known["offset"] is not None
                probability = f"{sigmoid(known['scale'] * logit + known['offset']):.6f}" if calibrated else ""
                cells = [text(path), text(known["name"]), f"{sigmoid(logit):.6f}", probability]
                rows.writerow([*cells, label(logit, known), known["mark"]])
    return unread

if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit(f"usage: python {Path(__file__).name} IMAGE|FOLDER … > predicted.csv")
    try:
        SPEC = json.loads((HERE / "preprocess.json").read_text(encoding="utf-8"))
        found = list(files(sys.argv[1:]))
        failed = predict(found)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output is gone
        os._exit(141)
    except Exception as error:
        sys.exit(f"preprocess.json or the network beside this script is damaged, export again ({error!r})"[:500])
    if not found:
        sys.exit(shown(f"there is no image in {' '.join(sys.argv[1:])}: name images or folders of images"))
    sys.exit(1 if failed else 0)
'''

_DECODING: Final = (readable_formats, is_deep, brightest_sample, full_scale, to_rgb, upright, exif_orientation)
"""The functions of this package that the script has, so that both read an image in one way."""

SCRIPT: Final = (
    _TEMPLATE.replace("@FORMATS@", repr(FORMATS))
    .replace("@PLUGINS@", repr(PLUGINS))
    .replace("@DECODING@\n", "\n".join(getsource(unwrap(each)) for each in _DECODING))
    .replace("@CONTROL@", ascii(CONTROL))
    .replace("@FORMULA@", repr(FORMULA))
    .replace("@SUFFIX@", repr(IMAGE_SUFFIX.pattern))
)

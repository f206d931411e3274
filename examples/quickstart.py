"""From photos and a patchy table of tags to a classifier: ``python examples/quickstart.py [TAGS.csv]``."""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

import labelgap as lg

# # Quickstart
#
# You have photos, and a table of tags that nobody ever finished: a row per photo, a column per tag, 1 where it is in
# the photo, 0 where it is not, nothing where nobody looked. Name your CSV; the names of photos start from its folder.
# Without one, a toy album is made: 160 scenes of handwritten digits, for which half of the labels were never given.

given = [word for word in sys.argv[1:] if word.endswith(".csv")]
tags = Path(given[0]) if given else Path("album", "tags.csv")
if not given:
    tags.parent.mkdir(exist_ok=True)
    toy = lg.load("digits", train=160, val=0, test=0).train
    for row, name in enumerate(toy.images.names):
        Image.fromarray(toy.images[row][:, :, 0]).save(tags.parent / f"{name}.png")
    toy.evaluation_labels.drop(0.5).to_csv(tags, splits=["train"] * 96 + ["val"] * 32 + ["test"] * 32)

# A label is present, absent or unknown, and unknown stays unknown. Look at what was understood before you train: how
# the table was read, which photos are to learn from, to choose by (val) and to measure on (test), how much is known.

try:
    data = lg.load("csv", tags)
except lg.InputError as problems:  # all of them at once: photos that are not there, cells that cannot be read
    sys.exit(str(problems))
print(data, *data.findings, sep="\n  ")

# Train. Method and protocol are chosen from what the labels are like, and the reason is said. Without a GPU that is a
# linear head on the features of a network that knows everyday photos. (Digits are none: do not expect much.)

folder = tags.parent / "run"
run = lg.fit(data, out=folder, resume=folder.exists())

# How good is it? Only known labels are measured, and how many classes could be counted stands beside the mean. A few
# dozen photos make a rough number. Where no absent label is known there is none, and none is made up.

held_out = data.splits[-1]
found = run.evaluate(data, held_out.name)
if found["map"] is not None:
    print(f"{held_out.name} mAP {100 * found['map']:.0f} over {found['classes_counted']} of {found['classes']} classes")

# Ask it about photos. What is called present lies above the class's own threshold, which was chosen on val. New files
# work as well: `run.predict(["holiday.jpg"])`.

photos = held_out.images.select([0, 1, 2])
for name, called in zip(photos.names, run.predict(photos) >= run.thresholds.values, strict=True):
    print(name, [tag for tag, yes in zip(data.classes, called, strict=True) if yes])

# The whole story on one page, to open in a browser. `MODEL_CARD.md` beside it is for whoever gets the model.

print(lg.write_report(run, data=data))

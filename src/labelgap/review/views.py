"""What each page shows: plain values for the templates, made from the review."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.labels.codes import ABSENT, PRESENT, UNKNOWN
from labelgap.review.candidates import WRONG
from labelgap.review.formatting import format_estimate, format_percent
from labelgap.review.progress_chart import progress_chart
from labelgap.review.sample_estimate import MIN_SAMPLE, SampleEstimate
from labelgap.review.session import ClassProgress, Review

__all__ = [
    "PAGE_SIZES",
    "Tile",
    "grid_context",
    "image_context",
    "known_labels",
    "make_tile",
    "overview_context",
    "panel_context",
]

PAGE_SIZES: Final = (60, 240, 2000)
_SHOWN_ABSENT: Final = 12


@dataclass(frozen=True)
class Tile:
    """One candidate on a page.

    Attributes:
        id: of the candidate.
        image_id: of its image.
        image: name of the image.
        split: its split.
        class_number: of its class.
        class_name: of its class.
        value: what stands: 1, 0, -1, or empty.
        version: the event that stands.
        who: who decided.
        score: the probability, in percent.
        observed: 1 or 0 where the label is known and looks wrong; else empty.
    """

    id: str
    image_id: str
    image: str
    split: str
    class_number: int
    class_name: str
    value: str
    version: int
    who: str
    score: str
    observed: str


def make_tile(review: Review, number: int) -> Tile:
    """Return a candidate as a page shows it."""
    columns, standing = review.candidates.columns, review.standing
    entry, image = review.candidates.entry(number), int(columns.image[number])
    decided = bool(standing.decided[number])
    return Tile(
        id=f"{int(columns.ids[number]):016x}",
        image_id=f"{int(columns.image_ids[image]):016x}",
        image=entry.image,
        split=entry.split,
        class_number=int(columns.class_number[number]),
        class_name=entry.class_name,
        value=str(int(standing.value[number])) if decided else "",
        version=int(standing.version[number]),
        who=standing.reviewers[standing.reviewer[number]] if decided else "",
        score=format_percent(float(columns.score[number])),
        observed=str(int(columns.observed[number])) if columns.kind[number] == WRONG else "",
    )


def overview_context(review: Review) -> dict[str, Any]:
    """Return the list of classes: where the most is to be found comes first."""
    classes = sorted(review.classes(), key=lambda row: (-row.expected, row.total == row.decided, -row.total))
    wrong = [row for row in classes if row.wrong]
    return {
        "classes": [row for row in classes if row.total],
        "wrong": sorted(wrong, key=lambda row: -row.wrong),
        "expected": any(row.expected for row in classes),
        "images": len(review.candidates.columns.places),
        "first_image": _image_id(review, int(review.candidates.image_order[0])),
        "next": _next_class(classes, None, False),
    }


def grid_context(
    review: Review, class_number: int, *, wrong: bool, undecided: bool, page: int, size: int
) -> dict[str, Any]:
    """Return one page of the candidates of a class.

    Args:
        review: the review.
        class_number: of the class.
        wrong: whether to show labels that look wrong, rather than those that may be missing.
        undecided: whether to leave out what is decided.
        page: from 1; past the end, the last one.
        size: how many at most.
    """
    review.standing.refresh()
    rows: NDArray[np.int64] = review.candidates.listed(class_number, wrong)
    total = len(rows)
    if undecided:
        rows = rows[~review.standing.decided[rows]]
    pages = max(1, -(-len(rows) // size))
    page = min(page, pages)
    counts = review.classes()
    return {
        "class_number": class_number,
        "class_name": review.candidates.classes[class_number],
        "counts": next((row for row in counts if row.number == class_number), None),
        "wrong": wrong,
        "undecided": undecided,
        "page": page,
        "pages": pages,
        "size": size,
        "sizes": PAGE_SIZES,
        "total": total,
        "shown": len(rows),
        "tiles": [make_tile(review, int(number)) for number in rows[(page - 1) * size : page * size]],
        "next": _next_class(counts, class_number, wrong),
    }


def image_context(review: Review, image: int) -> dict[str, Any]:
    """Return an image with all its candidates, and its neighbours in the order of the review."""
    review.standing.refresh()
    columns, order = review.candidates.columns, review.candidates.image_order
    at = int(np.flatnonzero(order == image)[0])
    split, name = columns.places[image]
    done = review.standing.decided
    following = (int(other) for other in order[at + 1 :])
    left = next((other for other in following if not done[review.candidates.of_image(other)].all()), None)
    return {
        "image_id": _image_id(review, image),
        "image": name,
        "split": split,
        "known": known_labels(review, image),
        "tiles": [make_tile(review, int(number)) for number in review.candidates.of_image(image)],
        "number": at + 1,
        "images": len(order),
        "before": _image_id(review, int(order[at - 1])) if at else "",
        "after": _image_id(review, int(order[at + 1])) if at + 1 < len(order) else "",
        "next": "" if left is None else _image_id(review, left),
    }


def known_labels(review: Review, image: int) -> dict[str, Any]:
    """Return what was observed of an image: classes that are there, some that are not, how many are unknown."""
    found = review.place(image)
    if found is None:
        return {"present": [], "absent": [], "more_absent": 0, "unknown": 0}
    split, row = found
    codes = split.labels.batch([row]).numpy()[0]
    names = split.labels.classes
    present, absent = ([names[number] for number in np.flatnonzero(codes == state)] for state in (PRESENT, ABSENT))
    return {
        "present": present,
        "absent": absent[:_SHOWN_ABSENT],
        "more_absent": max(len(absent) - _SHOWN_ABSENT, 0),
        "unknown": int((codes == UNKNOWN).sum()),
    }


def panel_context(review: Review, class_number: int | None, reviewer: str) -> dict[str, Any]:
    """Return what stands beside every page: how far, how fast, what was found, how many are missing."""
    speed = review.standing.per_minute(reviewer)
    told: dict[str, Any] = review.remembered(f"panel {class_number}", lambda: _told(review, class_number))
    return {**told, "speed": None if speed is None else round(speed)}


def _told(review: Review, class_number: int | None) -> dict[str, Any]:
    """Return what changes with a decision alone."""
    progress, made, standing = review.progress(), review.estimate(), review.standing
    with standing.lock:
        authors = np.bincount(standing.reviewer[standing.decided], minlength=len(standing.reviewers)).tolist()
        people = sorted(zip(standing.reviewers, authors, strict=True), key=lambda pair: -pair[1])
    enough = made is not None and made.looked >= MIN_SAMPLE
    return {
        "progress": progress,
        "share": 0 if not progress.total else progress.decided / progress.total,
        "curve": progress_chart(standing.curve(), made.share if made is not None and enough else None),
        "random": enough,
        "estimates": _estimates(review, made, class_number),
        "people": [(person, count) for person, count in people if count],
    }


def _estimates(review: Review, made: SampleEstimate | None, class_number: int | None) -> list[str]:
    """Say how many labels are missing: of the class that is shown, and of all."""
    own = None if class_number is None else review.estimate(class_number)
    told = []
    if own is not None and class_number is not None and own.looked >= MIN_SAMPLE:
        told.append(format_estimate(own, review.candidates.classes[class_number]))
    return (
        told
        if told and made is not None and made.classes == 1
        else [*told, format_estimate(made, before=review.candidates.about.get("estimate"))]
    )


def _image_id(review: Review, image: int) -> str:
    return f"{int(review.candidates.columns.image_ids[image]):016x}"


def _next_class(classes: list[ClassProgress], current: int | None, wrong: bool) -> ClassProgress | None:
    """Return the class to go on with: where the model expects to find the most."""

    def left(row: ClassProgress) -> int:
        return row.wrong - row.wrong_decided if wrong else row.total - row.decided

    open_ones = [row for row in classes if left(row) and row.number != current]
    return max(open_ones, key=lambda row: (0 if wrong else row.expected, left(row)), default=None)

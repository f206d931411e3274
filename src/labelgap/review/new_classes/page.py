"""What the page of a class shows of examples, and of images that look alike."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelgap.review.new_classes.extension import FEWEST_EXAMPLES
from labelgap.review.queues.feeds import count_present
from labelgap.review.session import Review

MOST_EXAMPLES: Final = 20
"""How many examples a person is asked for at most."""


def added_context(review: Review, class_number: int | None) -> dict[str, Any] | None:
    """Return how many examples of an added class there are, and how many are wanted; None for other classes."""
    if class_number is None or class_number < len(review.folder.classes):
        return None
    return {"examples": count_present(review, class_number), "fewest": FEWEST_EXAMPLES, "most": MOST_EXAMPLES}


def near_context(review: Review, image: int | None) -> tuple[NDArray[np.int64] | None, dict[str, Any] | None]:
    """Return the places of images by similarity to one, and what the page says of them."""
    if image is None:
        return None, None
    positions = review.similar.positions(image)
    identity = f"{int(review.candidates.columns.image_ids[image]):016x}"
    return positions, {"image_id": identity, "ready": positions is not None, "problem": review.similar.problem}

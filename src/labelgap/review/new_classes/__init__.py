"""Classes that people add to a review: their names, their candidates, and images that look alike."""

from __future__ import annotations

from labelgap.review.new_classes.added_names import AddedClassNames
from labelgap.review.new_classes.extension import ADDED_SCORE, FEWEST_EXAMPLES, AddedClasses, extend_candidates
from labelgap.review.new_classes.names import check_class_name
from labelgap.review.new_classes.similar_images import SimilarImages
from labelgap.review.new_classes.similarity import ImageSimilarity

__all__ = [
    "ADDED_SCORE",
    "AddedClassNames",
    "AddedClasses",
    "FEWEST_EXAMPLES",
    "ImageSimilarity",
    "SimilarImages",
    "check_class_name",
    "extend_candidates",
]

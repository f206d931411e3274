"""What to ask next: the aims of a review, a plan of the next minutes, and the known labels that look wrong."""

from labelgap.review.queues.aims import AIM_TEXT, AimCount, brought_by_aim, describe_aim
from labelgap.review.queues.plan import AnswerSpeed, PlanStep, answer_speed, finds_per_minute, next_minutes
from labelgap.review.queues.wrong_labels import Precision, WrongLabels, describe_put_away, estimate_wrong_labels

__all__ = [
    "AIM_TEXT",
    "AimCount",
    "AnswerSpeed",
    "PlanStep",
    "Precision",
    "WrongLabels",
    "answer_speed",
    "brought_by_aim",
    "describe_aim",
    "describe_put_away",
    "estimate_wrong_labels",
    "finds_per_minute",
    "next_minutes",
]

"""What to ask next: the aims of a review, a plan of the next minutes, and the known labels that look wrong."""

from labelgap.review.queues.aims import AIM_TEXT, AimCount, brought_by_aim, describe_aim
from labelgap.review.queues.plan import AnswerSpeed, PlanStep, answer_speed, finds_per_minute, next_minutes

__all__ = [
    "AIM_TEXT",
    "AimCount",
    "AnswerSpeed",
    "PlanStep",
    "answer_speed",
    "brought_by_aim",
    "describe_aim",
    "finds_per_minute",
    "next_minutes",
]

"""Losses for labels of three states: one method family per file, and the contract that a training loop calls.

``loss(name, **options)`` creates a loss by the name of its method; every method is also a public class here, and its
formula a pure function in ``labelgap.functional``. ``Loss`` is the contract; ``register_method`` adds a method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from labelgap.losses.base.registry import (
    Method,
    Paper,
    defaults,
    describe_method,
    find_loss,
    loss,
    loss_options,
    method_options,
    methods,
    published_options,
    register_method,
)

if TYPE_CHECKING:
    from labelgap.losses.assume_negative import (
        AssumeNegative,
        DownWeighting,
        IgnoreUnknown,
        L1Penalty,
        L2Penalty,
        SmoothedAssumeNegative,
        SmoothedIgnoreUnknown,
        SmoothedUnknown,
        WeakAssumeNegative,
    )
    from labelgap.losses.asymmetric import AsymmetricLoss, FocalLoss
    from labelgap.losses.base.loss import ElementwiseLoss, Loss, MixtureLoss, MultiHead, ReducedLoss, TrainingScores
    from labelgap.losses.base.mixture import Mixture
    from labelgap.losses.base.state import PerImageState
    from labelgap.losses.curriculum import CurriculumLabeling
    from labelgap.losses.entropy import AsymmetricPseudoLabeling, EntropyMaximization, EntropyMinimization
    from labelgap.losses.hill_splc import HillLoss, SelfPacedCorrection
    from labelgap.losses.interactive import InteractiveLearning
    from labelgap.losses.large_loss import (
        AbsoluteLargeLossCorrection,
        AbsoluteLargeLossPermanentCorrection,
        AbsoluteLargeLossRejection,
        LargeLossCorrection,
        LargeLossPermanentCorrection,
        LargeLossRejection,
    )
    from labelgap.losses.ranking import PairwiseRanking, RobustRankingLoss, WarpLoss
    from labelgap.losses.robust import GeneralizedPriorRobustLoss, GeneralizedRobustLoss
    from labelgap.losses.role import ExpectedPositiveRegularization, OnlineLabelEstimation
    from labelgap.losses.selective import ClassAwareSelectiveLoss
    from labelgap.losses.two_way import SoftmaxCrossEntropy, TwoWayClassLoss, TwoWayLoss, TwoWaySampleLoss

__all__ = [
    "AbsoluteLargeLossCorrection",
    "AbsoluteLargeLossPermanentCorrection",
    "AbsoluteLargeLossRejection",
    "AssumeNegative",
    "AsymmetricLoss",
    "AsymmetricPseudoLabeling",
    "ClassAwareSelectiveLoss",
    "CurriculumLabeling",
    "DownWeighting",
    "ElementwiseLoss",
    "EntropyMaximization",
    "EntropyMinimization",
    "ExpectedPositiveRegularization",
    "FocalLoss",
    "GeneralizedPriorRobustLoss",
    "GeneralizedRobustLoss",
    "HillLoss",
    "IgnoreUnknown",
    "InteractiveLearning",
    "L1Penalty",
    "L2Penalty",
    "LargeLossCorrection",
    "LargeLossPermanentCorrection",
    "LargeLossRejection",
    "Loss",
    "Method",
    "Mixture",
    "MixtureLoss",
    "MultiHead",
    "OnlineLabelEstimation",
    "PairwiseRanking",
    "Paper",
    "PerImageState",
    "ReducedLoss",
    "RobustRankingLoss",
    "SelfPacedCorrection",
    "SmoothedAssumeNegative",
    "SmoothedIgnoreUnknown",
    "SmoothedUnknown",
    "SoftmaxCrossEntropy",
    "TrainingScores",
    "TwoWayClassLoss",
    "TwoWayLoss",
    "TwoWaySampleLoss",
    "WarpLoss",
    "WeakAssumeNegative",
    "defaults",
    "describe_method",
    "loss",
    "loss_options",
    "method_options",
    "methods",
    "published_options",
    "register_method",
]

__getattr__ = find_loss

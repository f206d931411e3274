"""Logistic regression on fixed features, for many penalties at once."""

from __future__ import annotations

from labelgap.training.logistic.path import LogisticPath, fit_logistic_path

__all__ = ["LogisticPath", "fit_logistic_path"]

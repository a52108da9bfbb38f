"""The scikit-learn face: heads on features that somebody else computed."""

from heteroscedastic.estimator.classifier import HeteroscedasticClassifier

__all__ = ["HeteroscedasticClassifier"]

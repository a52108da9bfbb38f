"""Correlated, input-dependent label noise for classifiers in JAX.

The mathematics lies at this level (`latent`, `predictive`, `losses`, `metrics`, ...), Flax
heads and layers in `models`, data in `data`, training steps in `training`, runs in `runs`, and the
analysis of finished runs in `analysis`.
"""

__version__ = "0.2.0"

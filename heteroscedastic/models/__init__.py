"""Flax modules: backbones, heads, the classifier, and the drop-in layer."""

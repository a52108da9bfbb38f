"""Boxes of a detector: pure functions of one image, in fixed shapes, mapped over a batch by vmap.

Boxes have rows (y0, x0, y1, x1), as everywhere (see heteroscedastic/boxes.py), here in pixels.
"""

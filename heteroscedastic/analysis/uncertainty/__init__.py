"""Calibration, confidence and entropy of the predictions of runs."""

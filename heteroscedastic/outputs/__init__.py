"""Functions of the outputs of any model, as NumPy arrays: no run is needed."""

from heteroscedastic.outputs.calibration import calibration_report
from heteroscedastic.outputs.class_pairs import confused_pairs
from heteroscedastic.outputs.label_quality import label_issues

__all__ = ["calibration_report", "confused_pairs", "label_issues"]

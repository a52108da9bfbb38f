"""Calibration: agreement of predicted probabilities with observed frequencies.

Bins: in all modules bins are open below and closed above, so a value on an edge belongs to the bin
below it. A value outside the edges belongs to the outermost bin. Bins of equal size may separate
equal values; each of these then counts as the fraction of them that is correct.

Ties: `auroc` counts a tie as one half; `average_precision` and `precision_recall` treat equal
values as one group; `precision_at` and `risk_coverage` take the mean over all orders of ties.
"""

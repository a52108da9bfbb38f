"""How far stated probabilities agree with observed frequencies.

Bins are open below and closed above, in all modules: a value on an edge belongs to the bin below
it, and a value outside the edges to the outermost bin. Bins of equally many examples share values
that are equal: each counts as right by the share of them that are. Ties count one half in `auroc`;
all values as large come together in `average_precision` and `precision_recall`; `precision_at` and
`risk_coverage` take the mean over all orders of ties.
"""

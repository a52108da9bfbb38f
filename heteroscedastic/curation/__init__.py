"""Curation before training: (seed, ids, labels, num_classes) -> ids, labels.

Curation selects examples and changes labels. Every random number of an example depends on the seed
and the id alone. Subsets are therefore nested, and wrong labels at a lower rate are among those at
a higher rate, except for `permute_labels`. A function with the argument `images` also receives the
images of the examples. Labels are int32 [n], or [n, m] padded with -1; all arrays are NumPy arrays.
"""

from heteroscedastic.curation.label_noise import (
    confuse_pairs,
    confuse_random_pairs,
    drop_and_add,
    instance_dependent,
    permute_labels,
    rising_noise,
    symmetric,
    transitions,
)
from heteroscedastic.curation.subsets import (
    exponential,
    step,
    subset,
    undersample,
)

# The functions that config.curation may name.
__all__ = [
    "confuse_pairs",
    "confuse_random_pairs",
    "drop_and_add",
    "exponential",
    "instance_dependent",
    "permute_labels",
    "rising_noise",
    "step",
    "subset",
    "symmetric",
    "transitions",
    "undersample",
]

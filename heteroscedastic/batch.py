"""The examples of one step."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int

# An extra: the maps of a fixed trunk of a detector, computed before training.
TRUNK_MAPS = "trunk_maps"


class Batch(NamedTuple):
    """The examples of one step; an absent example has weight 0 and affects nothing."""

    inputs: Any  # any pytree whose arrays have the leading batch axes
    labels: Int[Array, "*b"] | Int[Array, "*b m"]  # a class, or a list of classes padded with -1
    weights: Float[Array, "*b"]  # >= 0; 0 means absent
    ids: Int[Array, "*b"]  # positions in the stored split
    extras: dict[str, Array]  # further arrays by name, such as boxes


class SentencePairs(NamedTuple):
    """Inputs of a translator: rows of several sentence pairs (see data/packing.py).

    Segments number the pairs of a row from 1, in source and target alike; 0 is padding.
    """

    source: Int[Array, "b s"]  # words
    source_segments: Int[Array, "b s"]
    previous: Int[Array, "b t"]  # the target's word before each; at its first, the end of sentence
    target_segments: Int[Array, "b t"]

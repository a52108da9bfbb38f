"""What a step is given."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int


class Batch(NamedTuple):
    """Examples of a step; an absent one has weight 0 and changes nothing."""

    inputs: Any  # any tree with leading batch axes
    labels: Int[Array, "*b"] | Int[Array, "*b m"]  # a class, or a list of them padded with -1
    weights: Float[Array, "*b"]  # >= 0; 0 means absent
    ids: Int[Array, "*b"]  # positions in the stored split
    extras: dict[str, Array]  # what one method needs

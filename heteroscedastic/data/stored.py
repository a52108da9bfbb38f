"""Examples as they lie in a file, before a config chooses among them."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Shaped, UInt8

from heteroscedastic.data.slices import Slice


class Part(NamedTuple):
    """Examples of one slice of a stored split."""

    images: UInt8[np.ndarray, "n h w c"] | list[bytes]  # pixels, or images as files hold them
    fields: dict[str, Shaped[np.ndarray, "n ..."]]  # "label", and whatever else is known by example
    ids: Int[np.ndarray, "n"]  # positions in the stored split


@runtime_checkable
class Stored(Protocol):
    """What can be read from."""

    where: str  # for errors
    class_names: tuple[str, ...]
    sizes: dict[str, int]  # examples of every stored split
    num_channels: int  # of images that are not decoded

    def read(self, part: Slice) -> Part:
        """The examples of a slice, in order."""
        ...

"""Chains of a config, such as "pad_crop(4)|flip_lr": functions found by name, their settings
checked when bound.
"""

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from heteroscedastic import bind

_MOST_PIXELS = 2**14  # of a side: more is a mistake, and would fill the memory
_LARGEST = 10**6  # value of a pixel


class _Rule(NamedTuple):
    """What a setting must be."""

    words: str
    holds: Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


def _are_pairs(value: Any) -> bool:
    if not isinstance(value, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    ):
        return False
    classes = [c for pair in value for c in pair]
    return all(_is_whole(c) and c >= 0 for c in classes) and len(set(classes)) == len(classes)


def _whole(least: int) -> _Rule:
    return _Rule(f"a whole number >= {least}", lambda x: _is_whole(x) and x >= least)


def _pixels(least: int) -> _Rule:
    words = f"a whole number of pixels from {least} to {_MOST_PIXELS:,}"
    return _Rule(words, lambda x: _is_whole(x) and least <= x <= _MOST_PIXELS)


def _one_of(*choices: str) -> _Rule:
    return _Rule(
        f"one of {', '.join(map(repr, choices))}", lambda x: isinstance(x, str) and x in choices
    )


_VALUE = _Rule(
    f"a number from -{_LARGEST:,} to {_LARGEST:,}", lambda x: _is_number(x) and abs(x) <= _LARGEST
)
_SHARE = _Rule("a number in [0, 1]", lambda x: _is_number(x) and 0 <= x <= 1)
_AREA = _Rule("a share of the image above 0, up to 1", lambda x: _is_number(x) and 0 < x <= 1)
_ASPECT = _Rule(
    "width over height, from 0.001 to 1,000", lambda x: _is_number(x) and 1e-3 <= x <= 1e3
)
_RULES = {  # by setting
    "size": _pixels(1),
    "padding": _pixels(0),
    **dict.fromkeys(("low", "high"), _VALUE),
    **dict.fromkeys(("min_area", "max_area"), _AREA),
    **dict.fromkeys(("min_aspect", "max_aspect"), _ASPECT),
    **dict.fromkeys(("brightness", "saturation", "hue", "contrast"), _SHARE),
    "method": _one_of("bilinear", "bicubic"),
    "dct_method": _one_of("", "INTEGER_FAST", "INTEGER_ACCURATE"),
    **dict.fromkeys(("rate", "drop_rate", "add_rate"), _SHARE),
    "pairs": _Rule("disjoint pairs of classes, such as ((1, 7), (4, 9))", _are_pairs),
    "num_pairs": _whole(0),
    "num_examples": _whole(1),
}
_RULES_OF = {
    ("pad_crop", "size"): _pixels(0),
    ("shift", "size"): _pixels(0),
}  # by function, before those of any
_RISING = {  # settings of which the second is the larger, and whether they may be equal
    ("low", "high"): False,
    ("min_area", "max_area"): True,
    ("min_aspect", "max_aspect"): True,
}


def bound(functions: ModuleType, text: Any) -> list[Callable]:
    """The functions of a chain, in order.

    Args:
      functions: augment.py, ops.py for a stream, or curation.py.
      text: of a config.

    Raises:
      ValueError: the text is no chain of them, or a setting is out of range; names the link.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no chain such as 'pad_crop(4)|flip_lr', which is a text.")
    links = bind.chain(functions, text)
    for link in links:
        _check(link)
    ranges = [words(link) for link in links if link.func.__name__ == "value_range"]
    if len(ranges) > 1:
        raise ValueError(
            f"{' and '.join(ranges)} are in one chain, but pixels are mapped from 0 to 255 only"
            " once."
        )
    return links


def words(link: Callable) -> str:
    """A link as a chain names it."""
    settings = ", ".join(f"{name}={value!r}" for name, value in link.keywords.items())
    return f"{link.func.__name__}({settings})"


def check_shapes(links: Sequence[Callable], shape: tuple[int, ...], dtype: Any) -> None:
    """Checks operations of augment.py on images [h, w, c] of this shape and type, one after the
    other.

    Raises:
      ValueError: names the operation that does not suit them.
    """
    image, key = jax.ShapeDtypeStruct(shape, dtype), jax.eval_shape(lambda: jax.random.key(0))
    for link in links:
        try:
            image = jax.eval_shape(link, key, image)
        except ValueError as error:
            raise ValueError(
                f"{words(link)} on images of {' x '.join(map(str, image.shape))}: {error}"
            ) from None


def _check(link: Callable) -> None:
    for setting, value in link.keywords.items():
        rule = _RULES_OF.get((link.func.__name__, setting)) or _RULES[setting]
        if not rule.holds(value):
            raise ValueError(f"{words(link)}: {setting} is {value!r}, but must be {rule.words}.")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(link.func).parameters.items()
    }
    settings = defaults | link.keywords
    for (low, high), may_be_equal in _RISING.items():
        if low in settings:
            first, last = np.float32(settings[low]), np.float32(settings[high])  # as they are used
            if first > last or (first == last and not may_be_equal):
                relation = "at least" if may_be_equal else "above"
                raise ValueError(
                    f"{words(link)}: {high} is {last}, but must be {relation} {low}, which is"
                    f" {first}."
                )

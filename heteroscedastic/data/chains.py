"""Chains of a config, such as "pad_crop(4)|flip_lr".

Each link names a function and its settings, which are checked when the chain is parsed.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from heteroscedastic import bind

_MAX_SIDE = 2**14  # pixels; larger sides would exhaust the memory
_MAX_VALUE = 10**6  # of a pixel


class _Rule(NamedTuple):
    """A condition on the value of a setting."""

    text: str
    is_met: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _are_pairs(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(_is_integer(c) and c >= 0 for c in pair)
        for pair in value
    )


def _are_disjoint_pairs(value: Any) -> bool:
    return _are_pairs(value) and len({c for pair in value for c in pair}) == 2 * len(value)


def _are_moves(value: Any) -> bool:
    return (
        _are_pairs(value)
        and len({source for source, _ in value}) == len(value)
        and all(source != target for source, target in value)
    )


def _integer(minimum: int) -> _Rule:
    return _Rule(f"an integer >= {minimum}", lambda x: _is_integer(x) and x >= minimum)


def _pixels(minimum: int) -> _Rule:
    text = f"an integer number of pixels from {minimum} to {_MAX_SIDE:,}"
    return _Rule(text, lambda x: _is_integer(x) and minimum <= x <= _MAX_SIDE)


def _one_of(*choices: str) -> _Rule:
    return _Rule(
        f"one of {', '.join(map(repr, choices))}", lambda x: isinstance(x, str) and x in choices
    )


def _are_values(value: Any) -> bool:
    numbers = value if isinstance(value, tuple) and value else (value,)
    return all(_is_number(x) and abs(x) <= _MAX_VALUE for x in numbers)


_VALUE = _Rule(
    f"a number from -{_MAX_VALUE:,} to {_MAX_VALUE:,}, or a tuple of one for each channel",
    _are_values,
)
_FRACTION = _Rule("a number in [0, 1]", lambda x: _is_number(x) and 0 <= x <= 1)
_AREA = _Rule("a fraction of the image above 0, at most 1", lambda x: _is_number(x) and 0 < x <= 1)
_ASPECT = _Rule(
    "an aspect ratio (width over height) from 0.001 to 1,000",
    lambda x: _is_number(x) and 1e-3 <= x <= 1e3,
)
_RULES = {  # by setting
    **dict.fromkeys(("size", "shorter", "longer", "narrow"), _pixels(1)),
    "padding": _pixels(0),
    **dict.fromkeys(("low", "high"), _VALUE),
    **dict.fromkeys(("min_area", "max_area"), _AREA),
    **dict.fromkeys(("min_aspect", "max_aspect"), _ASPECT),
    **dict.fromkeys(("brightness", "saturation", "hue", "contrast"), _FRACTION),
    "std": _Rule("a finite number >= 0", lambda x: _is_number(x) and 0 <= x < float("inf")),
    "method": _one_of("bilinear", "bicubic"),
    "dct_method": _one_of("", "INTEGER_FAST", "INTEGER_ACCURATE"),
    **dict.fromkeys(("rate", "drop_rate", "add_rate", "highest"), _FRACTION),
    "ratio": _Rule("a finite number >= 1", lambda x: _is_number(x) and 1 <= x < float("inf")),
    "pairs": _Rule("disjoint pairs of classes, such as ((1, 7), (4, 9))", _are_disjoint_pairs),
    "moves": _Rule(
        "pairs of a class and another one that it becomes, once for each class, such as"
        " ((3, 5), (5, 3))",
        _are_moves,
    ),
    "num_pairs": _integer(0),
    "fill": _Rule(
        "a tuple of integers from 0 to 255, one for each channel, such as (124, 116, 104)",
        lambda x: isinstance(x, tuple) and x and all(_is_integer(v) and 0 <= v <= 255 for v in x),
    ),
    **dict.fromkeys(("num_boxes", "num_examples"), _integer(1)),
    "fraction": _Rule("a number above 0, at most 1", lambda x: _is_number(x) and 0 < x <= 1),
}
_FUNCTION_RULES = {  # by function and setting; they take precedence over _RULES
    ("pad_crop", "size"): _pixels(0),
    ("shift", "size"): _pixels(0),
}
_RANGES = {  # settings for the ends of a range, and whether both may be equal
    ("low", "high"): False,
    ("min_area", "max_area"): True,
    ("min_aspect", "max_aspect"): True,
}
_OF_COLORS = ("blend_jitter", "lighting")  # operations in the units of pixels
OF_BOXES = ("context", "mask_others")  # operations that require boxes
_OF_TRAINING = ("sample_boxes", "with_mirrored")  # operations of config.data.train alone
# Operations of augment.py that give each occurrence of an image the same pixels in every epoch.
_WITHOUT_RANDOM_PIXELS = (
    *("central_crop", "resize", "sample_boxes"),
    *("to_rgb", "value_range", "with_mirrored"),
)
# Operations after which an image is wide or tall as it is stored.
_KEEPING_ORIENTATION = (
    *("blend_jitter", "color_jitter", "context", "decode", "flip_lr", "lighting", "mask_others"),
    *("pad_crop", "sample_boxes", "value_range", "with_mirrored"),
)
# Operations after which an object is where it is in the stored image.
_KEEPING_BOXES = (
    *("blend_jitter", "color_jitter", "context", "decode", "lighting", "mask_others", "to_rgb"),
    "value_range",
)
_ONCE = ("value_range", "with_mirrored")  # operations that a chain may contain once
NO_OCCURRENCE = "with_mirrored is for config.data.train alone, as it mirrors a second occurrence."
_ALTERNATIVES = [("num_examples", "fraction")]  # settings of which exactly one is set


def parse(functions: ModuleType, text: Any) -> list[Callable]:
    """The functions of a chain, in order, with their settings bound.

    Args:
      functions: module of the functions: augment, streaming.ops or curation.
      text: the chain, as written in a config.

    Raises:
      ValueError: the text is not a chain of these functions, or a setting is out of range; names
        the link.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a chain; a chain is a string: 'pad_crop(4)|flip_lr'.")
    links = bind.chain(functions, text)
    for link in links:
        _check(link)
    names = [link.func.__name__ for link in links]
    for name in _ONCE:
        if names.count(name) > 1:
            texts = " and ".join(link_text(link) for link in links if link.func.__name__ == name)
            raise ValueError(f"{texts} are in one chain, but a chain may contain {name} once.")
    ranges = [link_text(link) for link in links if link.func.__name__ == "value_range"]
    after_range = names[names.index("value_range") :] if ranges else []
    if "fit" in names and set(names[names.index("fit") + 1 :]) - {"value_range"}:
        raise ValueError("fit fills the image up to its canvas; only value_range may follow it.")
    for link in links if has_orientations(links) else ():
        if link.func.__name__ not in (*_KEEPING_ORIENTATION, "fit"):
            raise ValueError(
                f"{link_text(link)} may change the orientation of an image, on which the canvas of"
                " fit depends; remove it, or narrow from fit, for a square canvas."
            )
    for name in _OF_COLORS:
        if name in after_range:
            raise ValueError(f"{name} requires pixels from 0 to 255; place it before {ranges[0]}.")
    return links


def link_text(link: Callable) -> str:
    """A link as it is written in a chain, with its settings by name."""
    settings = ", ".join(f"{name}={value!r}" for name, value in link.keywords.items())
    return f"{link.func.__name__}({settings})"


def requires_boxes(links: Sequence[Callable]) -> bool:
    """Whether an operation of a chain requires boxes."""
    return any(link.func.__name__ in OF_BOXES for link in links)


def with_random_pixels(links: Sequence[Callable]) -> list[Callable]:
    """The operations of a chain that may give an image other pixels in each epoch."""
    return [link for link in links if link.func.__name__ not in _WITHOUT_RANDOM_PIXELS]


def has_orientations(links: Sequence[Callable]) -> bool:
    """Whether wide and tall images have different canvases, so that a batch has one of the two."""
    return any(link.keywords.get("narrow") is not None for link in links)


def occurrences(links: Sequence[Callable]) -> int:
    """How many times an epoch of training has each example, by the chain of training."""
    return 2 if any(link.func.__name__ == "with_mirrored" for link in links) else 1


def evaluation(functions: ModuleType, text: Any) -> list[Callable]:
    """As `parse`, for an evaluation.

    Raises:
      ValueError: an operation is of training alone, as it repeats examples or removes boxes.
    """
    links = parse(functions, text)
    for link in links:
        if link.func.__name__ in _OF_TRAINING:
            raise ValueError(f"{link_text(link)} is for config.data.train alone; remove it.")
    return links


def evaluation_of_boxes(functions: ModuleType, text: Any) -> list[Callable]:
    """As `evaluation`, for a detector, whose boxes are in pixels of the stored image with `fit`.

    Raises:
      ValueError: also if an operation moves pixels before `fit`.
    """
    links = evaluation(functions, text)
    names = [link.func.__name__ for link in links]
    for link in links[: names.index("fit")] if "fit" in names else ():
        if link.func.__name__ not in _KEEPING_BOXES:
            raise ValueError(
                f"{link_text(link)} before fit gives boxes in other pixels than those of the stored"
                " image, in which detections are reported; remove it."
            )
    return links


def check_shapes(links: Sequence[Callable], example: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Checks that a chain of operations of augment.py applies to examples of these shapes.

    Args:
      links: operations of the chain.
      example: shapes and types of the image and the extras of an example, by name.

    Raises:
      ValueError: an operation does not apply; names it and the shape [h, w, c] of its input.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    if links and len(example["image"].shape) != 3:
        raise ValueError(
            f"{link_text(links[0])} is an operation on images, but the inputs are features of shape"
            f" {example['image'].shape}; set the chain to ''."
        )
    for link in links:
        try:
            example = jax.eval_shape(link, key, example)
        except ValueError as error:
            shape = " x ".join(map(str, example["image"].shape))
            raise ValueError(f"{link_text(link)} on images of {shape}: {error}") from None


def _check(link: Callable) -> None:
    for setting, value in link.keywords.items():
        rule = _FUNCTION_RULES.get((link.func.__name__, setting)) or _RULES[setting]
        if not rule.is_met(value):
            raise ValueError(f"{link_text(link)}: {setting} is {value!r}, but must be {rule.text}.")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(link.func).parameters.items()
    }
    settings = defaults | link.keywords
    for names in _ALTERNATIVES:
        if names[0] in settings and len(link.keywords.keys() & set(names)) != 1:
            raise ValueError(f"{link_text(link)} requires exactly one of {' and '.join(names)}.")
    for (low, high), may_be_equal in _RANGES.items():
        if low in settings:
            # Compared as float32, the type in which they are used.
            minimum, maximum = (np.asarray(settings[x], np.float32) for x in (low, high))
            if minimum.ndim and maximum.ndim and minimum.shape != maximum.shape:
                raise ValueError(
                    f"{link_text(link)}: {low} and {high} are of {minimum.size} and {maximum.size}"
                    " channels."
                )
            if np.any(minimum > maximum) or (np.any(minimum == maximum) and not may_be_equal):
                relation = "at least" if may_be_equal else "above"
                raise ValueError(
                    f"{link_text(link)}: {high} is {maximum}, but must be {relation} {low},"
                    f" which is {minimum}."
                )

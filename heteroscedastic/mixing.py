"""Mixing of the examples of a batch: (key, inputs, targets, weights) -> the same three.

The partners of an example are the next examples of its batch, or of its microbatch, whose order is
random; the first examples are the partners of the last ones. A roll by a constant moves one example
between devices, whereas a random permutation would gather the batch on each device. An example
stays unmixed if a partner is absent or the example itself, as in a batch of one. An example that is
mixed keeps its own weight.

`config.mixing` names a function; without it no example is mixed. `draws` is "batch" if all examples
share the random numbers, as in the published code, or "example" if each example has its own.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from heteroscedastic.bind import check_number

__all__ = ["cutmix", "mixup", "mixup_or_cutmix", "ricap"]  # choices of config.mixing

_MIN_PARAMETER = 1e-30  # of a beta distribution; float32 holds it
_ROWS, _COLUMNS = -3, -2  # axes of images

Examples = tuple[Any, Float[Array, "*b k"]]  # inputs and targets
_Edges = tuple[tuple[Any, Any], ...]  # start and stop of the parts of an axis: numbers or arrays


class Mixed(NamedTuple):
    """The examples of a batch after mixing."""

    inputs: Any
    targets: Float[Array, "*b k"]
    weights: Float[Array, "*b"]


def mixup(
    key: PRNGKeyArray,
    inputs: Any,
    targets: Float[Array, "*b k"],
    weights: Float[Array, "*b"],
    *,
    alpha: float,
    draws: str = "batch",
) -> Mixed:
    """Means lambda x + (1 - lambda) x' of an example and the next one, of inputs and targets.

    Args:
      key: PRNG key; consumed.
      inputs: a tree of arrays of floating-point numbers.
      targets: a distribution over the classes, or a probability of each class.
      weights: 0 for an absent example.
      alpha: lambda is drawn from Beta(alpha, alpha).
      draws: "batch" or "example".

    Raises:
      ValueError: a setting is out of range, or the inputs are integers.

    Source: Zhang et al. (2018), arXiv:1710.09412, Eq. 1.
    """
    check_number("alpha", alpha, at_least=_MIN_PARAMETER)
    examples, shape = (inputs, targets), _draw_shape(draws, weights)
    mixed = _mixup(key, examples, _later(examples, 1), shape, alpha)
    return _with_unmixed(mixed, inputs, targets, weights, num_partners=1)


def cutmix(
    key: PRNGKeyArray,
    inputs: Any,
    targets: Float[Array, "*b k"],
    weights: Float[Array, "*b"],
    *,
    alpha: float = 1.0,
    probability: float = 1.0,
    draws: str = "batch",
) -> Mixed:
    """Replaces a window of each image by that window of the next image.

    With lambda from Beta(alpha, alpha), the sides of the window are those of the image times
    sqrt(1 - lambda). Its centre is uniform over the pixels, and its parts outside of the image are
    cut off. The targets are averaged by the shares of the pixels. One version of the authors' code
    takes lambda as the share, although the window may be cut off.

    Args:
      key: PRNG key; consumed.
      inputs: images [*b, h, w, c].
      targets: a distribution over the classes, or a probability of each class.
      weights: 0 for an absent example.
      alpha: of the distribution of lambda.
      probability: that examples are mixed, in [0, 1].
      draws: "batch" or "example".

    Raises:
      ValueError: a setting is out of range, or the inputs are no images.

    Source: Yun et al. (2019), arXiv:1905.04899, Eq. 1 and 2.
    """
    check_number("alpha", alpha, at_least=_MIN_PARAMETER)
    check_number("probability", probability, at_least=0, at_most=1)
    examples, shape = (inputs, targets), _draw_shape(draws, weights)
    mixed = _cutmix(key, examples, _later(examples, 1), shape, alpha, probability)
    return _with_unmixed(mixed, inputs, targets, weights, num_partners=1)


def ricap(
    key: PRNGKeyArray,
    inputs: Any,
    targets: Float[Array, "*b k"],
    weights: Float[Array, "*b"],
    *,
    beta: float = 0.3,
    draws: str = "batch",
) -> Mixed:
    """Random crops of four images side by side: random image cropping and patching.

    A row and a column, each at a share from Beta(beta, beta) of the image, divide it into four
    patches: a crop of the image itself at the upper left, and crops of the next three images at the
    upper right, lower left and lower right. Each crop has its own random place. The targets are
    averaged by the shares of the pixels. An example with any absent partner stays unmixed, and so
    does a batch of fewer than four examples.

    Args:
      key: PRNG key; consumed.
      inputs: images [*b, h, w, c].
      targets: a distribution over the classes, or a probability of each class.
      weights: 0 for an absent example.
      beta: of the distribution of both shares.
      draws: "batch" or "example".

    Raises:
      ValueError: a setting is out of range, or the inputs are no images.

    Source: Takahashi et al. (2018), arXiv:1811.09030.
    """
    check_number("beta", beta, at_least=_MIN_PARAMETER)
    shape = _draw_shape(draws, weights)
    height, width = _image_size("ricap", inputs, len(shape))
    boundary_key, *crop_keys = jax.random.split(key, 5)
    shares = jax.random.beta(boundary_key, beta, beta, (2, *shape), jnp.float32)
    row = jnp.round(height * shares[0]).astype(jnp.int32)
    column = jnp.round(width * shares[1]).astype(jnp.int32)
    vertical: _Edges = ((0, row), (row, height))
    horizontal: _Edges = ((0, column), (column, width))
    sources = [(inputs, targets), *(_later((inputs, targets), 1 + i) for i in range(3))]
    images, pixel_shares = inputs, []
    for i, ((top, bottom), (left, right)) in enumerate(itertools.product(vertical, horizontal)):
        row_key, column_key = jax.random.split(crop_keys[i])
        rows, in_rows = _crop(row_key, top, bottom, height)
        columns, in_columns = _crop(column_key, left, right, width)
        crops = jnp.take_along_axis(sources[i][0], _on_axis(rows, _ROWS), _ROWS)
        crops = jnp.take_along_axis(crops, _on_axis(columns, _COLUMNS), _COLUMNS)
        in_patch = _on_axis(in_rows, _ROWS) & _on_axis(in_columns, _COLUMNS)
        images = jnp.where(in_patch, crops, images)
        pixel_shares.append((bottom - top) * (right - left) / (height * width))
    mixed = images, _mean(pixel_shares, [source[1] for source in sources])
    return _with_unmixed(mixed, inputs, targets, weights, num_partners=3)


def mixup_or_cutmix(
    key: PRNGKeyArray,
    inputs: Any,
    targets: Float[Array, "*b k"],
    weights: Float[Array, "*b"],
    *,
    mixup_alpha: float,
    cutmix_alpha: float = 1.0,
    cutmix_probability: float = 0.5,
    draws: str = "batch",
) -> Mixed:
    """Either `cutmix`, with a probability, or `mixup`; both with the same partners.

    Args:
      key: PRNG key; consumed.
      inputs: images [*b, h, w, c] of floating-point numbers.
      targets: a distribution over the classes, or a probability of each class.
      weights: 0 for an absent example.
      mixup_alpha: alpha of `mixup`.
      cutmix_alpha: alpha of `cutmix`.
      cutmix_probability: of `cutmix`, in [0, 1].
      draws: "batch" or "example"; it also applies to the choice.

    Raises:
      ValueError: a setting is out of range, or the inputs are no images of floating-point numbers.
    """
    check_number("mixup_alpha", mixup_alpha, at_least=_MIN_PARAMETER)
    check_number("cutmix_alpha", cutmix_alpha, at_least=_MIN_PARAMETER)
    check_number("cutmix_probability", cutmix_probability, at_least=0, at_most=1)
    coin_key, mixup_key, cutmix_key = jax.random.split(key, 3)
    examples, shape = (inputs, targets), _draw_shape(draws, weights)
    partners = _later(examples, 1)  # once, as they come from other devices
    by_cutmix = _cutmix(cutmix_key, examples, partners, shape, cutmix_alpha, probability=1.0)
    by_mixup = _mixup(mixup_key, examples, partners, shape, mixup_alpha)
    is_cut = jax.random.bernoulli(coin_key, cutmix_probability, shape)
    mixed = jax.tree.map(lambda x, y: jnp.where(_aligned(is_cut, x), x, y), by_cutmix, by_mixup)
    return _with_unmixed(mixed, inputs, targets, weights, num_partners=1)


def _mixup(
    key: PRNGKeyArray, examples: Examples, partners: Examples, shape: tuple[int, ...], alpha: float
) -> Examples:
    """`mixup` of examples with their partners; `shape` is that of the draws."""
    for x in jax.tree.leaves(examples[0]):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(
                f"mixup needs inputs of floating-point numbers, but they are {x.dtype}; for images,"
                " end the chain config.data.train with value_range."
            )
    own = jax.random.beta(key, alpha, alpha, shape, jnp.float32)
    return jax.tree.map(lambda *x: _mean([own, 1 - own], x), examples, partners)


def _cutmix(
    key: PRNGKeyArray,
    examples: Examples,
    partners: Examples,
    shape: tuple[int, ...],
    alpha: float,
    probability: float,
) -> Examples:
    """`cutmix` of examples with their partners; `shape` is that of the draws."""
    (inputs, targets), (later_inputs, later_targets) = examples, partners
    height, width = _image_size("cutmix", inputs, len(shape))
    share_key, coin_key, row_key, column_key = jax.random.split(key, 4)
    share = 1 - jax.random.beta(share_key, alpha, alpha, shape, jnp.float32)
    is_mixed = jax.random.bernoulli(coin_key, probability, shape)
    scale = jnp.where(is_mixed, jnp.sqrt(share), 0.0)
    rows, columns = _window(row_key, height, scale), _window(column_key, width, scale)
    in_window = _on_axis(rows, _ROWS) & _on_axis(columns, _COLUMNS)
    images = jnp.where(in_window, later_inputs, inputs)
    area, total = jnp.sum(rows, axis=-1) * jnp.sum(columns, axis=-1), height * width
    return images, _mean([(total - area) / total, area / total], [targets, later_targets])


def _draw_shape(draws: str, weights: Float[Array, "*b"]) -> tuple[int, ...]:
    """The shape of random numbers that broadcast with the weights."""
    match draws:
        case "batch":
            return (1,) * weights.ndim
        case "example":
            return weights.shape
    raise ValueError(f"draws is {draws!r}; choose 'batch' or 'example'.")


def _image_size(name: str, inputs: Any, num_batch_axes: int) -> tuple[int, int]:
    """Height and width of the images."""
    is_array = hasattr(inputs, "shape")
    shape: tuple[int, ...] = inputs.shape[num_batch_axes:] if is_array else ()
    if len(shape) != 3:
        found = f"has the shape {shape}" if is_array else f"is a {type(inputs).__name__}"
        raise ValueError(
            f"{name} needs images of shape (height, width, channels), but an input {found}; choose"
            " mixup, or remove config.mixing."
        )
    height, width, _ = shape
    return height, width


def _later(examples: Any, shift: int) -> Any:
    """For each example of a tree of arrays, the one that is `shift` places later in the batch."""
    return jax.tree.map(lambda x: jnp.roll(x, -shift, axis=0), examples)


def _aligned(values: Array, x: Array) -> Array:
    """The values with axes of length 1 for the further axes of x."""
    return values.reshape(*values.shape, *(1,) * (x.ndim - values.ndim))


def _mean(shares: Sequence[Float[Array, "..."]], values: Sequence[Array]) -> Array:
    """The mean of an example and its partners, with these shares."""
    terms = (_aligned(share.astype(jnp.float32), x) * x for share, x in zip(shares, values))
    return functools.reduce(jnp.add, terms).astype(values[0].dtype)


def _on_axis(values: Array, axis: int) -> Array:
    """Values along an axis of the images, with axes of length 1 for the others."""
    sizes = [1, 1, 1]
    sizes[axis] = values.shape[-1]
    return values.reshape(*values.shape[:-1], *sizes)


def _window(key: PRNGKeyArray, size: int, scale: Float[Array, "*d"]) -> Bool[Array, "*d n"]:
    """Which places of an axis lie in a random window that is `scale` times as long."""
    half = (jnp.floor(size * scale).astype(jnp.int32) // 2)[..., None]
    centre = jax.random.randint(key, scale.shape, 0, size)[..., None]
    places = jnp.arange(size)
    return (places >= centre - half) & (places < centre + half)


def _crop(
    key: PRNGKeyArray, start: Any, stop: Any, size: int
) -> tuple[Int[Array, "*d n"], Bool[Array, "*d n"]]:
    """A random crop at the places from `start` to `stop` of an axis.

    Returns:
      The source of each place, and whether the place is in the crop.
    """
    start, stop = jnp.broadcast_arrays(start, stop)
    origin = jax.random.randint(key, start.shape, 0, size - (stop - start) + 1)
    places = jnp.arange(size)
    source = jnp.clip(places + (origin - start)[..., None], 0, size - 1)
    return source, (places >= start[..., None]) & (places < stop[..., None])


def _with_unmixed(
    mixed: Examples, inputs: Any, targets: Array, weights: Array, num_partners: int
) -> Mixed:
    """The mixed examples, and the others where a partner is absent or the example itself."""
    if len(weights) <= num_partners:
        return Mixed(inputs, targets, weights)
    partners = [_later(weights, 1 + i) for i in range(num_partners)]
    is_mixed = jnp.all(jnp.stack(partners) > 0, axis=0)
    inputs, targets = jax.tree.map(
        lambda x, y: jnp.where(_aligned(is_mixed, x), x, y), mixed, (inputs, targets)
    )
    return Mixed(inputs, targets, weights)

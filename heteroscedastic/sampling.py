"""Standard-normal points: independent, antithetic, or of a randomised Sobol sequence.

Each kind is (key, num_points, ranks) -> (indices -> points). `ranks` has one entry for each normal
of a point and says how much depends on it, 0 the most; the values that share a point have
different ranks, or UNRANKED. A point depends on key, num_points and its own index alone, so points
can be drawn in any grouping, and again, with the same result. An entry of it depends on its rank,
its place in the last axis and that axis's place among the others, so a longer axis begins as the
shorter one does: entries can be added for padding, and drawn where they are used, on one device of
many.

A kind with `shared=True` gives every place of the leading axes the points of the first, so that a
point depends on its rank and its place in the last axis alone. Points are float32, from 32 bits,
under any setting of JAX.
"""

import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import digital_nets

UNRANKED = np.iinfo(np.int32).max
MOST_POINTS = 2**24  # points have 24 random bits, and a float32 counts no further by ones
Source = Callable[[Int[Array, "s"]], Float[Array, "s *n"]]


def named(kind: str) -> Callable[..., Source]:
    """The kind of points of this name.

    Raises:
      ValueError: an unknown name; lists the choices.
    """
    kinds = {"independent": independent, "antithetic": antithetic, "sobol": sobol}
    if kind not in kinds:
        raise ValueError(f"points is {kind!r}, but must be one of {', '.join(kinds)}.")
    return kinds[kind]


def check_num_points(num_points: int) -> int:
    """The number itself.

    Raises:
      ValueError: it is no whole number from 1 to MOST_POINTS.
    """
    try:
        if 1 <= operator.index(num_points) <= MOST_POINTS:
            return num_points
    except TypeError:
        pass
    raise ValueError(
        f"num_samples is {num_points}, but must be a whole number from 1 to 2**24"
        f" ({MOST_POINTS:,})."
    )


def independent(
    key: PRNGKeyArray, num_points: int, ranks: Int[Array, "*n"], shared: bool = False
) -> Source:
    """Independent points. Only the shape of `ranks` matters."""
    shape = _shape(ranks, shared)

    def point(index):
        return jnp.broadcast_to(_drawn(_NORMAL, jax.random.fold_in(key, index), shape), ranks.shape)

    return jax.vmap(point)


# The default type of either would be of 64 bits where JAX is set to those.
_BITS = functools.partial(jax.random.bits, dtype=jnp.uint32)
_NORMAL = functools.partial(jax.random.normal, dtype=jnp.float32)


def _shape(ranks: Int[Array, "*n"], shared: bool) -> tuple[int, ...]:
    """The shape that is drawn: of shared points, one place of the leading axes."""
    return (*(1,) * (ranks.ndim - 1), *ranks.shape[-1:]) if shared else ranks.shape


def _drawn(draw: Callable, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Random numbers by rows: those of a longer last axis begin with those of a shorter one.

    So it is of JAX's counters since version 0.5, where a number depends on its place alone.
    """
    *rows, width = shape

    def row(place):
        return draw(jax.random.fold_in(key, place), (width,))

    # Axis by axis: one axis made of several would be cut elsewhere than they are, and gathered from
    # all devices.
    for _ in rows:
        row = jax.vmap(row)
    return row(jnp.arange(math.prod(rows)).reshape(rows))


def antithetic(
    key: PRNGKeyArray, num_points: int, ranks: Int[Array, "*n"], shared: bool = False
) -> Source:
    """Points in pairs: 2i and 2i + 1 are each other's negatives, else independent."""
    halves = independent(key, num_points, ranks, shared)

    def points(indices):
        signs = 1.0 - 2.0 * (indices % 2).astype(jnp.float32)
        return signs.reshape(-1, *(1,) * ranks.ndim) * halves(indices // 2)

    return points


def sobol(
    key: PRNGKeyArray, num_points: int, ranks: Int[Array, "*n"], shared: bool = False
) -> Source:
    """Points of a digital net with random shifts, by the inverse normal; Sobol's where it matters.

    Over binary digits, entry j of point i is shift_j + C_j i. The shift has 32 random bits of its
    own for every entry, so that each point is uniform and every average unbiased, whatever the
    generator matrix C_j. Entries of the lowest ranks take those of `digital_nets.columns`. The
    others take random nonsingular ones: an entry alone then meets each of num_points equal
    intervals once, and several together err as independent points do, at log2(num_points) random
    numbers an entry in place of num_points. So entries have no limit, and no pair errs more than
    independent points do for ever.

    Points are built from C_j as they are needed; no table of them is made, nor compiled in.

    Raises:
      ValueError: num_points is no power of two, where a net is not balanced.

    Source: Sobol (1967); direction numbers of Joe and Kuo (2008), as SciPy has them; random
    shifts and nonsingular matrices: Matousek (1998), On the L2-discrepancy for anchored boxes.
    """
    digits = check_power_of_two(num_points)
    good = jnp.asarray(digital_nets.columns(digits).T)
    shift_key, rest_key = jax.random.split(key)
    shape = _shape(ranks, shared)
    shift = _drawn(_BITS, shift_key, shape)
    is_good, place = ranks < good.shape[1], jnp.minimum(ranks, good.shape[1] - 1)
    # A loop, as the compiler else makes these anew for every point.
    generators = jax.lax.map(
        lambda columns: jnp.where(is_good, columns[0][place], columns[1]),
        (good, _nonsingular(rest_key, digits, shape)),
    )

    def points(indices):
        numbers = indices.astype(jnp.uint32).reshape(-1, *(1,) * ranks.ndim)
        bits = jnp.broadcast_to(shift, (*indices.shape, *ranks.shape))
        for i in range(digits):
            bits = bits ^ (_mask(numbers, i) & generators[i])
        return _normal(bits)

    return points


def ranked(weight: Float[Array, "*b n"], ranks: np.ndarray) -> Int[Array, "*b n"]:
    """The first of `ranks` where the weight is largest, the next where it is next, UNRANKED
    elsewhere; ties in order.

    It is one maximum after the other, and not `top_k`: where the last axis lies on several devices
    only the maxima cross, and XLA's `top_k` gathers even leading axes.
    """
    places = jnp.arange(weight.shape[-1])

    def give(found, rank):
        free = jnp.where(found == UNRANKED, weight, -jnp.inf)
        largest = (free == jnp.max(free, axis=-1, keepdims=True)) & (found == UNRANKED)
        first = jnp.min(jnp.where(largest, places, weight.shape[-1]), axis=-1, keepdims=True)
        return jnp.where(places == first, rank, found), None

    unranked = jnp.full(weight.shape, UNRANKED, jnp.int32)
    return jax.lax.scan(give, unranked, jnp.asarray(ranks, jnp.int32))[0]


def check_power_of_two(num_points: int) -> int:
    """log2(num_points).

    Raises:
      ValueError: it is no whole number; names the next power of two.
    """
    digits = (num_points - 1).bit_length()
    if num_points != 2**digits:
        raise ValueError(
            f"num_samples is {num_points}, but Sobol points come in powers of two: take"
            f" {2**digits}, or other points."
        )
    return digits


def _mask(numbers: Array, i: int) -> Array:
    """All ones where digit i, the lowest being 0, is set, else zero."""
    return -((numbers >> i) & 1)


def _nonsingular(key: PRNGKeyArray, digits: int, shape: tuple[int, ...]) -> Array:
    """Random matrices U L of triangular ones, by columns, [digits, *shape].

    U goes last: an L alone (or last) would send the first column's leading digit to the first of
    every entry, and so tie them all to each other.
    """
    lower_key, upper_key = jax.random.split(key)
    lower = _drawn(_BITS, lower_key, (digits, *shape))
    upper = _drawn(_BITS, upper_key, (digits, *shape))
    # Digits count from the top bit; below the first `digits` they are random and stay so.
    ones = [np.uint32(1 << (31 - i)) for i in range(digits)]
    below = [np.uint32((1 << (31 - i)) - 1) for i in range(digits)]
    if not digits:
        return lower
    lower = jnp.stack([one | (random & mask) for one, random, mask in zip(ones, lower, below)])
    product = lower & below[-1]
    for i, (one, random, mask) in enumerate(zip(ones, upper, below)):
        column = one | (random & ~(one | mask))
        product = product ^ (_mask(lower, 31 - i) & column)
    return product


def _normal(bits: Array) -> Float[Array, "..."]:
    """The normal quantile of uniform numbers of 32 random bits, of which 24 count; odd in the top
    one.
    """
    centred = (jax.lax.bitcast_convert_type(bits, jnp.int32) >> 8).astype(jnp.float32) + 0.5
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(centred * 2.0**-23)

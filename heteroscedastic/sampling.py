"""Standard-normal points: independent, antithetic, or of a randomised Sobol sequence.

A sampler is a function (key, num_points, ranks, shared) -> (indices -> points). `ranks` has one
entry per normal of a point; rank 0 marks the normal on which the result depends most. Normals that
are used together have different ranks, or the rank UNRANKED.

A point depends only on the key, num_points and its own index. Points can therefore be drawn in any
grouping, and drawn again, with the same result.

An entry of a point depends only on its rank, its index along the last axis, and its index along the
leading axes and their sizes. A longer last axis therefore begins with the values of a shorter one:
padding entries can be added, and each device can draw the entries that it uses.

With `shared=True` all indices along the leading axes get the points of the first one. A point then
depends only on its rank and its index along the last axis.

Points are float32, made from 32 random bits, also where JAX has 64-bit types enabled.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from heteroscedastic import digital_nets

UNRANKED = np.iinfo(np.int32).max
MAX_POINTS = 2**24  # points have 24 random bits; a float32 cannot count further in steps of one
_NUM_RANKED_CLASSES = 32  # likeliest classes of an example, whose normals get the best points
# Values per chunk. 4 MB of float32 fit into a CPU's cache, where chunks are faster than drawing
# all samples at once (benchmarks/predictive.py).
_CHUNK_VALUES = 2**20
Source = Callable[[Int[Array, "s"]], Float[Array, "s *n"]]
Sampler = Callable[[PRNGKeyArray, int, Int[Array, "*n"], bool], Source]


def sampler(points: str) -> Sampler:
    """The sampler with this name.

    Args:
      points: "independent", "antithetic" or "sobol".

    Raises:
      ValueError: the name is unknown; the message lists the choices.
    """
    samplers = {"independent": independent, "antithetic": antithetic, "sobol": sobol}
    if points not in samplers:
        raise ValueError(f"points is {points!r}, but must be one of {', '.join(samplers)}.")
    return samplers[points]


def check_num_points(num_points: int) -> int:
    """Checks a number of points, and returns it as an int.

    Raises:
      ValueError: it is not a whole number from 1 to MAX_POINTS.
    """
    try:
        number = operator.index(num_points)
        if 1 <= number <= MAX_POINTS:
            return number
    except TypeError:
        pass
    raise ValueError(
        f"num_samples is {num_points}, but must be a whole number from 1 to {MAX_POINTS:,}."
    )


def independent(
    key: PRNGKeyArray, num_points: int, ranks: Int[Array, "*n"], shared: bool = False
) -> Source:
    """Independent points. Only the shape of `ranks` is used."""
    shape = _shape(ranks, shared)

    def point(index):
        numbers = _random(_NORMAL, jax.random.fold_in(key, index), shape)
        return jnp.broadcast_to(numbers, ranks.shape)

    return jax.vmap(point)


# By default both would return 64-bit numbers where JAX has 64-bit types enabled.
_BITS = functools.partial(jax.random.bits, dtype=jnp.uint32)
_NORMAL = functools.partial(jax.random.normal, dtype=jnp.float32)


def _shape(ranks: Int[Array, "*n"], shared: bool) -> tuple[int, ...]:
    """The shape to draw: for shared points, one index along the leading axes."""
    return (*(1,) * (ranks.ndim - 1), *ranks.shape[-1:]) if shared else ranks.shape


def _random(draw: Callable, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Random numbers by rows; a longer last axis begins with the numbers of a shorter one.

    This relies on the counters of JAX since version 0.5, where a number depends only on its index.
    """
    *rows, width = shape

    def row(index):
        return draw(jax.random.fold_in(key, index), (width,))

    # One vmap per axis: a flattened axis would be sharded differently, and gathered from all
    # devices.
    for _ in rows:
        row = jax.vmap(row)
    return row(jnp.arange(math.prod(rows)).reshape(rows))


def antithetic(
    key: PRNGKeyArray, num_points: int, ranks: Int[Array, "*n"], shared: bool = False
) -> Source:
    """Points in pairs: points 2i and 2i + 1 are negatives of each other; pairs are independent."""
    halves = independent(key, num_points, ranks, shared)

    def points(indices):
        signs = 1.0 - 2.0 * (indices % 2).astype(jnp.float32)
        return signs.reshape(-1, *(1,) * ranks.ndim) * halves(indices // 2)

    return points


def sobol(
    key: PRNGKeyArray, num_points: int, ranks: Int[Array, "*n"], shared: bool = False
) -> Source:
    """Points of a digital net with random shifts, mapped by the inverse normal distribution.

    In binary digits, entry j of point i is shift_j + C_j i (mod 2). Each entry has its own shift of
    32 random bits, so each point is uniform and each average unbiased for any generator matrix C_j.

    Entries of the lowest ranks use the matrices of `digital_nets.columns`, the first of which are
    Sobol's. The other entries use random nonsingular matrices: each such entry falls once in each
    of num_points equal intervals, and several of them together have the error of independent
    points. Such an entry needs log2(num_points) random numbers instead of num_points.

    The number of entries is therefore unlimited, and no pair of entries has a larger error than
    independent points. Points are computed from C_j when they are needed; no table of points
    is stored or compiled into the program.

    Raises:
      ValueError: num_points is not a power of two, so the net would not be balanced.

    Source: Sobol (1967); direction numbers of Joe and Kuo (2008), as in SciPy; random shifts and
    nonsingular matrices: Matousek (1998), On the L2-discrepancy for anchored boxes.
    """
    digits = check_power_of_two(num_points)
    net = jnp.asarray(digital_nets.columns(digits).T)
    shift_key, rest_key = jax.random.split(key)
    shape = _shape(ranks, shared)
    shift = _random(_BITS, shift_key, shape)
    is_in_net, column = ranks < net.shape[1], jnp.minimum(ranks, net.shape[1] - 1)
    # A loop, because XLA otherwise recomputes the generators for every point.
    generators = jax.lax.map(
        lambda columns: jnp.where(is_in_net, columns[0][column], columns[1]),
        (net, _nonsingular(rest_key, digits, shape)),
    )

    def points(indices):
        numbers = indices.astype(jnp.uint32).reshape(-1, *(1,) * ranks.ndim)
        bits = jnp.broadcast_to(shift, (*indices.shape, *ranks.shape))
        for i in range(digits):
            bits = bits ^ (_mask(numbers, i) & generators[i])
        return _normal(bits)

    return points


def ranks(
    influence: Float[Array, "*b n"] | None, num_factors: int, batch: tuple[int, ...]
) -> tuple[Int[Array, "*b n"] | None, Int[Array, "*b r"]]:
    """The ranks of the normals of a latent: those of its independent noise, and of its factors.

    From rank 0 on: 16 factors, the 16 independent normals of largest influence, the other factors,
    16 more independent normals. The other independent normals are UNRANKED.

    Args:
      influence: how much the result depends on each independent normal; compared within an
        example, and treated as a constant in differentiation. None without independent noise.
      num_factors: r, 0 or more.
      batch: the leading axes.
    """
    half, numbers = _NUM_RANKED_CLASSES // 2, np.arange(_NUM_RANKED_CLASSES)
    factors = np.arange(num_factors)
    # Also if there are fewer independent normals, of which padding may make more.
    num_first = 0 if influence is None else half
    factors = np.where(factors < half, factors, factors + num_first)
    likely = numbers + np.where(numbers < half, min(num_factors, half), num_factors)
    diag = None
    if influence is not None:
        diag = _ranks_by_influence(jax.lax.stop_gradient(influence), likely[: influence.shape[-1]])
    return diag, jnp.broadcast_to(jnp.asarray(factors, jnp.int32), (*batch, num_factors))


def _ranks_by_influence(influence: Float[Array, "*b n"], ranks: np.ndarray) -> Int[Array, "*b n"]:
    """`ranks` in the order of falling influence, ties by index; UNRANKED where they are used up.

    Takes one maximum after the other instead of `top_k`: where the last axis is sharded, only the
    maxima cross devices, whereas XLA's `top_k` gathers even the leading axes.
    """
    indices = jnp.arange(influence.shape[-1])

    def assign(assigned, rank):
        free = jnp.where(assigned == UNRANKED, influence, -jnp.inf)
        largest = (free == jnp.max(free, axis=-1, keepdims=True)) & (assigned == UNRANKED)
        first = jnp.min(jnp.where(largest, indices, influence.shape[-1]), axis=-1, keepdims=True)
        return jnp.where(indices == first, rank, assigned), None

    unranked = jnp.full_like(influence, UNRANKED, dtype=jnp.int32)
    return jax.lax.scan(assign, unranked, jnp.asarray(ranks, jnp.int32))[0]


def check_power_of_two(num_points: int) -> int:
    """Checks that a number of points is a power of two, and returns its log2.

    Raises:
      ValueError: it is not; the message names the next power of two.
    """
    digits = (num_points - 1).bit_length()
    if num_points != 2**digits:
        raise ValueError(
            f"num_samples is {num_points}, but Sobol points need a power of two: use"
            f" {2**digits}, or points='independent'."
        )
    return digits


def _mask(numbers: Array, i: int) -> Array:
    """All ones where binary digit i (0 is the lowest) is set, else zero."""
    return -((numbers >> i) & 1)


def _nonsingular(key: PRNGKeyArray, digits: int, shape: tuple[int, ...]) -> Array:
    """Random matrices U L, with U upper and L lower triangular, by columns: [digits, *shape].

    U is applied last. With L alone (or last), the leading digit of the first column would be the
    first digit of every entry, so all entries would depend on each other.
    """
    lower_key, upper_key = jax.random.split(key)
    lower = _random(_BITS, lower_key, (digits, *shape))
    upper = _random(_BITS, upper_key, (digits, *shape))
    # Digits count from the top bit; those after the first `digits` are random and stay random.
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
    """The normal quantile of uniform numbers given as 32 random bits, of which 24 are used.

    Flipping the top bit changes the sign.
    """
    centred = (jax.lax.bitcast_convert_type(bits, jnp.int32) >> 8).astype(jnp.float32) + 0.5
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(centred * 2.0**-23)


def chunk_size(num_values: int) -> int:
    """Samples per chunk, of this many values each; at least 1."""
    return max(1, _CHUNK_VALUES // max(1, num_values))


def over_chunks(
    body: Callable[[Any, Int[Array, "chunk"]], Any], carry: Any, num_samples: int, chunk_size: int
) -> Any:
    """Applies `body` to the sample numbers 0 to num_samples - 1, chunk_size of them at a time."""
    num_chunks, rest = divmod(num_samples, chunk_size)
    chunk = jnp.arange(chunk_size)
    if num_chunks == 1:
        carry = body(carry, chunk)
    elif num_chunks > 1:
        carry, _ = jax.lax.scan(
            lambda carry, i: (body(carry, i * chunk_size + chunk), None),
            carry,
            jnp.arange(num_chunks),
        )
    return body(carry, num_chunks * chunk_size + jnp.arange(rest)) if rest else carry

"""A batch in parts that follow each other, where the activations of all of it do not fit.

The step is that of the whole batch: gradients, losses and metrics are sums over all examples, and
the loss is divided by the weight of all of them, however it is spread over the parts. Three things
are of a part: its batch statistics, as with `group_size` of the backbone, of which the running
averages take the mean as they do there; its mixing, as the partners of an example are of its part;
and its noise, which is other noise of the same distribution. Several devices sum their gradients
once a part, so what crosses grows with the number of parts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray


class Sums(NamedTuple):
    """Over examples."""

    weight: Float[Array, ""]  # without class weights
    loss: Float[Array, ""]  # without class weights
    divergence: Float[Array, ""] | None  # of the predictions from soft targets
    metrics: Any


class Part(NamedTuple):
    """What a batch, or a part of one, says of the step."""

    gradient: Any  # of the weighted mean of its losses
    model_state: Any
    mass: Float[Array, ""]  # that the mean was divided by
    sums: Sums


def whole(
    part: Callable[[Any, PRNGKeyArray], tuple[Part, Any]], feed: Any, key: PRNGKeyArray, number: int
) -> tuple[Part, Any]:
    """What the batch of a feed says, from that of its parts, and the values of its examples in
    order.

    Args:
      part: (feed, key) -> what the examples of the feed say, and a tree of values by example.
      feed: arrays of one leading axis; single numbers hold for every part.
      key: consumed; with several parts each has its own.
      number: of parts, a divisor of the axis.
    """
    if number == 1:
        return part(feed, key)

    def weighted(index, earlier_weight):
        found, values = part(cut(feed, number, index), jax.random.fold_in(key, index))
        # A part of absent examples alone has no statistics; if all are, the last one keeps them.
        is_last_of_none = (index == number - 1) & (earlier_weight == 0)
        present = jnp.asarray((found.sums.weight > 0) | is_last_of_none, jnp.float32)
        return found._replace(
            gradient=jax.tree.map(lambda x: found.mass * x, found.gradient),
            model_state=jax.tree.map(lambda x: present * x, found.model_state),
        ), (present, values)

    def body(total, index):
        found, others = weighted(index, total.sums.weight)
        return jax.tree.map(jnp.add, total, found), others

    shapes, _ = jax.eval_shape(weighted, jnp.zeros((), jnp.int32), jnp.zeros(()))
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    total, (present, values) = jax.lax.scan(body, start, jnp.arange(number))
    mass, number_present = jnp.where(total.mass == 0, 1.0, total.mass), jnp.sum(present)
    total = total._replace(
        gradient=jax.tree.map(lambda x: x / mass, total.gradient),
        model_state=jax.tree.map(lambda x: x / number_present, total.model_state),
    )
    return total, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), values)


def cut(feed: Any, number: int, index: Array | int) -> Any:
    """One of a number of equal parts of a feed: every `number`-th example from `index` on.

    Devices hold consecutive examples, so each has as many of every part, none crosses, and the
    parts do not depend on how many devices there are.
    """

    def of(x):
        if not jnp.ndim(x):
            return x
        if x.shape[0] % number:
            raise ValueError(f"{number} microbatches do not divide a batch of {x.shape[0]}.")
        parts = jnp.reshape(x, (-1, number, *x.shape[1:]))
        return jax.lax.dynamic_index_in_dim(parts, index, axis=1, keepdims=False)

    return jax.tree.map(of, feed)

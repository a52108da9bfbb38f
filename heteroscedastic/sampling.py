"""Standard-normal points. A point's number is all that tells it from the others of a key."""

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray


def independent(key: PRNGKeyArray, indices: Int[Array, "s"], shape: tuple[int, ...]) -> Float[Array, "s *shape"]:
    """Independent standard normals, one array of `shape` for each index.

    Entry i depends on the key and on indices[i] alone.
    """

    def point(index):
        return jax.random.normal(jax.random.fold_in(key, index), shape)

    return jax.vmap(point)(indices)

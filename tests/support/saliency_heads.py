"""Every kind of head with random parameters, and maps of three images."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from heteroscedastic.models import heads

D, H, W, K, R = 6, 3, 4, 5, 2
TEMPERATURE = 1.7
KINDS = itertools.product(
    ("Diagonal", "LowRank", "ParameterEfficient"), ("utilities", "features"), (False, True)
)
NOISY = [
    getattr(heads, name)(
        K,
        noise_on=noise_on,
        edward2=edward2,
        temperature=TEMPERATURE,
        **({} if name == "Diagonal" else {"num_factors": R}),
    )
    for name, noise_on, edward2 in KINDS
]
HEADS = [heads.Deterministic(K, temperature=TEMPERATURE), *NOISY]
# Of each class one or two, both places of the noise, and both forms of its scale.
SOME_NOISY = [
    head
    for head in NOISY
    if (type(head).__name__, head.noise_on, head.edward2)
    in {
        ("Diagonal", "features", True),
        ("LowRank", "utilities", False),
        ("ParameterEfficient", "utilities", True),
        ("ParameterEfficient", "features", False),
    }
]


def head_id(head):
    """The head in the name of a test."""
    if isinstance(head, heads.Deterministic):
        return "Deterministic"
    return f"{type(head).__name__}-{head.noise_on}" + ("-edward2" if head.edward2 else "")


def parts(head, seed=0):
    """Maps [3, H, W, D], random parameters, and the head as a function of features."""
    rng = np.random.default_rng(seed)
    maps = jnp.asarray(rng.normal(0.5, 1, size=(3, H, W, D)), jnp.float32)
    shapes = jax.eval_shape(head.init, jax.random.key(0), maps[:, 0, 0])
    variables = jax.tree.map(
        lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), jnp.float32), shapes
    )
    return maps, variables["params"], lambda f: head.apply(variables, f)

"""Heads: features -> LatentGaussian. A head owns parameters and nothing else.

All compute in float32 whatever the dtype of the features, and put the utilities in units of
the temperature.

Source: Collier et al. (2021), arXiv:2105.10305, section 2 and Algorithm 1. The standard
deviations are softplus(affine) + 1e-3, as in the authors' public layer; the paper's are
affine (reading C7).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian

_MIN_SCALE = 1e-3


def _as_matrices(features, kernel, dimensions, **settings):
    """The last axis of the features with the first of the kernel, whose others are taken as one.

    The kernel's gradient is then a product of matrices in the kernel's own order; with three axes
    it comes in another and is copied, which is slow on a CPU (benchmarks/train.py).
    """
    flat = jax.lax.dot_general(features, kernel.reshape(kernel.shape[0], -1), dimensions, **settings)
    return flat.reshape(*flat.shape[:-1], *kernel.shape[1:])


class _Head(nn.Module):
    num_classes: int
    temperature: float = 1.0

    def __post_init__(self):
        if self.num_classes < 1:
            raise ValueError(f"num_classes is {self.num_classes}, but must be >= 1.")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, but must be > 0.")
        if getattr(self, "num_factors", 0) < 0:
            raise ValueError(f"num_factors is {self.num_factors}, but must be >= 0.")
        super().__post_init__()

    def dense(self, name: str, features: Float[Array, "*b d"]) -> Float[Array, "*b k"]:
        return nn.Dense(self.num_classes, dtype=jnp.float32, name=name)(features)

    def scale_diag(self, features: Float[Array, "*b d"]) -> Float[Array, "*b k"]:
        return jax.nn.softplus(self.dense("scale_diag", features)) + _MIN_SCALE


class Deterministic(_Head):
    """Utilities without noise: a dense layer, whose softmax has a temperature. (D+1)K parameters."""

    @nn.compact
    def __call__(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        latent = LatentGaussian(loc=self.dense("loc", features))
        return latent_lib.temper(latent, self.temperature)


class Diagonal(_Head):
    """Independent noise of input-dependent size. (D+1)K more parameters."""

    @nn.compact
    def __call__(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        latent = LatentGaussian(loc=self.dense("loc", features), scale_diag=self.scale_diag(features))
        return latent_lib.temper(latent, self.temperature)


class LowRank(_Head):
    """Covariance V(x) V(x)' + diag(d(x)^2) of rank `num_factors` plus a diagonal.

    The factors have (D+1)KR parameters.
    """

    num_factors: int = 15

    @nn.compact
    def __call__(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        loadings = None
        if self.num_factors:
            shape = (self.num_classes, self.num_factors)
            dense = nn.DenseGeneral(shape, dtype=jnp.float32, dot_general=_as_matrices, name="factor_loadings")
            loadings = dense(features)
        latent = LatentGaussian(
            loc=self.dense("loc", features),
            scale_diag=self.scale_diag(features),
            factor_loadings=loadings,
        )
        return latent_lib.temper(latent, self.temperature)


class ParameterEfficient(_Head):
    """Covariance diag(v) V V' diag(v) + diag(d^2), with v(x) and d(x) of the input and V shared.

    The factors have (D+1)K + KR parameters: v has one entry a class (reading C1), and V no
    bias, which would give the noise a mean.
    """

    num_factors: int = 15

    @nn.compact
    def __call__(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        latent = LatentGaussian(loc=self.dense("loc", features), scale_diag=self.scale_diag(features))
        if self.num_factors:
            shape = (self.num_classes, self.num_factors)
            latent = latent._replace(
                factor_scale=self.dense("factor_scale", features),
                shared_loadings=self.param("shared_loadings", nn.initializers.glorot_uniform(), shape),
            )
        return latent_lib.temper(latent, self.temperature)

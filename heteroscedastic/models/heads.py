"""Heads: features -> LatentGaussian. A head owns parameters and nothing else.

All compute in float32 whatever the dtype of the features (in float64 for features of that), and put
the utilities in units of the temperature.

Source: Collier et al. (2021), arXiv:2105.10305, section 2 and Algorithm 1. The standard
deviations are softplus(affine) + 1e-3, as in the authors' public layer; the paper's are
affine (reading C7).
"""

import numbers
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, ArrayLike, Float

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian

__all__ = ["Deterministic", "Diagonal", "LowRank", "ParameterEfficient"]
_MIN_SCALE = 1e-3
_TEMPERATURES = (
    1e-4,
    1e4,
)  # utilities in units of less or more lose their digits, or overflow, in float32


def standard_deviations(affine: Float[ArrayLike, "*b n"]) -> Float[Array, "*b n"]:
    """Those of independent noise, > 0, from what the dense layer `scale_diag` puts out."""
    return jax.nn.softplus(affine) + _MIN_SCALE


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, numbers.Real | jax.Array)
        and not isinstance(value, bool)
        and jnp.ndim(value) == 0
    )


def _dtype(features: Float[Array, "*b d"]) -> jnp.dtype:
    """Of the computation: float32, or float64 for features of that."""
    return jnp.promote_types(features.dtype, jnp.float32)


def _as_matrices(features, kernel, dimensions, **settings):
    """The last axis of the features with the first of the kernel, whose others are taken as one.

    The kernel's gradient is then a product of matrices in the kernel's own order; with three axes
    it comes in another and is copied, which is slow on a CPU (benchmarks/train.py).
    """
    flat = jax.lax.dot_general(
        features, kernel.reshape(kernel.shape[0], -1), dimensions, **settings
    )
    return flat.reshape(*flat.shape[:-1], *kernel.shape[1:])


class _Head(nn.Module):
    """What all heads share.

    Attributes:
      num_classes: K.
      temperature: a number from 1e-4 to 1e4; or bounds lower < upper in that range between which it
        is learned, as lower + (upper - lower) sigmoid(theta). The parameter `temperature` is theta,
        0 at first, which is the middle.

    Source: of the learned temperature Collier et al. (2023), arXiv:2301.12860.
    """

    num_classes: int
    temperature: float | tuple[float, float] = 1.0

    def __post_init__(self):
        if self.num_classes < 1:
            raise ValueError(f"num_classes is {self.num_classes}, but must be >= 1.")
        self._check_temperature()
        for name in ("num_factors", "hidden_width"):
            if getattr(self, name, 0) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be >= 0.")
        super().__post_init__()

    def _check_temperature(self) -> None:
        least, most = _TEMPERATURES
        if self.learns_temperature:
            bounds = tuple(self.temperature)
            if not (
                len(bounds) == 2
                and all(map(_is_number, bounds))
                and least <= bounds[0] < bounds[1] <= most
            ):
                raise ValueError(
                    f"temperature is {bounds}, but bounds must have {least} <= lower < upper <="
                    f" {most}."
                )
        elif not (_is_number(self.temperature) and least <= self.temperature <= most):
            raise ValueError(
                f"temperature is {self.temperature}, but must be a number from {least} to {most},"
                " or its bounds."
            )

    @property
    def learns_temperature(self) -> bool:
        """Whether the temperature is a parameter."""
        return isinstance(self.temperature, tuple | list)

    def temperature_of(self, params: Mapping[str, Any]) -> float | Float[Array, ""]:
        """The temperature of a head with these parameters."""
        if not self.learns_temperature:
            return self.temperature
        lower, upper = self.temperature
        return lower + (upper - lower) * jax.nn.sigmoid(params["temperature"])

    @nn.compact
    def __call__(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        features = self.before_utilities(features)
        start = nn.initializers.zeros if self.starts_at_zero else nn.initializers.lecun_normal()
        loc = nn.Dense(self.num_classes, dtype=_dtype(features), kernel_init=start, name="loc")
        latent = self.with_noise(
            LatentGaussian(loc=loc(features)), features, loc.get_variable("params", "kernel")
        )
        if self.learns_temperature:
            self.param("temperature", nn.initializers.zeros, (), jnp.float32)
        return latent_lib.temper(latent, self.temperature_of(self.variables["params"]))

    def class_axes(self) -> dict[str, int]:
        """Class axis of each parameter that has one, counted from the end, by name."""
        return {"loc": -1}

    @property
    def starts_at_zero(self) -> bool:
        """Whether all utilities are 0 at first."""
        return False

    def before_utilities(self, features: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        """What the utilities are affine in."""
        return features

    def with_noise(
        self, latent: LatentGaussian, features: Float[Array, "*b d"], kernel: Float[Array, "d k"]
    ) -> LatentGaussian:
        """The latent with what this head adds to the utilities `features @ kernel + bias`."""
        return latent


class Deterministic(_Head):
    """Utilities without noise: a dense layer, whose softmax has a temperature. (D+1)K parameters.

    Attributes:
      hidden_width: units H of a dense layer with ReLU before it, which then has (H+1)K parameters
        and the other (D+1)H; 0 is no such layer. With 11,500 on 2,048 features a model of 1,000
        classes has about as many as one of low rank 15.
      zero_start: whether all utilities are 0 at first, as in fine-tuning a backbone.

    Source: of the hidden layer Collier et al. (2021), Table 10; of the start the public code of
      Kolesnikov et al. (2020), arXiv:1912.11370.
    """

    hidden_width: int = 0
    zero_start: bool = False

    @property
    def starts_at_zero(self) -> bool:
        return self.zero_start

    def before_utilities(self, features: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        return (
            jax.nn.relu(_dense("hidden", features, self.hidden_width))
            if self.hidden_width
            else features
        )


class Diagonal(_Head):
    """Independent noise of input-dependent size. (D+1)N more parameters, of which N is said below.

    Attributes:
      noise_on: "utilities", where the noise has an entry a class and N = K; or "features", whose
        noise the dense layer of `loc` reads out to the utilities, so N = D: what the noise adds to
        the parameters then does not depend on the number of classes, and every sample costs a
        product with that layer's kernel. With factors this is HET-XL.
      edward2: whether the noise is that of the layers MC{Softmax,Sigmoid}DenseFA of edward2.jax: a
        sample has one number for the whole diagonal and not one an entry, so that the diagonal
        adds d d' to the covariance, of rank one, in place of diag(d^2); and shared factors have a
        bias b, which moves the mean by v(x) b. For weights of that layer see
        `edward2.from_edward2`.

    Source: of noise on the features Collier et al. (2023), arXiv:2301.12860; of edward2's layer its
    file edward2/jax/nn/heteroscedastic_lib.py of 2023.
    """

    noise_on: str = "utilities"
    edward2: bool = False

    def __post_init__(self):
        if self.noise_on not in ("utilities", "features"):
            raise ValueError(f"noise_on is {self.noise_on!r}; choose 'utilities' or 'features'.")
        super().__post_init__()

    def with_noise(
        self, latent: LatentGaussian, features: Float[Array, "*b d"], kernel: Float[Array, "d k"]
    ) -> LatentGaussian:
        width = self.num_classes
        if self.noise_on == "features":
            width, latent = features.shape[-1], latent._replace(readout=kernel)
        scale_diag = standard_deviations(_dense("scale_diag", features, width))
        latent = latent._replace(scale_diag=scale_diag, **self.factors(features, width))
        return self._as_edward2(latent) if self.edward2 else latent

    def class_axes(self) -> dict[str, int]:
        if self.noise_on == "features":
            return super().class_axes()
        per_class = {"scale_diag": -1, "factor_scale": -1, "shared_bias": -1}
        return super().class_axes() | per_class | {"factor_loadings": -2, "shared_loadings": -2}

    def factors(self, features: Float[Array, "*b d"], width: int) -> dict[str, Array]:
        """The fields of the latent that make its entries vary together."""
        return {}

    def _as_edward2(self, latent: LatentGaussian) -> LatentGaussian:
        loadings, own = latent.factor_loadings, latent.scale_diag[..., None]
        loadings = own if loadings is None else jnp.concatenate([loadings, own], axis=-1)
        latent = latent._replace(scale_diag=None, factor_loadings=loadings)
        if latent.factor_scale is None:
            return latent
        bias = self.param(
            "shared_bias", nn.initializers.zeros, latent.factor_scale.shape[-1:], jnp.float32
        )
        shift = latent.factor_scale * bias
        return latent._replace(
            loc=latent.loc + (shift if latent.readout is None else shift @ latent.readout)
        )


class LowRank(Diagonal):
    """Covariance V(x) V(x)' + diag(d(x)^2) of rank `num_factors` plus a diagonal.

    The factors have (D+1)NR parameters. The other settings are those of `Diagonal`.
    """

    num_factors: int = 15

    def factors(self, features: Float[Array, "*b d"], width: int) -> dict[str, Array]:
        if not self.num_factors:
            return {}
        shape = (width, self.num_factors)
        dense = nn.DenseGeneral(
            shape, dtype=_dtype(features), dot_general=_as_matrices, name="factor_loadings"
        )
        return {"factor_loadings": dense(features)}


class ParameterEfficient(Diagonal):
    """Covariance diag(v) V V' diag(v) + diag(d^2), with v(x) and d(x) of the input and V shared.

    The factors have (D+1)N + NR parameters: v has an entry for each of the noise (reading C1), and
    V no bias, which would give the noise a mean. The other settings are those of `Diagonal`.
    """

    num_factors: int = 15

    def factors(self, features: Float[Array, "*b d"], width: int) -> dict[str, Array]:
        if not self.num_factors:
            return {}
        # edward2's V is the kernel of a dense layer of R inputs, ours transposed.
        init = (
            nn.initializers.lecun_normal(-1, -2)
            if self.edward2
            else nn.initializers.glorot_uniform()
        )
        loadings = self.param("shared_loadings", init, (width, self.num_factors), jnp.float32)
        return {
            "factor_scale": _dense("factor_scale", features, width),
            "shared_loadings": loadings.astype(_dtype(features)),
        }


def _dense(name: str, features: Float[Array, "*b d"], width: int) -> Float[Array, "*b n"]:
    return nn.Dense(width, dtype=_dtype(features), name=name)(features)

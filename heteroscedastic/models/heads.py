"""Heads: features -> LatentGaussian. A head owns parameters and nothing else.

All heads return a latent in float32 (in float64 for float64 features), and divide the utilities by
the temperature. Code outside this module reads the parameters of a head through
`Head.temperature_of`, `Head.utilities_parameters`, `Head.noise_parameters`,
`is_covariance_parameter` and `is_temperature`.

Source: Collier et al. (2021), arXiv:2105.10305, section 2 and Algorithm 1. The standard deviations
are softplus(affine) + 1e-3, as in the authors' public layer; in the paper they are affine (reading
C7).
"""

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from heteroscedastic import latent as latent_lib
from heteroscedastic.latent import LatentGaussian

__all__ = ["Deterministic", "Diagonal", "LowRank", "ParameterEfficient"]
UTILITIES_LAYER = "loc"  # the dense layer of the utilities
_MIN_SCALE = 1e-3
_TEMPERATURES = (1e-4, 1e4)  # beyond these, utilities lose precision or overflow in float32
# Kernels of V(x) or v(x), and V itself (reading C14).
_COVARIANCE = ("factor_loadings/kernel", "factor_scale/kernel", "shared_loadings")


class Affine(NamedTuple):
    """The parameters of a dense layer."""

    kernel: Float[Array, "d n *r"]
    bias: Float[Array, "n *r"]


class NoiseParameters(NamedTuple):
    """The parameters of the noise of a head, before the temperature.

    Each `Affine` maps the features x to the field of `LatentGaussian` of the same name; the
    standard deviations are `standard_deviations` of that map. None omits a term.
    """

    num_entries: int  # n, entries of the noise: the classes, or the features with `readout`
    scale_diag: Affine | None = None
    scale_is_factor: bool = False  # scale_diag is one more column of factor_loadings (edward2)
    factor_loadings: Affine | None = None
    factor_scale: Affine | None = None
    shared_loadings: Float[Array, "n q"] | None = None
    readout: Float[Array, "n k"] | None = None


def standard_deviations(affine: Float[ArrayLike, "*b n"]) -> Float[Array, "*b n"]:
    """The standard deviations of independent noise, > 0, from the dense layer `scale_diag`."""
    return jax.nn.softplus(affine) + _MIN_SCALE


def is_covariance_parameter(path: str) -> bool:
    """Whether the parameter at a path such as "head/shared_loadings" determines the factors."""
    return path.endswith(_COVARIANCE)


def is_temperature(path: str) -> bool:
    """Whether the parameter at this path is a learned temperature."""
    return path.rpartition("/")[2] == "temperature"


def has_noise(name: str) -> bool:
    """Whether the head with this name has noise.

    Raises:
      ValueError: there is no such head.
    """
    if name not in __all__:
        raise ValueError(f"heads has no {name!r}; choose one of {', '.join(__all__)}.")
    return issubclass(globals()[name], Diagonal)


def dense_layer(num_classes: int) -> "Head":
    """The head that is a dense layer, without noise."""
    return Deterministic(num_classes)


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, bool)
        and isinstance(value, numbers.Real | jax.Array)
        and getattr(value, "ndim", 0) == 0
    )


def _as_matrices(features, kernel, dimensions, **settings):
    """The product of the features with the kernel, computed as a product of two matrices.

    The gradient of the kernel is then a product of matrices in the memory order of the kernel. With
    three axes it has another order and is copied, which is slow on a CPU (benchmarks/train.py).
    """
    flat = jax.lax.dot_general(
        features, kernel.reshape(kernel.shape[0], -1), dimensions, **settings
    )
    return flat.reshape(*flat.shape[:-1], *kernel.shape[1:])


class Head(nn.Module):
    """Base class of all heads.

    Attributes:
      num_classes: K.
      temperature: a number from 1e-4 to 1e4; or bounds (lower, upper) in that range. With bounds
        the temperature is learned as lower + (upper - lower) sigmoid(theta); the parameter
        `temperature` is theta, initially 0, the middle of the bounds.
      dtype: of the dense layers, as in nn.Dense: features, kernels and biases are cast to it. Their
        outputs are cast to float32 before anything else is computed. None is float32, or float64
        for float64 features. No setting of a config.
      kernel_init: initialiser of the kernel of the utilities. The noise has its own initialisers:
        factors that start at zero have no gradient. No setting of a config.
      bias_init: the same for the bias of the utilities.
      use_bias: whether the utilities have a bias; not where their kernel is an embedding too. No
        setting of a config.

    Source: Collier et al. (2023), arXiv:2301.12860, for the learned temperature.
    """

    num_classes: int
    temperature: float | tuple[float, float] = 1.0
    dtype: DTypeLike | None = dataclasses.field(default=None, kw_only=True)
    kernel_init: Callable[..., Any] = dataclasses.field(
        default=nn.initializers.lecun_normal(), kw_only=True
    )
    bias_init: Callable[..., Any] = dataclasses.field(
        default=nn.initializers.zeros_init(), kw_only=True
    )
    use_bias: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self):
        if self.num_classes < 1:
            raise ValueError(f"num_classes is {self.num_classes}, but must be >= 1.")
        self._check_temperature()
        if self.dtype is not None and not jnp.issubdtype(self.dtype, jnp.floating):
            raise ValueError(
                f"dtype is {jnp.dtype(self.dtype)}, but must be a floating type such as bfloat16."
            )
        for name in ("num_factors", "hidden_width"):
            if getattr(self, name, 0) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be >= 0.")
        super().__post_init__()

    @nn.nowrap  # as the module has no scope yet
    def _check_temperature(self) -> None:
        least, most = _TEMPERATURES
        if isinstance(self.temperature, tuple | list):
            bounds = tuple(self.temperature)
            if not (
                len(bounds) == 2
                and all(map(_is_number, bounds))
                and least <= bounds[0] < bounds[1] <= most
            ):
                raise ValueError(
                    f"temperature is {bounds}, but bounds must satisfy {least} <= lower < upper <="
                    f" {most}."
                )
        elif not (_is_number(self.temperature) and least <= self.temperature <= most):
            raise ValueError(
                f"temperature is {self.temperature}, but must be a number from {least} to {most},"
                " or a pair of bounds."
            )

    @property
    def learns_temperature(self) -> bool:
        """Whether the temperature is a parameter."""
        return isinstance(self.temperature, tuple | list)

    def temperature_of(self, params: Mapping[str, Any]) -> float | Float[Array, ""]:
        """The temperature, given the parameters of the head."""
        if not isinstance(self.temperature, tuple | list):
            return self.temperature
        lower, upper = self.temperature
        return lower + (upper - lower) * jax.nn.sigmoid(params["temperature"])

    def utilities_parameters(self, params: Mapping[str, Any]) -> Affine:
        """The map from features to `loc` before the temperature, given the parameters of the head.

        Raises:
          ValueError: `loc` is not affine in the features.
        """
        layer = params[UTILITIES_LAYER]
        bias = layer["bias"] if self.use_bias else jnp.zeros(layer["kernel"].shape[-1])
        return Affine(layer["kernel"], bias)

    def noise_parameters(self, params: Mapping[str, Any]) -> NoiseParameters:
        """The noise, given the parameters of the head."""
        return NoiseParameters(num_entries=params[UTILITIES_LAYER]["kernel"].shape[1])

    @nn.compact
    def __call__(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        features = self.hidden_layer(features)
        start = nn.initializers.zeros if self.starts_at_zero else self.kernel_init
        loc = self.dense(
            UTILITIES_LAYER,
            features,
            self.num_classes,
            kernel_init=start,
            bias_init=self.bias_init,
            use_bias=self.use_bias,
        )
        kernel = nn.unbox(self.variables["params"][UTILITIES_LAYER]["kernel"])
        latent = self.add_noise(LatentGaussian(loc=loc), features, kernel)
        if self.learns_temperature:
            self.param("temperature", nn.initializers.zeros, (), jnp.float32)
        return latent_lib.temper(latent, self.temperature_of(self.variables["params"]))

    def dense(
        self,
        name: str,
        features: Float[Array, "*b d"],
        shape: int | tuple[int, ...],
        **settings: Any,
    ) -> Float[Array, "..."]:
        """The output of a new dense layer, in the dtype of the latent.

        Args:
          name: of the layer.
          features: its input.
          shape: of its output, without the batch axes.
          **settings: of nn.Dense, or of nn.DenseGeneral for a shape with several axes.
        """
        dtype = self._result_dtype(features)
        layer: Any = nn.Dense if isinstance(shape, int) else nn.DenseGeneral
        outputs = layer(shape, dtype=self.dtype or dtype, name=name, **settings)(features)
        return outputs.astype(dtype)

    def _result_dtype(self, features: Float[Array, "*b d"]) -> jnp.dtype:
        return jnp.promote_types(self.dtype or features.dtype, jnp.float32)

    def class_axes(self) -> dict[str, int]:
        """Class axis of each parameter that has one, counted from the end, by name."""
        return {"loc": -1}

    @property
    def starts_at_zero(self) -> bool:
        """Whether all utilities are initially 0."""
        return False

    def hidden_layer(self, features: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        """The input of the dense layer of the utilities."""
        return features

    def add_noise(
        self, latent: LatentGaussian, features: Float[Array, "*b d"], kernel: Float[Array, "d k"]
    ) -> LatentGaussian:
        """The latent with noise on the utilities `features @ kernel + bias`."""
        return latent


class Deterministic(Head):
    """Utilities without noise: a dense layer of (D+1)K parameters, divided by the temperature.

    Attributes:
      hidden_width: units H of an additional dense layer with ReLU; the two layers have (D+1)H and
        (H+1)K parameters. 0 omits it. With 11,500 units on 2,048 features and 1,000 classes there
        are about as many parameters as with `LowRank` of 15 factors.
      zero_start: whether all utilities are initially 0, as in fine-tuning a backbone.

    Source: Collier et al. (2021), Table 10, for the hidden layer; the public code of Kolesnikov et
    al. (2020), arXiv:1912.11370, for the zero start.
    """

    hidden_width: int = 0
    zero_start: bool = False

    @property
    def starts_at_zero(self) -> bool:
        return self.zero_start

    def utilities_parameters(self, params: Mapping[str, Any]) -> Affine:
        if self.hidden_width:
            raise ValueError(
                f"hidden_width is {self.hidden_width}, so the utilities are not affine in the"
                " features; only a head with hidden_width 0 has one kernel for them."
            )
        return super().utilities_parameters(params)

    def hidden_layer(self, features: Float[Array, "*b d"]) -> Float[Array, "*b e"]:
        return (
            jax.nn.relu(self.dense("hidden", features, self.hidden_width))
            if self.hidden_width
            else features
        )


class Diagonal(Head):
    """Independent noise whose standard deviations depend on the input.

    It adds (D+1)N parameters, with N entries of the noise.

    Attributes:
      noise_on: "utilities" for noise with one entry per class, N = K; "features" for noise on the
        features, N = D, which the dense layer of the utilities maps to the utilities. On features
        the number of added parameters does not depend on the number of classes, and each sample
        needs a product with the kernel of that layer. With factors this is HET-XL.
      edward2: whether the noise is that of the layers MC{Softmax,Sigmoid}DenseFA of edward2.jax. A
        sample there has one number for the entire diagonal instead of one per entry, so the
        diagonal d adds d d' (rank one) to the covariance instead of diag(d^2). Shared factors have
        a bias b there, which adds v(x) b to the mean. `edward2.from_edward2` converts weights of
        such a layer.

    Source: Collier et al. (2023), arXiv:2301.12860, for noise on the features;
    edward2/jax/nn/heteroscedastic_lib.py (2023) for edward2.
    """

    noise_on: str = "utilities"
    edward2: bool = False

    def __post_init__(self):
        if self.noise_on not in ("utilities", "features"):
            raise ValueError(f"noise_on is {self.noise_on!r}; choose 'utilities' or 'features'.")
        super().__post_init__()

    def utilities_parameters(self, params: Mapping[str, Any]) -> Affine:
        layer = super().utilities_parameters(params)
        if "shared_bias" not in params:
            return layer
        # The shift of `_as_edward2`, which is affine in the features too.
        scale = params["factor_scale"]
        kernel, bias = (scale[name] * params["shared_bias"] for name in ("kernel", "bias"))
        if self.noise_on == "features":
            kernel, bias = kernel @ layer.kernel, bias @ layer.kernel
        return Affine(layer.kernel + kernel, layer.bias + bias)

    def noise_parameters(self, params: Mapping[str, Any]) -> NoiseParameters:
        def affine(name):
            layer = params.get(name)
            return None if layer is None else Affine(layer["kernel"], layer["bias"])

        readout = params[UTILITIES_LAYER]["kernel"] if self.noise_on == "features" else None
        return NoiseParameters(
            num_entries=params["scale_diag"]["bias"].shape[0],
            scale_diag=affine("scale_diag"),
            scale_is_factor=self.edward2,
            factor_loadings=affine("factor_loadings"),
            factor_scale=affine("factor_scale"),
            shared_loadings=params.get("shared_loadings"),
            readout=readout,
        )

    def add_noise(
        self, latent: LatentGaussian, features: Float[Array, "*b d"], kernel: Float[Array, "d k"]
    ) -> LatentGaussian:
        width = self.num_classes
        if self.noise_on == "features":
            width, latent = features.shape[-1], latent._replace(readout=kernel)
        scale_diag = standard_deviations(self.dense("scale_diag", features, width))
        latent = latent._replace(scale_diag=scale_diag, **self.factors(features, width))
        return self._as_edward2(latent, scale_diag) if self.edward2 else latent

    def class_axes(self) -> dict[str, int]:
        if self.noise_on == "features":
            return super().class_axes()
        per_class = {"scale_diag": -1, "factor_scale": -1, "shared_bias": -1}
        return super().class_axes() | per_class | {"factor_loadings": -2, "shared_loadings": -2}

    def factors(self, features: Float[Array, "*b d"], width: int) -> dict[str, Array]:
        """The fields of the latent that correlate its entries."""
        return {}

    def _as_edward2(
        self, latent: LatentGaussian, scale_diag: Float[Array, "*b n"]
    ) -> LatentGaussian:
        loadings, own = latent.factor_loadings, scale_diag[..., None]
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
    """Low-rank plus diagonal covariance V(x) V(x)' + diag(d(x)^2).

    V(x) has R = `num_factors` columns and (D+1)NR parameters. The other settings are those of
    `Diagonal`.
    """

    num_factors: int = 15

    def factors(self, features: Float[Array, "*b d"], width: int) -> dict[str, Array]:
        if not self.num_factors:
            return {}
        shape = (width, self.num_factors)
        loadings = self.dense("factor_loadings", features, shape, dot_general=_as_matrices)
        return {"factor_loadings": loadings}


class ParameterEfficient(Diagonal):
    """Covariance diag(v(x)) V V' diag(v(x)) + diag(d(x)^2), where all inputs share V.

    v(x) and V have (D+1)N + NR parameters, R = `num_factors`: v(x) has one entry per entry of the
    noise (reading C1), and V has no bias, which would give the noise a mean. The other settings are
    those of `Diagonal`.
    """

    num_factors: int = 15

    def factors(self, features: Float[Array, "*b d"], width: int) -> dict[str, Array]:
        if not self.num_factors:
            return {}
        # In edward2 the transposed V is the kernel of a dense layer with R inputs.
        init = (
            nn.initializers.lecun_normal(-1, -2)
            if self.edward2
            else nn.initializers.glorot_uniform()
        )
        loadings = self.param("shared_loadings", init, (width, self.num_factors), jnp.float32)
        return {
            "factor_scale": self.dense("factor_scale", features, width),
            "shared_loadings": loadings.astype(self._result_dtype(features)),
        }

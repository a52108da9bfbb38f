"""A drop-in layer for existing models in flax.nnx."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx, traverse_util
from jaxtyping import Array, Float

from heteroscedastic import bind
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models import convert, layers


class HeteroscedasticDense(nnx.Module):
    """A last layer with input-dependent, correlated noise on its utilities.

    `HeteroscedasticDense(d, k, num_factors=15, rngs=rngs)` replaces `nnx.Linear(d, k, rngs=rngs)`.
    It computes what `layers.HeteroscedasticDense` computes, with parameters of the same names.

    In training each call draws noise from the stream `noise` of `rngs`, or from its default stream,
    as Dropout does. After `model.eval()`, or without such a stream, all examples get the same fixed
    points, so a prediction depends only on its features; the covariance remains part of it.

    Attributes:
      linen: the linen layer with the same settings.
      utilities: parameters, as nested `nnx.Dict` of `nnx.Param`, such as `utilities.loc.kernel`.
      rngs: stream of the noise, or None.
      deterministic: whether to use fixed points; set by `train`, `eval` and `nnx.view`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        rngs: nnx.Rngs,
        deterministic: bool = False,
        **settings: Any,
    ):
        """Initialises the parameters with the stream `params` of `rngs`.

        Args:
          in_features: d, the size of the last axis of the features.
          num_classes: K.
          rngs: streams `params` and, for noise in training, `noise`; a default stream is both.
          deterministic: whether to use fixed points until `train` is called.
          **settings: those of `layers.HeteroscedasticDense`, with the same defaults.

        Raises:
          ValueError: a setting is out of range.
        """
        if in_features < 1:
            raise ValueError(f"in_features is {in_features}, but must be >= 1.")
        linen = layers.HeteroscedasticDense(num_classes, **settings)
        features = jax.ShapeDtypeStruct((1, in_features), jnp.float32)
        self.linen = linen
        self.utilities = _variables(linen.lazy_init(rngs.params(), features)["params"]["utilities"])
        self.rngs = nnx.data(_noise_stream(rngs))
        self.deterministic = deterministic

    def __call__(self, features: Float[Array, "*b d"]) -> Float[Array, "*b k"]:
        """Logits for any softmax (or sigmoid) cross-entropy."""
        noise = {} if self.rngs is None or self.deterministic else {"noise": self.rngs()}
        return self.linen.bind({"params": to_linen(self)}, rngs=noise)(features)

    def latent(self, features: Float[Array, "*b d"]) -> LatentGaussian:
        """The Gaussian over the utilities divided by the temperature."""
        return self.linen.bind({"params": to_linen(self)}).latent(features)

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets the mode of a view, for `nnx.view`.

        Args:
          deterministic: whether to use fixed points; None keeps the mode.
        """
        if deterministic is not None:
            self.deterministic = deterministic


def to_linen(layer: HeteroscedasticDense) -> dict[str, Any]:
    """The parameters of `layer.linen` with the values of the layer, as nested dicts of arrays.

    `layer.linen.apply({"params": to_linen(layer)}, features)` is what the layer returns with fixed
    points.
    """
    return {"utilities": nnx.to_pure_dict(nnx.state(layer.utilities))}


def from_linen(
    params: Mapping[str, Any],
    linen: layers.HeteroscedasticDense,
    *,
    rngs: nnx.Rngs | None = None,
) -> HeteroscedasticDense:
    """A layer with the settings and parameters of a linen layer.

    Args:
      params: parameters of the linen layer: `{"utilities": ...}`. In a model they are found under
        the name of the layer, such as `variables["params"]["HeteroscedasticDense_0"]`.
      linen: the linen layer; only its settings are read.
      rngs: its stream `noise`, or the default stream, gives the noise in training; None is fixed
        points.

    Raises:
      ValueError: names or shapes do not match. The message lists up to eight of each kind.
    """
    given = traverse_util.flatten_dict(nn.unbox(params), sep="/")
    if jnp.ndim(given.get("utilities/loc/kernel")) != 2:
        raise ValueError(
            "The parameters have no utilities/loc/kernel of two axes; pass those of a"
            " HeteroscedasticDense of flax.linen, with the key 'utilities'."
        )
    in_features, _ = given["utilities/loc/kernel"].shape
    settings = {name: getattr(linen, name) for name in bind.declared_settings(type(linen))}
    layer = HeteroscedasticDense(in_features, rngs=nnx.Rngs(params=0), **settings)
    own = traverse_util.flatten_dict(to_linen(layer), sep="/")
    convert.check_fit(
        "The parameters do not fit the layer", given, {name: x.shape for name, x in own.items()}
    )
    layer.utilities = _variables(params["utilities"])
    layer.rngs = nnx.data(_noise_stream(rngs))
    return layer


def _variables(params: Mapping[str, Any]) -> nnx.Dict:
    """The parameters of a linen module as variables; metadata of partitioning is dropped."""
    return nnx.Dict(
        {
            name: _variables(x) if isinstance(x, Mapping) else nnx.Param(jnp.array(x))
            for name, x in nn.unbox(params).items()
        }
    )


def _noise_stream(rngs: nnx.Rngs | None) -> nnx.RngStream | None:
    """A stream of the layer's own, or None without a stream to take it from."""
    if rngs is None or not {"noise", "default"} & set(rngs):
        return None
    return rngs["noise"].fork()

"""Converts parameters of heads from and to the layers of edward2.

The layers are MCSoftmaxDenseFA and MCSigmoidDenseFA of edward2.jax and edward2.tensorflow, and
MCSoftmaxDense of edward2.tensorflow.

Source: edward2/jax/nn/heteroscedastic_lib.py and edward2/tensorflow/layers/heteroscedastic.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from heteroscedastic.models import convert

# Layers of a head -> layers of edward2.
_EDWARD2 = {
    "loc": "loc_layer",
    "scale_diag": "diag_layer",
    "factor_loadings": "scale_layer",
    "factor_scale": "scale_layer_heteroscedastic",
    "shared_loadings": "scale_layer_homoscedastic/kernel",
    "shared_bias": "scale_layer_homoscedastic/bias",
    "temperature": "pre_sigmoid_temperature",
}


def from_edward2(
    tree: Mapping[str, Any], head: nn.Module, *, library: str = "jax"
) -> dict[str, Any]:
    """The parameters of a head, converted from a layer of edward2.

    Example for edward2.jax:

        head = heads.ParameterEfficient(
            num_classes=10, num_factors=6, temperature=0.9, edward2=True
        )
        params["head"] = edward2.from_edward2(theirs["multiclass_head"], head)

    The utilities are equal in distribution, and equal for equal standard normals. The layer clips
    probabilities to at least 1e-7; the predictives do not clip.

    Example for edward2.tensorflow:

        theirs = {w.name: w.numpy() for w in layer.weights}
        head = heads.LowRank(10, num_factors=6)
        params["head"] = edward2.from_edward2(theirs, head, library="tensorflow")

    These layers draw the diagonal per class, like the heads here, so the head has `edward2=False`.
    The bias b of their shared factors adds v(x) b to the mean. This is affine in the features and
    is added to the layer `loc`. With two classes MCSoftmaxDense has one output, the log-odds of the
    second class: use a head with one class, and a sigmoid.

    Args:
      tree: parameters of the layer, as nested dicts (`loc_layer` and so on), or by names such as
        `MCSoftmaxDenseFA_loc_layer/kernel:0`.
      head: a head with the settings of the layer. For JAX with `edward2=True`. LowRank, or
        ParameterEfficient for `parameter_efficient`, or Diagonal for `num_factors=0`;
        `noise_on="features"` for a `latent_dim`; `temperature` is the number, or the bounds for
        `tune_temperature` (0.3 and 3.0 where the layer has None).
      library: "jax" or "tensorflow".

    Returns:
      `params` of the head, in float32. In a HeteroscedasticDense they are `params/utilities`.

    Raises:
      ValueError: the head has the wrong kind of noise, or names or shapes do not match. The message
        lists up to eight of each kind.
    """
    if library not in ("jax", "tensorflow"):
        raise ValueError(f"library is {library!r}; choose 'jax' or 'tensorflow'.")
    given = {
        name: np.asarray(array) for name, array in traverse_util.flatten_dict(tree, sep="/").items()
    }
    if library == "tensorflow":
        given = _as_jax(given, head)
        head = head.clone(edward2=True)  # its parameters have the same names and shapes
    if np.ndim(given.get("loc_layer/kernel")) != 2:
        raise ValueError(
            "The layer has no loc_layer/kernel of two axes; pass the parameters of a layer of"
            " edward2 that from_edward2 supports."
        )
    features = jax.ShapeDtypeStruct((1, given["loc_layer/kernel"].shape[0]), jnp.float32)
    template = jax.eval_shape(head.init, jax.random.key(0), features)["params"]
    layout = _edward2_layout(template, head)
    convert.check_fit(
        "The layer does not fit the head",
        given,
        {name: shape for name, (_, shape) in layout.items()},
    )
    new = {
        path: given[name].T if path == "shared_loadings" else given[name]
        for name, (path, _) in layout.items()
    }
    if library == "tensorflow" and (bias := new.pop("shared_bias", None)) is not None:
        for field in ("kernel", "bias"):
            new[f"loc/{field}"] = new[f"loc/{field}"] + new[f"factor_scale/{field}"] * bias
    flat = traverse_util.flatten_dict(template, sep="/")
    return traverse_util.unflatten_dict(
        {
            path: jnp.array(array.reshape(flat[path].shape), flat[path].dtype)
            for path, array in new.items()
        },
        sep="/",
    )


_TENSORFLOW_NAME = re.compile(
    r"(?:.*[/_])?(loc_layer|diag_layer|scale_layer(?:_homoscedastic|_heteroscedastic)?)/(kernel|bias)(?::0)?"
    r"|(?:.*/)?(pre_sigmoid_temperature)(?::0)?"
)


def _as_jax(weights: Mapping[str, np.ndarray], head: nn.Module) -> dict[str, np.ndarray]:
    """The weights of a TensorFlow layer with the names and shapes of the JAX layer."""
    if getattr(head, "edward2", True) or head.noise_on != "utilities":
        raise ValueError(
            f"{head} does not have the noise of the layers of edward2.tensorflow, which is"
            " independent per class: use a Diagonal, LowRank or ParameterEfficient with"
            " edward2=False and noise_on='utilities'."
        )
    arrays = {}
    for name, array in weights.items():
        match = _TENSORFLOW_NAME.fullmatch(name)
        new_name = name if match is None else match[3] or f"{match[1]}/{match[2]}"
        if new_name in arrays:
            raise ValueError(f"two weights are named {new_name}; pass the weights of one layer.")
        arrays[new_name] = array.reshape(1) if new_name == "pre_sigmoid_temperature" else array
    if "diag_layer/kernel" not in arrays:  # the scale of MCSoftmaxDense is the diagonal
        arrays = {
            name.replace("scale_layer/", "diag_layer/"): array for name, array in arrays.items()
        }
    return arrays


def to_edward2(params: Mapping[str, Any], head: nn.Module) -> dict[str, Any]:
    """The parameters of a layer of edward2.jax, converted from a head, as nested dicts.

    Args:
      params: parameters of the head.
      head: as for `from_edward2`.

    Raises:
      ValueError: the head does not have the noise of edward2.
    """
    flat = traverse_util.flatten_dict(params, sep="/")
    arrays = {}
    for name, (path, shape) in _edward2_layout(params, head).items():
        array = np.asarray(flat[path])
        arrays[name] = np.array((array.T if path == "shared_loadings" else array).reshape(shape))
    return traverse_util.unflatten_dict(arrays, sep="/")


def _edward2_layout(
    params: Mapping[str, Any], head: nn.Module
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name of each parameter in edward2 -> (its path in the head, its shape in edward2)."""
    if not getattr(head, "edward2", False):
        raise ValueError(
            f"{head} does not have the noise of edward2, so the parameters would give another"
            " covariance: use a head with noise and edward2=True."
        )
    layout = {}
    for path, array in traverse_util.flatten_dict(params, sep="/").items():
        module, _, field = path.partition("/")
        name, shape = f"{_EDWARD2[module]}/{field}".rstrip("/"), array.shape
        if module == "factor_loadings":
            shape = (*shape[:-2], shape[-2] * shape[-1])
        elif module == "shared_loadings":
            shape = shape[::-1]
        elif module == "temperature":
            shape = (1,)
        layout[name] = path, shape
    return layout

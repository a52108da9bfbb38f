"""Parameters of heads in the layouts of edward2, there and back.

The layers are MCSoftmaxDenseFA and MCSigmoidDenseFA of edward2.jax, and of edward2.tensorflow those
and MCSoftmaxDense. Source: edward2/jax/nn/heteroscedastic_lib.py and
edward2/tensorflow/layers/heteroscedastic.py.
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
    """The parameters of a head out of those of a layer of edward2.

        head = heads.ParameterEfficient(num_classes=10, num_factors=6, temperature=0.9,
        edward2=True) params["head"] = edward2.from_edward2(theirs["multiclass_head"], head)

    Utilities are equal in distribution, and equal for equal standard normals. The layer takes its
    logits from probabilities of at least 1e-7, our predictives from any.

    The layers of edward2.tensorflow draw the diagonal per class, as our heads do, so the head has
    `edward2=False`. The bias b of their shared factors moves the mean by v(x) b, which is affine in
    the features and becomes part of `loc`. With two classes MCSoftmaxDense has one output, the
    log-odds of the second class: take a head of one class, and the sigmoid.

        theirs = {w.name: w.numpy() for w in layer.weights}
        params["head"] = edward2.from_edward2(theirs, heads.LowRank(10, num_factors=6),
        library="tensorflow")

    Args:
      tree: parameters of MCSoftmaxDenseFA or MCSigmoidDenseFA, or of TensorFlow's MCSoftmaxDense,
        as nested dicts: `loc_layer` and so on; or by names such as
        `MCSoftmaxDenseFA_loc_layer/kernel:0`.
      head: of the same settings, for JAX with `edward2=True`: LowRank, or ParameterEfficient for
        `parameter_efficient`, or Diagonal for `num_factors=0`; `noise_on="features"` for a
        `latent_dim`; and as `temperature` the number, or the bounds for `tune_temperature` (where
        None stands there, 0.3 and 3.0).
      library: "jax" or "tensorflow": whose layer it is.

    Returns:
      `params` of the head, in float32. Of a HeteroscedasticDense they are `params/utilities`.

    Raises:
      ValueError: another kind of head, or names or shapes that do not fit, of which up to eight of
        a kind are told.
    """
    if library not in ("jax", "tensorflow"):
        raise ValueError(f"library is {library!r}; choose 'jax' or 'tensorflow'.")
    given = {
        name: np.asarray(array) for name, array in traverse_util.flatten_dict(tree, sep="/").items()
    }
    if library == "tensorflow":
        given = _as_jax(given, head)
        head = head.clone(edward2=True)  # whose parameters have the same names and shapes
    if np.ndim(given.get("loc_layer/kernel")) != 2:
        raise ValueError(
            "The layer has no loc_layer/kernel of two axes, so it is none of edward2's for these"
            " heads."
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


_TENSORFLOW = re.compile(
    r"(?:.*[/_])?(loc_layer|diag_layer|scale_layer(?:_homoscedastic|_heteroscedastic)?)/(kernel|bias)(?::0)?"
    r"|(?:.*/)?(pre_sigmoid_temperature)(?::0)?"
)


def _as_jax(weights: Mapping[str, np.ndarray], head: nn.Module) -> dict[str, np.ndarray]:
    """The weights of TensorFlow's layer under the names and in the shapes of the one of JAX."""
    if getattr(head, "edward2", True) or head.noise_on != "utilities":
        raise ValueError(
            f"{head} has another noise than edward2's layers of TensorFlow, which is independent"
            " per class: give a"
            " Diagonal, LowRank or ParameterEfficient with edward2=False and noise_on='utilities'."
        )
    found = {}
    for name, array in weights.items():
        match = _TENSORFLOW.fullmatch(name)
        ours = name if match is None else match[3] or f"{match[1]}/{match[2]}"
        if ours in found:
            raise ValueError(f"two weights are called {ours}; give those of one layer.")
        found[ours] = array.reshape(1) if ours == "pre_sigmoid_temperature" else array
    if "diag_layer/kernel" not in found:  # MCSoftmaxDense, whose scale is the diagonal
        found = {
            name.replace("scale_layer/", "diag_layer/"): array for name, array in found.items()
        }
    return found


def to_edward2(params: Mapping[str, Any], head: nn.Module) -> dict[str, Any]:
    """The parameters of edward2's layer that are those of this head, as nested dicts.

    Args:
      params: of the head.
      head: as for `from_edward2`.

    Raises:
      ValueError: another kind of head.
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
    """edward2's name of each parameter -> its path here, its shape there."""
    if not getattr(head, "edward2", False):
        raise ValueError(
            f"The noise of {head} is not that of edward2's layers, and the same parameters would"
            " mean another"
            " covariance: give a head with noise and edward2=True."
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

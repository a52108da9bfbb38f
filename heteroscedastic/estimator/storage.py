"""An estimator as an .npz file: arrays and JSON, so that reading it runs no code."""

import json
import os
from typing import Any

import jax
import numpy as np

from heteroscedastic import files
from heteroscedastic.estimator import programs
from heteroscedastic.estimator.programs import Numbers, Spec

_VERSION = 1
_SCALARS = (
    *("temperature_", "n_iter_", "n_features_in_"),
    *("best_validation_loss_", "validation_brier_", "_link"),
)
_CURVES = ("loss_curve_", "validation_loss_curve_")
_ARRAYS = ("mean_", "scale_", "_references")


def write(path: str | os.PathLike, estimator: Any) -> None:
    """Writes a fitted estimator."""
    settings = estimator.get_params()
    if not isinstance(settings["random_state"], int | np.integer):
        settings["random_state"] = None
    classes, is_object = estimator.classes_, estimator.classes_.dtype == object
    names = getattr(estimator, "feature_names_in_", None)
    description = {
        "version": _VERSION,
        "settings": settings,
        "spec": estimator._spec._asdict(),
        "classes_are_objects": bool(is_object),
        **{name: getattr(estimator, name) for name in _SCALARS},
    }
    leaves = jax.tree.leaves(estimator._state)
    arrays = {name: getattr(estimator, name) for name in _ARRAYS}
    arrays |= {name: np.asarray(getattr(estimator, name)) for name in _CURVES}
    arrays |= {f"state/{i}": np.asarray(x) for i, x in enumerate(leaves)}
    arrays["classes_"] = classes.astype(str) if is_object else classes
    arrays["description"] = np.array(json.dumps(files.plain(description)))
    if names is not None:
        arrays["feature_names_in_"] = names.astype(str)
    files.write_arrays(files.as_path(path), arrays)


def read(path: str | os.PathLike, kind: type) -> Any:
    """Reads an estimator of this class.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file was not written by `write`, or is damaged.
    """
    path = files.as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; save(path) writes such a file.")
    try:
        arrays = files.read_arrays(path)
        description = json.loads(str(arrays.pop("description")))
        if description["version"] != _VERSION:
            raise ValueError(f"its version is {description['version']}, not {_VERSION}")
        description.setdefault("validation_brier_", None)  # files of earlier versions lack it
        settings = description["settings"]
        if isinstance(settings["hidden_layer_sizes"], list):
            settings["hidden_layer_sizes"] = tuple(settings["hidden_layer_sizes"])
        estimator = kind(**settings)
        for name in _SCALARS:
            value = description[name]
            setattr(estimator, name, float("nan") if value is None else value)
        spec = description["spec"]
        estimator._spec = Spec(**{**spec, "widths": tuple(spec["widths"])})
        for name in _CURVES:
            setattr(estimator, name, arrays[name].tolist())
        for name in _ARRAYS:
            setattr(estimator, name, arrays[name])
        classes = arrays["classes_"]
        estimator.classes_ = (
            classes.astype(object) if description["classes_are_objects"] else classes
        )
        if "feature_names_in_" in arrays:
            estimator.feature_names_in_ = arrays["feature_names_in_"].astype(object)
        estimator._state = _state(estimator, arrays)
    except Exception as error:  # zip, zlib, json or numpy, whichever meets the damage first
        raise ValueError(
            f"{path} is not a saved HeteroscedasticClassifier, or is damaged ({error}); save it"
            " again."
        ) from None
    return estimator


def _state(estimator: Any, arrays: dict[str, np.ndarray]) -> Any:
    spec, width = estimator._spec, programs.padded_features(estimator.n_features_in_)
    numbers = Numbers(len(estimator.classes_), 1.0, 1.0, 1.0)  # values do not matter to shapes
    inputs = jax.ShapeDtypeStruct((1, width), np.float32)
    form = jax.eval_shape(
        lambda inputs: programs.initial_state(spec, jax.random.key(0), inputs, numbers), inputs
    )
    leaves = [arrays[f"state/{i}"] for i in range(len(jax.tree.leaves(form)))]
    for leaf, expected in zip(leaves, jax.tree.leaves(form)):
        if leaf.shape != expected.shape:
            raise ValueError(f"a weight has shape {leaf.shape}, not {expected.shape}")
    return jax.tree.unflatten(jax.tree.structure(form), leaves)

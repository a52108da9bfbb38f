r"""Converts residual networks from and to the state dicts of torchvision.

A state dict is a flat mapping from names such as `layer2.0.bn1.running_mean` to NumPy arrays, with
kernels as [out, in, h, w]. PyTorch is needed only to save it:

    np.savez("resnet50.npz", **{k: v.numpy() for k, v in model.state_dict().items()})

To use it in a model:

    model = Classifier(ResNet50(), heads.LowRank(num_classes=10))
    variables = model.init(key, images, present)
    variables = convert.from_torch(np.load("resnet50.npz"), variables)

To start a run from it (config.warm_start.weights):

    python -m heteroscedastic.models.convert \
        --state_dict=resnet50.npz --backbone=ResNet50 --out=DIR/resnet50.npz

Equal inputs give equal outputs: scale the images as in the training of the weights. For torchvision
that is RGB in [0, 1], minus (0.485, 0.456, 0.406), divided by (0.229, 0.224, 0.225).

`edward2.py` converts heads.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from heteroscedastic import files, user_errors
from heteroscedastic.bind import bind
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier

# Modules here -> modules of torchvision: outside of blocks, and inside a block.
_NETWORK = {"stem": "conv1", "stem_norm": "bn1", f"head/{heads.UTILITIES_LAYER}": "fc"}
_BLOCK = {"shortcut": "downsample.0", "shortcut_norm": "downsample.1"}
_BLOCK |= {
    f"{ours}{i}": f"{theirs}{i}"
    for ours, theirs in (("conv", "conv"), ("norm", "bn"))
    for i in (1, 2, 3)
}
FIELDS = {  # fields of a layer here -> fields in PyTorch
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
_AXES = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}  # axes of torchvision, in the order used here


def from_torch(
    state_dict: Mapping[str, Any], variables: Mapping[str, Any], *, with_fc: bool = False
) -> dict[str, Any]:
    """The variables with the weights of a state dict in the backbone, and optionally in the head.

    Args:
      state_dict: name -> array. `num_batches_tracked` is ignored, and without `with_fc` also `fc`;
        both are optional.
      variables: `params` and `batch_stats` of a ResNet of version 1 with the imagenet stem, alone
        or as the backbone of a Classifier, as returned by `init`. Variables that the state dict
        does not contain are kept. For the others, shapes as returned by `jax.eval_shape` suffice.
      with_fc: whether `fc` becomes the dense layer of the utilities of the head, which must have
        the same classes. The other parameters of the head are kept. The head divides the utilities
        by its temperature.

    Returns:
      Variables with the same structure and dtypes. The running variances of PyTorch are unbiased;
      here they are biased. This matters only in further training, by the factor n / (n - 1) for n
      values per channel and batch.

    Raises:
      ValueError: the network is of another kind, or names or shapes do not match. The message lists
        up to eight of each kind.
    """
    flat = traverse_util.flatten_dict(variables)
    paths = _paths(flat)
    if with_fc and "fc.weight" not in paths:
        raise ValueError(
            "with_fc needs a Classifier with a head, but the variables have no head; pass those of"
            " a Classifier, or with_fc=False."
        )
    if with_fc:
        _check_is_dense(flat, ("hidden",))
    paths = {name: path for name, path in paths.items() if with_fc or not name.startswith("fc.")}
    given = {name for name in state_dict if not name.endswith("num_batches_tracked")}
    if "fc.weight" not in paths:
        given -= {"fc.weight", "fc.bias"}
    arrays = {name: np.asarray(state_dict[name]) for name in given}
    expected = {name: _theirs(flat[path].shape) for name, path in paths.items()}
    check_fit("The state dict does not fit the variables", arrays, expected)
    new = {
        paths[n]: jnp.array(x.transpose(_AXES[x.ndim]), flat[paths[n]].dtype)
        for n, x in arrays.items()
    }
    return traverse_util.unflatten_dict({**flat, **new})


def to_torch(variables: Mapping[str, Any], *, with_fc: bool = True) -> dict[str, np.ndarray]:
    """The state dict of a residual network; convert its arrays to tensors for `load_state_dict`.

    Args:
      variables: as for `from_torch`. In a Classifier the dense layer of the utilities becomes `fc`,
        which gives utilities at temperature 1. The other parameters of the head are omitted.
      with_fc: whether there is `fc`, if there is a head.

    Raises:
      ValueError: the network is of another kind, or `with_fc` and its utilities need more than a
        dense layer of the features.
    """
    flat = traverse_util.flatten_dict(variables)
    paths = _paths(flat)
    if with_fc:
        _check_is_dense(flat, ("hidden", "shared_bias"))
    else:
        paths = {name: path for name, path in paths.items() if not name.startswith("fc.")}
    arrays = {}
    for name, path in paths.items():
        array = np.asarray(flat[path])
        arrays[name] = np.array(array.transpose(np.argsort(_AXES[array.ndim])), order="C")
        if path[-1] == "var":  # strict loading also requires this array
            arrays[name.replace("running_var", "num_batches_tracked")] = np.zeros((), np.int64)
    return arrays


def _check_is_dense(flat: Mapping[tuple[str, ...], Any], others: tuple[str, ...]) -> None:
    """Raises a ValueError if the utilities of the head need these other parameters, too."""
    for name in others:
        found = [x for path, x in flat.items() if path[1:3] == ("head", name)]
        if found and (name == "hidden" or any(np.any(np.asarray(x)) for x in found)):
            raise ValueError(
                f"The utilities of the head need {name!r} beside its dense layer of the classes;"
                " set with_fc=False, which converts the backbone."
            )


def check_fit(
    message: str, arrays: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Checks that arrays have the expected names and shapes.

    Args:
      message: start of the error message.
      arrays: name -> array.
      expected: name -> shape.

    Raises:
      ValueError: they do not. The message lists up to eight names of each kind of problem.
    """
    problems = {
        "lacks": expected.keys() - arrays.keys(),
        "has the unexpected": arrays.keys() - expected.keys(),
        "has the wrong shape for": {
            f"{name} {arrays[name].shape} where {expected[name]} is expected"
            for name in arrays.keys() & expected.keys()
            if arrays[name].shape != expected[name]
        },
    }
    wrong = [f"{verb} {_listed(names)}" for verb, names in problems.items() if names]
    if wrong:
        raise ValueError(f"{message}: it {'; it '.join(wrong)}.")


def renamed(
    state_dict: Mapping[str, Any],
    template: Mapping[str, Any],
    name: Callable[[tuple[str, ...]], str],
) -> dict[str, np.ndarray]:
    """The arrays of a state dict under names such as params/backbone/stem/kernel.

    Args:
      state_dict: name -> array, in the layout of PyTorch. `num_batches_tracked` is ignored.
      template: shapes of all variables.
      name: path of a variable -> its name in the state dict.

    Raises:
      ValueError: names or shapes do not match; lists up to eight of each kind.
    """
    flat = traverse_util.flatten_dict(template)
    paths = {name(path): path for path in flat}
    arrays = {n: x for n, x in state_dict.items() if not n.endswith("num_batches_tracked")}
    expected = {name: _theirs(flat[path].shape) for name, path in paths.items()}
    check_fit("The state dict does not fit the backbone", arrays, expected)
    return {"/".join(paths[n]): x.transpose(_AXES[x.ndim]) for n, x in arrays.items()}


def _paths(flat: Mapping[tuple[str, ...], Any]) -> dict[str, tuple[str, ...]]:
    """Name in PyTorch -> path, for each leaf with such a name; leaves of a head may have none.

    Raises:
      ValueError: the network is not a ResNet of version 1 with the imagenet stem.
    """
    leaves = [path for path in flat if path[0] in ("params", "batch_stats")]
    paths = {name: path for path in leaves if (name := _name(path))}
    problems = [
        f"{'/'.join(path)} has no name in PyTorch"
        for path in leaves
        if not _name(path) and path[1] != "head"
    ]
    problems += [
        f"there is no {name}" for name in ("conv1.weight", "bn1.running_var") if name not in paths
    ]
    if not problems and (kernel := flat[paths["conv1.weight"]].shape[:2]) != (7, 7):
        problems.append(f"the stem is a convolution of {kernel} instead of {(7, 7)}")
    if problems:
        raise ValueError(
            "The variables must be params and batch_stats of a ResNet with version=1 and"
            " stem='imagenet', alone or as the backbone of a Classifier; however,"
            f" {problems[0]}."
        )
    return paths


def _name(path: tuple[str, ...]) -> str | None:
    """`layer1.0.bn2.weight` for (params, backbone, stage1_block1, norm2, scale); or None."""
    _, *modules, field = path
    prefix, module, names = "", "/".join(modules).removeprefix("backbone/"), _NETWORK
    if block := re.fullmatch(r"stage(\d+)_block(\d+)/(\w+)", module):
        prefix, module, names = f"layer{block[1]}.{int(block[2]) - 1}.", block[3], _BLOCK
    return (
        f"{prefix}{names[module]}.{FIELDS[field]}" if module in names and field in FIELDS else None
    )


def _theirs(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[i] for i in np.argsort(_AXES[len(shape)]))


def _listed(names: Collection[str]) -> str:
    rest = len(names) - 8
    return ", ".join(sorted(names)[:8]) + (f" and {rest} more" if rest > 0 else "")


def named_weights(
    state_dict: Mapping[str, Any], backbone: str, *, with_fc: bool = False
) -> dict[str, np.ndarray]:
    """The weights of a state dict under names such as params/backbone/stem/kernel.

    config.warm_start.weights reads a file of these arrays.

    Args:
      state_dict: as for `from_torch`.
      backbone: name of a residual network of version 1 with the imagenet stem.
      with_fc: whether to include `fc`, as the dense layer of the utilities.

    Raises:
      ValueError: there is no such backbone, or the weights do not match it.
    """
    if with_fc and "fc.weight" not in state_dict:
        raise ValueError("with_fc needs fc.weight and fc.bias, but the state dict lacks fc.weight.")
    num_classes = len(np.atleast_1d(state_dict["fc.weight"])) if with_fc else 1
    model = Classifier(bind(backbones, name=backbone), heads.dense_layer(num_classes))
    inputs = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32), jax.ShapeDtypeStruct((1,), bool)
    template = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    if not with_fc:
        template = {**template, "params": {"backbone": template["params"]["backbone"]}}
    converted = from_torch(state_dict, template, with_fc=with_fc)
    return {
        name: np.asarray(x) for name, x in traverse_util.flatten_dict(converted, sep="/").items()
    }


@user_errors.one_line()
def main() -> None:
    """Converts public weights of a residual network for config.warm_start.weights."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--state_dict",
        required=True,
        metavar="NPZ",
        help="state dict of PyTorch as NumPy arrays, see models/convert.py",
    )
    parser.add_argument("--backbone", required=True, help="such as ResNet50")
    parser.add_argument(
        "--with_fc", action="store_true", help="include the dense layer of the classes"
    )
    parser.add_argument("--out", required=True, metavar="NPZ")
    flags = parser.parse_args()
    if files.as_path(flags.out).exists():
        raise SystemExit(f"{flags.out} exists already; remove it, or choose another --out.")
    try:
        arrays = named_weights(
            files.read_arrays(flags.state_dict), flags.backbone, with_fc=flags.with_fc
        )
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{flags.state_dict}: {error} To save a state dict as an .npz file with PyTorch, use"
            ' np.savez("FILE.npz", **{k: v.numpy() for k, v in model.state_dict().items()}).'
        ) from None
    files.write_arrays(flags.out, arrays)
    print(
        f"wrote {flags.out}: {len(arrays)} arrays, {sum(x.size for x in arrays.values()):,} numbers"
    )


if __name__ == "__main__":
    main()

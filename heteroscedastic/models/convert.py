"""Weights in the layouts of others, there and back, so that one can start from public ones.

Of residual networks, the layout is that of torchvision: `layer2.0.bn1.running_mean`, kernels as
[out, in, h, w]. It is met as a flat mapping from names to numpy arrays, which torch makes once and
which is not needed after that:

    np.savez("resnet50.npz", **{k: v.numpy() for k, v in model.state_dict().items()})

    model = Classifier(ResNet50(), heads.LowRank(num_classes=10))
    variables = model.init(key, images, present)
    variables = convert.from_torch(np.load("resnet50.npz"), variables)

What config.init.weights names, to start a run from, is written of such a file by

    python -m heteroscedastic.models.convert --state_dict=resnet50.npz --backbone=ResNet50 --out=DIR/resnet50.npz

The outputs are equal for equal inputs: give the images scaled as the weights were trained on
(torchvision: RGB in [0, 1], less (0.485, 0.456, 0.406), over (0.229, 0.224, 0.225)).

Of heads, see `edward2.py` beside this.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from heteroscedastic import files, user_errors
from heteroscedastic.bind import bind
from heteroscedastic.models import backbones, heads
from heteroscedastic.models.classifier import Classifier

_OUTSIDE = {"stem": "conv1", "stem_norm": "bn1", "head/loc": "fc"}
_INSIDE = {"shortcut": "downsample.0", "shortcut_norm": "downsample.1"}
_INSIDE |= {
    f"{ours}{i}": f"{theirs}{i}"
    for ours, theirs in (("conv", "conv"), ("norm", "bn"))
    for i in (1, 2, 3)
}
_FIELDS = {
    "kernel": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
_AXES = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}  # of theirs, in our order


def from_torch(
    state_dict: Mapping[str, Any], variables: Mapping[str, Any], *, with_fc: bool = False
) -> dict[str, Any]:
    """The variables with a backbone, and perhaps the utilities' dense layer, out of a state dict.

    Args:
      state_dict: name -> array. `num_batches_tracked`, and without `with_fc` also `fc`, may be
        there or not and are not read.
      variables: `params` and `batch_stats` of a ResNet of version 1 with the imagenet stem, alone
        or as the backbone of a Classifier, as `init` returns them. What the layout does not name is
        kept; for what it names, shapes as of `jax.eval_shape` will do.
      with_fc: whether `fc` becomes the head's `loc`, for a head of the same classes. The rest of
        the head is kept, and the head divides the utilities by its temperature.

    Returns:
      Variables of the same tree, in the template's dtypes. PyTorch's running variances are unbiased
      and ours are not, which is seen in further training alone: by the factor n / (n - 1), for n
      values a channel and batch.

    Raises:
      ValueError: another kind of network, or names or shapes that do not fit, of which up to eight
        of a kind are told.
    """
    flat = traverse_util.flatten_dict(variables)
    paths = _paths(flat)
    if with_fc and "fc.weight" not in paths:
        raise ValueError(
            "with_fc is for a Classifier whose head has a dense layer loc; these variables have"
            " none."
        )
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


def to_torch(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The state dict of such variables, which `load_state_dict` takes once its arrays are tensors.

    Args:
      variables: as for `from_torch`. Of a Classifier the head's `loc` becomes `fc`, which gives
        utilities at temperature one; the layout has no place for the rest of a head.

    Raises:
      ValueError: another kind of network.
    """
    flat = traverse_util.flatten_dict(variables)
    arrays = {}
    for name, path in _paths(flat).items():
        array = np.asarray(flat[path])
        arrays[name] = np.array(array.transpose(np.argsort(_AXES[array.ndim])), order="C")
        if path[-1] == "var":  # what strict loading wants beside it
            arrays[name.replace("running_var", "num_batches_tracked")] = np.zeros((), np.int64)
    return arrays


def check_fit(
    message: str, found: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises a ValueError where arrays are not of these names and shapes; tells up to eight of a
    kind.
    """
    problems = {
        "lacks": expected.keys() - found.keys(),
        "has, though not expected,": found.keys() - expected.keys(),
        "has of another shape": {
            f"{name} {found[name].shape} where {expected[name]} is expected"
            for name in found.keys() & expected.keys()
            if found[name].shape != expected[name]
        },
    }
    wrong = [f"{verb} {_listed(names)}" for verb, names in problems.items() if names]
    if wrong:
        raise ValueError(f"{message}: it {'; it '.join(wrong)}.")


def _paths(flat: Mapping[tuple[str, ...], Any]) -> dict[str, tuple[str, ...]]:
    """PyTorch's name of each leaf that has one -> its path; what lies in a head need not have one."""
    ours = [path for path in flat if path[0] in ("params", "batch_stats")]
    paths = {_name(path): path for path in ours if _name(path)}
    wrong = [
        f"{'/'.join(path)} has no place in it"
        for path in ours
        if not _name(path) and path[1] != "head"
    ]
    wrong += [
        f"nothing here is its {name}"
        for name in ("conv1.weight", "bn1.running_var")
        if name not in paths
    ]
    if not wrong and (kernel := flat[paths["conv1.weight"]].shape[:2]) != (7, 7):
        wrong.append(f"the stem here is a convolution of {kernel}, and its {(7, 7)}")
    if wrong:
        raise ValueError(
            "The layout is that of params and batch_stats of a ResNet with version=1 and"
            " stem='imagenet',"
            f" alone or as the backbone of a Classifier: {wrong[0]}."
        )
    return paths


def _name(path: tuple[str, ...]) -> str | None:
    """`layer1.0.bn2.weight` for (params, backbone, stage1_block1, norm2, scale)."""
    _, *modules, field = path
    prefix, module, known = "", "/".join(modules).removeprefix("backbone/"), _OUTSIDE
    if block := re.fullmatch(r"stage(\d+)_block(\d+)/(\w+)", module):
        prefix, module, known = f"layer{block[1]}.{int(block[2]) - 1}.", block[3], _INSIDE
    return (
        f"{prefix}{known[module]}.{_FIELDS[field]}"
        if module in known and field in _FIELDS
        else None
    )


def _theirs(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[i] for i in np.argsort(_AXES[len(shape)]))


def _listed(names: Collection[str]) -> str:
    rest = len(names) - 8
    return ", ".join(sorted(names)[:8]) + (f" and {rest} more" if rest > 0 else "")


def named_weights(
    state_dict: Mapping[str, Any], backbone: str, *, with_fc: bool = False
) -> dict[str, np.ndarray]:
    """The weights of a state dict by our names, such as params/backbone/stem/kernel, for
    config.init.weights.

    Args:
      state_dict: as for `from_torch`.
      backbone: name of a residual network of version 1, with the imagenet stem.
      with_fc: whether `fc` goes along, as the head's `loc`.

    Raises:
      ValueError: there is no such backbone, or the weights are not its own.
    """
    if with_fc and "fc.weight" not in state_dict:
        raise ValueError("with_fc needs fc.weight and fc.bias, and the state dict has none.")
    num_classes = len(state_dict["fc.weight"]) if with_fc else 1
    model = Classifier(bind(backbones, name=backbone), heads.Deterministic(num_classes))
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
    """Writes public weights of a residual network as a run starts from them (config.init.weights)."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--state_dict",
        required=True,
        metavar="NPZ",
        help="PyTorch's names -> arrays, see this module",
    )
    parser.add_argument("--backbone", required=True, help="such as ResNet50")
    parser.add_argument(
        "--with_fc", action="store_true", help="also the dense layer of the classes"
    )
    parser.add_argument("--out", required=True, metavar="NPZ")
    flags = parser.parse_args()
    if files.as_path(flags.out).exists():
        raise SystemExit(f"{flags.out} is there already; remove it to write it again.")
    try:
        arrays = named_weights(
            files.read_arrays(flags.state_dict), flags.backbone, with_fc=flags.with_fc
        )
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"{flags.state_dict}: {error} A state dict becomes an .npz file, where PyTorch is"
            " installed, with"
            ' np.savez("FILE.npz", **{k: v.numpy() for k, v in model.state_dict().items()}).'
        ) from None
    files.write_arrays(flags.out, arrays)
    print(
        f"wrote {flags.out}: {len(arrays)} arrays, {sum(x.size for x in arrays.values()):,} numbers"
    )


if __name__ == "__main__":
    main()

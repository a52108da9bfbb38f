r"""Features of a data set: python -m heteroscedastic.runs.embed

    python -m heteroscedastic.runs.embed --data=cifar10_n --backbone=EfficientNetLite0 \
        --weights=pretrained --size=224 --out=DIR

applies a backbone to all images and writes DIR/cifar10_n_EfficientNetLite0_224.npz: float16
features with the labels, ids, further fields and class names of the data set. It is a data set for
config.data.name, with --data_dir=DIR. The .json beside it describes what made the features. A
command that was stopped resumes after the last complete part, and gives the same bytes.

Images are resized to squares, bilinearly with antialiasing. With --run=DIR of a translator, --data
is the set of its sentences and the examples are the tokens of the target, each with the features
before the head and the reference word; a part is a split.
"""

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import errors as flax_errors
from flax import linen as nn
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Shaped, UInt8

from heteroscedastic import files, user_errors
from heteroscedastic.bind import bind
from heteroscedastic.data import augment, chains
from heteroscedastic.data.dataset import StoredDataset
from heteroscedastic.data.split_spec import Slice
from heteroscedastic.data.storage import encoded, store
from heteroscedastic.models import backbones, convert, pretrained
from heteroscedastic.runs import (
    compilation_cache,
    host_memory,
    loaded_run,
    provenance,
    token_features,
    warm_start,
)

_PART_SIZE = 2048  # examples of a part
_CHAIN = "to_rgb|value_range(-1, 1)"  # for random weights
_TORCHVISION = "to_rgb|value_range((-2.1179, -2.0357, -1.8044), (2.2489, 2.4286, 2.64))"


class Network(NamedTuple):
    """A backbone with its weights."""

    backbone: nn.Module
    variables: Mapping[str, Any]  # params and batch statistics of the backbone
    chain: str  # of operations on resized images
    source: str  # of the weights


def network(name: str, weights: str | None, chain: str | None, size: int, seed: int) -> Network:
    """A backbone by name.

    Args:
      name: of the backbone.
      weights: None for random weights, "pretrained", or a file of config.warm_start.weights.
      chain: operations after the resizing; None for those of the public weights, or of random
        weights to_rgb|value_range(-1, 1).
      size: pixels of each side.
      seed: of random weights.

    Raises:
      ValueError: the backbone or the weights are unknown, damaged, or do not match, or weights of
        a file have no chain.
    """
    backbone = bind(backbones, name=name)

    def start(key):
        return backbone.init(key, jnp.zeros((1, size, size, 3)), jnp.ones(1, bool))

    if weights is None:
        variables = start(jax.random.key(seed))
        chain = _CHAIN if chain is None else chain
        return Network(backbone, variables, chain, f"random, seed {seed}")
    if weights == "pretrained":
        chain = f"to_rgb|{pretrained.images(name).chain}" if chain is None else chain
        weights = f"{pretrained.PREFIX}{name}"
    elif chain is None:
        raise ValueError(
            f"the pixels that {weights} expects are unknown; give --chain, for ResNets of"
            f" torchvision --chain='{_TORCHVISION}'."
        )
    arrays, _ = warm_start.read_weights(weights)
    flat = {
        tuple(path.split("/")): jnp.asarray(array)
        for path, array in arrays.items()
        if path.split("/")[1] == "backbone"
    }
    variables = {(p[0], *p[2:]): x for p, x in flat.items()}  # params/backbone/... -> params/...
    shapes = jax.eval_shape(start, jax.random.key(0))
    convert.check_fit(
        f"{weights} does not fit {name}",
        {"/".join(p): x for p, x in variables.items()},
        {p: x.shape for p, x in traverse_util.flatten_dict(dict(shapes), sep="/").items()},
    )
    return Network(backbone, traverse_util.unflatten_dict(variables), chain, weights)


def network_of_run(directory: str, chain: str | None, data_dir: str | None) -> Network:
    """The backbone of a finished run, with its last weights and its chain of evaluation."""
    run = loaded_run.load(directory, "last", data_dir)
    variables = {"params": run.state.params["backbone"]}
    variables |= {name: x["backbone"] for name, x in run.state.model_state.items()}
    chain = run.run.config["data"]["eval"] if chain is None else chain
    return Network(run.run.model.backbone, variables, chain, f"run {directory}")


def features_of(
    net: Network, size: int | None
) -> Callable[[UInt8[np.ndarray, "b h w c"]], Float[Array, "b d"]]:
    """A function from images to features, on all local devices.

    Args:
      net: backbone and weights.
      size: pixels to which images are resized; None keeps their size.
    """
    resizing = f"resize({size})" if size else ""
    text = "|".join(x for x in (resizing, net.chain) if x)
    links = chains.parse(augment, text)
    devices = jax.sharding.Mesh(np.array(jax.local_devices()), ("b",))
    cut = NamedSharding(devices, PartitionSpec("b"))

    @functools.partial(jax.jit, in_shardings=(None, cut))
    def features(variables, images):
        def prepared(image):
            example = {"image": image}
            for link in links:
                example = link(jax.random.key(0), example)
            return example["image"]

        present = jnp.ones(len(images), bool)
        return net.backbone.apply(variables, jax.vmap(prepared)(images), present)

    # Those of a run are on one device.
    return functools.partial(
        features, jax.device_put(net.variables, NamedSharding(devices, PartitionSpec()))
    )


def embedded(
    features: Callable[[np.ndarray], Array], images: Shaped[np.ndarray, "n h w c"], batch_size: int
) -> Float[np.ndarray, "n d"]:
    """The features of all images as float16, in batches that are padded to one size.

    Raises:
      ValueError: a feature is not finite, or too large for float16.
    """
    parts = []
    for start in range(0, len(images), batch_size):
        batch = images[start : start + batch_size]
        padding = ((0, batch_size - len(batch)), *((0, 0),) * (images.ndim - 1))
        parts.append(np.asarray(features(np.pad(batch, padding)))[: len(batch)])
    return _float16(np.concatenate(parts))


def _float16(values: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    with np.errstate(over="ignore"):
        stored = values.astype(np.float16)
    if not np.isfinite(stored).all():
        raise ValueError(
            f"the features reach {np.nanmax(np.abs(values)):.3g}, but float16 ends at 65504; check"
            " --weights and --chain."
        )
    return stored


def embed(
    stored: StoredDataset,
    features: Callable[[np.ndarray], Array],
    parts_dir: files.Path,
    size: int | None,
    batch_size: int,
    log: Callable[[str], Any],
) -> dict[str, np.ndarray]:
    """The inputs of the .npz file; finished parts are read from `parts_dir`, others written to it.

    Args:
      stored: the data set.
      features: images -> features.
      parts_dir: directory of the features of each part.
      size: pixels to which images that differ in size are resized; None requires one size.
      batch_size: images at a time.
      log: receives the progress.
    """
    arrays, total, done = {}, sum(stored.sizes.values()), 0
    for split in stored.sizes:
        values = []
        for part in _slices(stored, split):
            path = parts_dir / f"{split}_{part.start:08d}.npz"
            if not path.exists():
                images = _pixels(stored, part, size)
                files.write_arrays(path, {"features": embedded(features, images, batch_size)})
            values.append(files.read_arrays(path)["features"])
            done += part.stop - part.start
            log(f"{done:,} of {total:,} images")
        arrays[f"{split}_inputs"] = np.concatenate(values)
    return arrays


def _labels(stored: StoredDataset) -> dict[str, np.ndarray]:
    """All other arrays of the .npz file: class names, labels, further fields and ids."""
    arrays = {"class_names": np.array(stored.class_names)}
    for split in stored.sizes:
        # One part at a time, as a part holds its images.
        parts = [stored.read(part)._replace(images=[]) for part in _slices(stored, split)]
        arrays[f"{split}_ids"] = np.concatenate([part.ids for part in parts])
        for name in parts[0].fields:
            field = np.concatenate([part.fields[name] for part in parts])
            arrays[f"{split}_{'labels' if name == 'label' else name}"] = field
    return arrays


def _slices(stored: StoredDataset, split: str) -> list[Slice]:
    size = stored.sizes[split]
    starts = range(0, size, _PART_SIZE)
    return [Slice(split, start, min(start + _PART_SIZE, size)) for start in starts]


def _pixels(stored: StoredDataset, part: Slice, size: int | None) -> UInt8[np.ndarray, "n h w c"]:
    images = stored.read(part).images
    if isinstance(images, list):
        try:
            return encoded.decode(images, stored.num_channels, stored.where, size)
        except encoded.DifferentSizesError:
            raise ValueError(
                f"{stored.where}: images differ in size; give --size, such as --size=224, which"
                " resizes them."
            ) from None
    if images.ndim != 4:
        raise ValueError(f"{stored.where} has features, but embedding requires images.")
    return images


def _parsed() -> argparse.Namespace:
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--data", required=True, help="name of the data set, as config.data.name")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    help_ = "further fields of TFDS to keep"
    parser.add_argument("--extras", "--fields", nargs="*", default=(), help=help_)
    parser.add_argument("--backbone", help="such as EfficientNetLite0")
    parser.add_argument(
        "--weights", help="'pretrained', or a file of models/convert.py; random by default"
    )
    parser.add_argument("--run", help="finished run whose backbone is taken")
    parser.add_argument("--size", type=int, help="pixels to which images are resized")
    parser.add_argument(
        "--chain", help="operations on the resized images; required for --weights=FILE"
    )
    parser.add_argument("--seed", type=int, help="of random weights; 0 by default")
    parser.add_argument(
        "--batch_size", type=int, default=64, help="images, or rows of sentences, at a time"
    )
    parser.add_argument("--out", required=True, help="directory of the file")
    flags = parser.parse_args()
    if (flags.backbone is None) == (flags.run is None):
        parser.error("give one of --backbone and --run.")
    if flags.run and flags.weights:
        parser.error("--weights is of --backbone; a run has its own.")
    if flags.seed is not None and (flags.run or flags.weights):
        parser.error("--seed is of random weights; leave it out with --weights and --run.")
    if flags.batch_size < 1 or (flags.size is not None and flags.size < 1):
        parser.error("--batch_size and --size must be >= 1.")
    return flags


class Job(NamedTuple):
    """What is embedded, and by what."""

    num_examples: dict[str, int]  # by split
    labels: dict[str, np.ndarray]  # see _labels
    net: Network
    size: int | None
    inputs: Callable[[files.Path], dict[str, np.ndarray]]  # directory of parts -> the inputs


def _image_job(flags: argparse.Namespace) -> Job:
    stored = store.stored_dataset(flags.data, flags.data_dir, extras=flags.extras)
    size = flags.size
    if flags.run:
        net = network_of_run(flags.run, flags.chain, flags.data_dir)
    else:
        if size is None and flags.weights == "pretrained":
            size = pretrained.images(flags.backbone).size
        net = network(flags.backbone, flags.weights, flags.chain, size or 32, flags.seed or 0)
    batch_size = -(-flags.batch_size // jax.local_device_count()) * jax.local_device_count()

    def inputs(parts_dir):
        return embed(stored, features_of(net, size), parts_dir, size, batch_size, _log)

    return Job(dict(stored.sizes), _labels(stored), net, size, inputs)


def token_job(directory: str | files.Path, data_dir: str | None, batch_size: int = 64) -> Job:
    """The tokens of a translator, whose features also read the embedding of the head.

    Args:
      directory: of the finished run.
      data_dir: of its sentences.
      batch_size: rows at a time.
    """
    run = loaded_run.load(directory, "last", data_dir)
    pipeline = run.run.pipeline
    net = Network(run.run.model.backbone, {"params": run.state.params}, "", f"run {directory}")

    def inputs(parts_dir):
        arrays = {}
        for split in pipeline.sizes:
            path = parts_dir / f"{split}.npz"
            if not path.exists():
                values = _float16(token_features.features(run, split, batch_size))
                files.write_arrays(path, {"features": values})
            arrays[f"{split}_inputs"] = files.read_arrays(path)["features"]
            _log(f"{len(arrays[f'{split}_inputs']):,} tokens of {split}")
        return arrays

    sizes = {split: len(ids) for split, ids in pipeline.example_ids.items()}
    return Job(sizes, token_features.labels(pipeline), net, None, inputs)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def write(job: Job, data: str, name: str, out: files.Path) -> None:
    """Writes OUT/NAME.npz and NAME.json beside it.

    Args:
      job: what is embedded.
      data: name of the data set that is embedded.
      name: of the data set that is written.
      out: directory.

    Raises:
      ValueError: the directory has a part of other features of this name.
      SystemExit: the file exists.
    """
    weights = traverse_util.flatten_dict(job.net.variables, sep="/")
    recipe = {
        "data": data,
        "num_examples": job.num_examples,
        "labels_digest": provenance.digest_of_arrays(job.labels),
        "backbone": type(job.net.backbone).__name__,
        "weights": job.net.source,
        "weights_digest": provenance.digest_of_arrays(
            {name: np.asarray(x) for name, x in weights.items()}
        ),
        "size": job.size,
        "chain": job.net.chain,
        "dtype": "float16",
    }
    path, description = out / f"{name}.npz", out / f"{name}.json"
    parts_dir = out / f"{name}_parts"
    files.sweep(out, f"{name}.*")
    files.sweep(parts_dir, "*.npz")
    has_features = path.exists() or any(parts_dir.glob("*.npz"))
    is_other = description.exists() and files.read_json(description) != files.plain(recipe)
    if is_other and has_features:
        raise ValueError(
            f"{description} is of other features than these; choose another --out, or remove it"
            f" with {name}.npz and {name}_parts."
        )
    if path.exists():
        raise SystemExit(f"{path} exists already; remove it to write it again.")
    parts_dir.mkdir(parents=True, exist_ok=True)
    files.write_json(description, recipe)
    try:
        arrays = job.inputs(parts_dir)
    except flax_errors.ScopeParamShapeError as error:
        raise ValueError(
            f"the examples of {data} do not fit the parameters of the backbone; give a --chain that"
            f" makes them fit, such as to_rgb. Flax: {str(error).partition(' (https')[0]}"
        ) from None
    files.write_arrays(path, job.labels | arrays)
    for part in parts_dir.glob("*.npz"):
        part.unlink()
    if not files.in_bucket(out):  # which has no directories
        parts_dir.rmdir()
    shape = next(iter(arrays.values())).shape
    print(f"wrote {path}: {shape[1]} features, {files.size(path) / 1e6:.1f} MB")


@user_errors.one_line()
def main() -> None:
    """Writes the features of a data set, as data for a head or an estimator."""
    flags = _parsed()
    host_memory.keep()
    compilation_cache.enable()
    job = _job(flags)
    kind = type(job.net.backbone).__name__
    name = f"{flags.data}_{kind}_{job.size}" if job.size else f"{flags.data}_{kind}"
    write(job, flags.data, name, files.as_path(flags.out))


def _job(flags: argparse.Namespace) -> Job:
    config = loaded_run.read(flags.run).config if flags.run else {}
    if config.get("task") != "translation":
        return _image_job(flags)
    name = config["data"]["name"]
    if flags.data != name or flags.size or flags.chain or flags.extras:
        raise ValueError(
            f"{flags.run} is a translator, whose own sentences are embedded; give --data={name} and"
            " none of --size, --chain and --extras."
        )
    return token_job(flags.run, flags.data_dir, flags.batch_size)


if __name__ == "__main__":
    main()

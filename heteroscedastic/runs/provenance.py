"""The code, packages, flags and devices that produce a result, and digests of files."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import traverse_util

import heteroscedastic
from heteroscedastic import files
from heteroscedastic.runs import identity
from heteroscedastic.training.state import TrainState

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
_COMPARED = ("jax", "jaxlib", "flax", "optax")
_FLAGS = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
)


class ChangedError(ValueError):
    """A run would resume under other JAX flags, which change its numbers."""


def provenance() -> dict[str, Any]:
    """Devices, package versions, environment, and the commit if the code is a Git checkout."""
    return {
        "device": device(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
        "environment": _environment(),
    }


def _environment() -> dict[str, Any]:
    """Code, package versions and JAX flags, on which numbers may depend."""
    versions = {
        "heteroscedastic": heteroscedastic.__version__,
        **{name: metadata.version(name) for name in _COMPARED},
        "python": "{}.{}".format(*sys.version_info),
    }
    flags = {name: getattr(jax.config, name) for name in _FLAGS if hasattr(jax.config, name)}
    return {"code": _code(), "versions": versions, "flags": flags}


def host_values(
    current: dict[str, Any], config: dict[str, Any], description: Mapping[str, Any]
) -> dict[str, Any]:
    """The values that all hosts of a run must share, by name.

    Args:
      current: result of `provenance` on this host.
      config: config of the run.
      description: of its data; see assembly.Run.description.
    """
    environment = current["environment"]
    return {
        "code": environment["code"],
        **environment["versions"],
        **environment["flags"],
        "devices": f"{jax.local_device_count()} x {jax.local_devices()[0].device_kind}",
        "data": description["fingerprint"],
        "orientations of images": description.get("orientations"),
        "table of config.smoothing": description.get("class_table"),
        **traverse_util.flatten_dict({"config": files.plain(config)}, sep="."),
    }


def check_unchanged(
    checkpoint_metadata: dict[str, Any], current: dict[str, Any], allow_changed: bool
) -> None:
    """Warns if a run resumes under other code or package versions.

    Args:
      checkpoint_metadata: metadata of the last checkpoint. Nothing is checked if an older version,
        which recorded no environment, saved it.
      current: result of `provenance` in this process.
      allow_changed: whether other JAX flags cause a warning instead of an error.

    Raises:
      ChangedError: the JAX flags differ.
    """
    before, environment = checkpoint_metadata.get("environment"), current["environment"]
    if not before:
        return
    flags = _differences(before["flags"], environment["flags"])
    if flags and not allow_changed:
        raise ChangedError(
            f"this run began under other JAX flags (then -> now): {flags}. Restore the flags, or"
            " give --allow_changed to resume under the new ones; the results then belong to neither"
            " set of flags."
        )
    saved_commit = (checkpoint_metadata.get("commits") or [None])[-1]
    commits = {"commit": saved_commit}, {"commit": current["commit"]}
    code = {"code": before["code"][:12]}, {"code": environment["code"][:12]}
    pairs = (commits, code, (before["versions"], environment["versions"]))
    others = [differences for pair in pairs if (differences := _differences(*pair))]
    if flags or others:
        changed = ", ".join([*([flags] if flags else []), *others])
        logging.warning(
            "this run resumes in another environment than saved it (then -> now): %s.", changed
        )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Text of the entries that both dictionaries have and that differ."""
    return ", ".join(
        f"{k} {before[k]} -> {now[k]}" for k in before if k in now and before[k] != now[k]
    )


def _code() -> str:
    """Digest of the names and contents of the source files of the package, but not of configs.

    It is the same for a checkout and for a wheel, which has the configs in the package.
    """
    root, digest = Path(heteroscedastic.__file__).parent, hashlib.sha256()
    for path in sorted(p for p in root.rglob("*.py") if p.parent != root / "configs"):
        digest.update(
            f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode()
            + path.read_bytes()
        )
    return digest.hexdigest()


def owner(config: dict[str, Any], fingerprint: str, class_table: str | None = None) -> str:
    """Identifier of a run of this config on these data; independent of the devices.

    Args:
      config: of the run.
      fingerprint: of its data.
      class_table: digest of the table that its targets depend on; None without a table.
    """
    content = [identity.identity(config), fingerprint]
    if class_table is not None:  # absent, so that owners of earlier versions stay valid
        content.append(class_table)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def device() -> str:
    """Number and kind of the devices."""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


def joined_commits(commits: Sequence[str | None]) -> str | None:
    """The commits of a run as text; None if its code was never a Git checkout."""
    return " then ".join(commit or "unknown" for commit in commits) if any(commits) else None


def _commit() -> str | None:
    """The commit, with the suffix "-dirty" if tracked files differ from it."""
    if _git("rev-parse", "--show-toplevel") != str(Path(__file__).resolve().parents[2]):
        return None  # installed, perhaps into the checkout of another project
    commit = _git("rev-parse", "HEAD")
    is_dirty = commit and _git("status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if is_dirty else commit


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def data_key(description: Mapping[str, Any]) -> tuple[Any, Any]:
    """Fingerprint of the examples and class names: equal if and only if the data are equal.

    Runs of earlier versions recorded the fingerprint of the examples alone, without the class
    names.
    """
    fingerprint = description.get("fingerprint")
    return description.get("examples_fingerprint", fingerprint), description.get("class_names")


def digest(content: Any) -> str:
    """Digest of a JSON value.

    It depends neither on the formatting of a file nor on whether 4 is written as 4.0.
    """
    return hashlib.sha256(
        json.dumps(jax.tree.map(_canonical, files.plain(content)), sort_keys=True).encode()
    ).hexdigest()


def _canonical(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def stamped(content: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """A JSON object with the owner of its run and a digest that detects later changes."""
    content = {**content, "owner": owner}
    return {**content, "digest": digest(content)}


def is_unchanged(content: Mapping[str, Any]) -> bool:
    """Whether a stamped JSON object has not changed since it was written."""
    return content.get("digest") == digest({k: v for k, v in content.items() if k != "digest"})


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Digest of the names and bits of arrays."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def stamped_arrays(
    name: str, arrays: Mapping[str, np.ndarray], owner: str
) -> dict[str, np.ndarray]:
    """The arrays of NAME.npz, the owner of its run, and a digest of arrays, name and owner."""
    digest = hashlib.sha256(f"{name} {owner} {digest_of_arrays(arrays)}".encode()).hexdigest()
    return {**arrays, "owner": np.array(owner), "digest": np.array(digest)}


def digest_of_state(state: TrainState, metadata: dict[str, Any]) -> str:
    """Digest of the metadata and all bits of a state; independent of the placement of arrays."""
    leaves = jax.tree.leaves(state)
    sums = jax.device_get(_sums_of_bits(leaves))
    arrays = [[str(x.dtype), list(x.shape), int(s)] for x, s in zip(leaves, sums)]
    return hashlib.sha256(json.dumps([metadata, arrays], sort_keys=True).encode()).hexdigest()


@jax.jit
def _sums_of_bits(leaves: list[jax.Array]) -> list[jax.Array]:
    """A weighted sum modulo 2**32 of the bits of each array.

    The weights are odd, so that a change of any one element changes the sum. Integer addition does
    not depend on the order, so the sum is the same on any number of devices.
    """

    def sum_of(x):
        x = x.astype(jnp.uint8) if x.dtype == bool else x
        words = jax.lax.bitcast_convert_type(
            x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")
        ).astype(jnp.uint32)
        strides = np.cumprod((1, *words.shape[:0:-1]))[::-1]
        axes = range(words.ndim)
        index = sum(
            jax.lax.broadcasted_iota(jnp.uint32, words.shape, i) * np.uint32(strides[i])
            for i in axes
        )
        return jnp.sum(words * (2 * index + 1), dtype=jnp.uint32)

    return [sum_of(x) for x in leaves]

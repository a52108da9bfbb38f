"""What a result was made with."""

import hashlib
import json
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from heteroscedastic import files
from heteroscedastic.training import schema

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def provenance() -> dict[str, Any]:
    """Device, versions of packages, and the commit of the code where it runs from a checkout."""
    return {
        "device": device(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def owner(config: dict[str, Any], fingerprint: str) -> str:
    """Whose a checkpoint is: a run of this config on these data, on any layout of devices."""
    return hashlib.sha256(json.dumps([schema.identity(config), fingerprint], sort_keys=True).encode()).hexdigest()


def device() -> str:
    """How many devices of which kind."""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}"


def _commit() -> str | None:
    """The commit, with "-dirty" where files that git follows differ from it."""
    if _git("rev-parse", "--show-toplevel") != str(Path(__file__).resolve().parents[2]):
        return None  # installed, maybe into the checkout of something else
    found = _git("rev-parse", "HEAD")
    return found and found + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def data_key(description: Mapping[str, Any]) -> tuple[Any, Any]:
    """Value that is equal for two entries of dataset.json exactly where the data are the same.

    Runs of earlier versions recorded the fingerprint of the examples alone, without the class names.
    """
    fingerprint = description.get("fingerprint")
    return description.get("examples_fingerprint", fingerprint), description.get("class_names")


def digest(content: Any) -> str:
    """Digest of a JSON value. It does not depend on the formatting of a file, nor on 4 being written as 4.0."""
    return hashlib.sha256(json.dumps(_canonical(files.plain(content)), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def stamped(content: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """A JSON object with the owner of its run, and a digest by which a later change is found."""
    content = {**content, "owner": owner}
    return {**content, "digest": digest(content)}


def is_unchanged(content: Mapping[str, Any]) -> bool:
    """Whether a stamped JSON object is what was written."""
    return content.get("digest") == digest({k: v for k, v in content.items() if k != "digest"})


def digest_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Digest of all names and bits."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array))
    return found.hexdigest()


def stamped_arrays(name: str, arrays: Mapping[str, np.ndarray], owner: str) -> dict[str, np.ndarray]:
    """The arrays of the file NAME.npz with the owner of its run, and a digest of arrays, name and owner."""
    found = hashlib.sha256(f"{name} {owner} {digest_of_arrays(arrays)}".encode()).hexdigest()
    return {**arrays, "owner": np.array(owner), "digest": np.array(found)}

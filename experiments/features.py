r"""Fixed features in place of images, on which a run takes seconds: scale "features".

    python -m heteroscedastic.runs.embed --data=cifar10_n --backbone=EfficientNetLite0 \
        --weights=pretrained --out=DIR

writes them, and --data_dir=DIR of experiments.run names their directory. Rows of images become rows
of features by these overrides, which leave the method and the training as they are.
"""

from collections.abc import Iterable
from typing import Any

from heteroscedastic.data.storage import store

_SUFFIX = "_EfficientNetLite0_224"
# Before condition and seed: a set of decoder states of Multi30k, which are features of words.
STATES = "multi30k_states_"
OVERRIDES: dict[str, Any] = {
    "data.name": f"cifar10_n{_SUFFIX}",
    "data.train": "",
    "data.eval": "",
    "data.standardize": True,
    "backbone": dict(name="MLP", widths=(512,)),
}
SEEDS = tuple(range(20))


def check_stored(names: Iterable[str], data_dir: str | None) -> None:
    """Raises an error before any run starts if features that it needs are not stored.

    Args:
      names: of data sets; others than features are not checked.
      data_dir: directory of the data sets.

    Raises:
      FileNotFoundError: features are missing; says which command writes them.
    """
    for name in sorted(set(names)):
        command = _command(name)
        if command and not store.is_there(name, data_dir):
            place = f"not in {data_dir}" if data_dir else "nowhere, as --data_dir is not given"
            raise FileNotFoundError(
                f"the features {name}.npz are {place}; write them to DIR with python -m {command}"
                " --out=DIR, and pass --data_dir=DIR."
            )


def _command(name: str) -> str | None:
    """The module and flags that write a set of features; None for other data sets."""
    if name.startswith(STATES):
        return "experiments.dataset_curation.decoder_states"
    if name.endswith(_SUFFIX):
        flags = f"--data={name.removesuffix(_SUFFIX)} --backbone=EfficientNetLite0"
        return f"heteroscedastic.runs.embed {flags} --weights=pretrained --size=224"
    return None

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
        if name.endswith(_SUFFIX) and not store.is_there(name, data_dir):
            place = f"not in {data_dir}" if data_dir else "nowhere, as --data_dir is not given"
            raise FileNotFoundError(
                f"the features {name}.npz are {place}; write them to DIR with python -m"
                f" heteroscedastic.runs.embed --data={name.removesuffix(_SUFFIX)}"
                " --backbone=EfficientNetLite0 --weights=pretrained --size=224 --out=DIR, and pass"
                " --data_dir=DIR."
            )

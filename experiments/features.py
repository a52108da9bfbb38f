r"""Fixed features of CIFAR-10 in place of images, on which a run takes seconds: scale "features".

    python -m heteroscedastic.runs.embed --data=cifar10_n --backbone=EfficientNetLite0 \
        --weights=pretrained --out=DIR

writes them, and --data_dir=DIR of experiments.run names their directory. Rows of images become rows
of features by these overrides, which leave the method and the training as they are.
"""

from typing import Any

OVERRIDES: dict[str, Any] = {
    "data.name": "cifar10_n_EfficientNetLite0_224",
    "data.train": "",
    "data.eval": "",
    "data.standardize": True,
    "backbone": dict(name="MLP", widths=(512,)),
}
SEEDS = tuple(range(20))

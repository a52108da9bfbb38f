"""Independent noise trained and evaluated with the exact softmax and with samples.

Samples err most at small temperatures, which the grids have beside larger ones; --at prints one.
"""

from typing import Any

from experiments.correlated_label_noise import frozen, frozen_many_classes
from experiments.study import Primary, Regime, Row, Scale, Table

Overrides = dict[str, Any]
_SEEDS = tuple(range(10))
_ESTIMATES: dict[str, Overrides] = {
    "exact_32": dict(name="softmax_exact", num_nodes=32),
    "sobol_128": dict(name="softmax", num_samples=128, points="sobol"),
    "independent_1000": dict(name="softmax", num_samples=1000, points="independent"),
}


def _table(
    data: str, config: str, scale: str, overrides: Overrides, temperatures: tuple[float, ...]
) -> Table:
    rows = tuple(Row(name, config, {"predictive": x}) for name, x in _ESTIMATES.items())
    return Table(
        claim=f"Trained with the integral, independent noise predicts better than trained with"
        f" samples: {data}.",
        rows=rows,
        metrics=frozen.METRICS,
        regimes={"last epoch": Regime(select="valid", report="test")},
        select_metric="nll",
        grid={"head.temperature": temperatures},
        scales={scale: Scale(_SEEDS, overrides)},
        reference="sobol_128",
        # Chosen before any run of these tables.
        primary=(
            Primary("exact_32", "nll", "sobol_128", "last epoch"),
            Primary("exact_32", "nll", "independent_1000", "last epoch"),
        ),
    )


TABLES = {
    "exact": _table(
        "planted noise on digits",
        "digits_het_diag",
        "cpu",
        {"training.num_epochs": 200.0} | frozen.LAST_EPOCH,
        (0.15, 1.0, 8.0),
    ),
    "exact_features": _table(
        "frozen features, worst human labels",
        "cifar10_n_features_het_diag",
        "features",
        frozen.TRAINING | frozen.LAST_EPOCH,
        (0.15, 1.0, 4.0),
    ),
    "exact_tiny_imagenet": _table(
        "frozen features of all classes of Tiny-ImageNet, clean labels",
        "cifar10_n_features_het_diag",
        "features",
        frozen.TRAINING
        | frozen.LAST_EPOCH
        | frozen_many_classes.TINY_IMAGENET
        | {"head.num_classes": 200},
        (0.15, 1.0),
    ),
}

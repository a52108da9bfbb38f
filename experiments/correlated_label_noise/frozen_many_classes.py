r"""Tables on frozen features of the 200 classes of Tiny-ImageNet, and of mosaics of its images.

    python -m heteroscedastic.runs.embed --data=tiny_imagenet --backbone=EfficientNetLite0 \
        --weights=pretrained --size=224 --out=DIR
    python -m experiments.run --study=correlated_label_noise --table=tiny_imagenet_features \
        --scale=features --data_dir=DIR --jobs=2

The public weights were trained on ImageNet, which has the training images of Tiny-ImageNet and
perhaps its validation images, on which these tables report.
"""

from experiments import features
from experiments.correlated_label_noise import frozen, mosaics, siblings
from experiments.study import Primary, Row, Scale, Table

TINY_IMAGENET = {
    "data.name": "tiny_imagenet_EfficientNetLite0_224",
    "data.label": "label",
    "data.splits": dict(train="train", test="validation"),
    "backbone.widths": (512,),
}
_FIFTEEN = {"head.num_factors": 15}


_BIAS = ("ece_floor", "ece_debiased")


def _tiny_imagenet(
    claim: str,
    temperatures: tuple[float, ...],
    curation: str = "",
    primary: tuple[Primary, ...] = (),
    metrics: tuple[str, ...] = (),
) -> Table:
    """A hidden layer on features of all 200 classes.

    Rows, seeds, temperatures, the rule of choice and the primary comparisons were chosen before
    any run of these tables. The rule is that of `frozen_features_random2`. The low-rank head has
    as many factors as in the tables of CIFAR-10N, as its time grows with them.
    """
    many = {"head.num_classes": 200}
    sampled = many | frozen.SAMPLED
    rows = (
        frozen.plain("plain", many),
        Row("diagonal", "cifar10_n_features_het_diag", sampled),
        Row("low_rank_6", "cifar10_n_features_het_full", sampled),
        Row("parameter_efficient_15", "cifar10_n_features_het_pe", sampled | _FIFTEEN),
    )
    return frozen.table(
        claim,
        rows,
        TINY_IMAGENET | {"curation": curation},
        metrics=("accuracy", "top5_accuracy", *frozen.METRICS[1:], *metrics),
        seeds=features.SEEDS[:5],
        grid={"head.temperature": temperatures},
        select_metric="brier",
        also_select=("accuracy", "nll"),
        primary=primary,
    )


def _several_labels() -> Table:
    """A hidden layer on features of mosaics, of whose labels some are missing and some wrong."""
    rows = tuple(
        Row(name, f"digits_multilabel_{name}", factors)
        for name, factors in (("hom", {}), ("het_diag", {}), ("het_pe", _FIFTEEN))
    )
    return Table(
        claim="With several labels, some missing and some wrong, noise heads help, and correlated"
        " noise more than independent noise: mosaics of Tiny-ImageNet, frozen features.",
        rows=rows,
        metrics=("nll", "scaled_nll", "gap", "one_against_all_ece", "scaled_one_against_all_ece"),
        regimes=frozen.LAST,
        select_metric="nll",
        grid={"head.temperature": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)},
        scales={
            "features": Scale(
                features.SEEDS,
                features.OVERRIDES
                | frozen.LAST_EPOCH
                | {
                    "data.name": f"{mosaics.NAME}_EfficientNetLite0_224",
                    "data.validation_fraction": 0.1,
                    "head.num_classes": 200,
                    "curation": "drop_and_add(drop_rate=0.2, add_rate=0.002)",
                },
            )
        },
        reference="hom",
        # Chosen before any run of this table.
        primary=(
            Primary("het_diag", "nll", "hom", "last epoch"),
            Primary("het_pe", "nll", "het_diag", "last epoch"),
        ),
        changed="the temperatures 4, 8 and 16 were added, as every seed chose 2, and then 32 and"
        " 64, as every seed chose 16.",
    )


TABLES = {
    "tiny_imagenet_features": _tiny_imagenet(
        "With clean labels and similar classes, correlated noise helps: all classes of"
        " Tiny-ImageNet, frozen features.",
        (0.25, 1.0, 4.0),
        primary=frozen.primary("low_rank_6", "accuracy", "nll"),
        metrics=_BIAS,
    ),
    **{
        f"tiny_imagenet_siblings_{percent}": _tiny_imagenet(
            f"Correlated noise helps if {percent} % of the labels of the 65 classes with siblings"
            " in WordNet are those of a sibling: all classes of Tiny-ImageNet, frozen features.",
            (1.0, 4.0, 16.0),
            siblings.curation(percent / 100),
            (
                *frozen.primary("low_rank_6", "accuracy", "nll"),
                *frozen.primary("low_rank_6", "accuracy", "nll", reference="diagonal"),
            ),
            metrics,
        )
        # The results of 40 % were saved without the bias of the ECE.
        for percent, metrics in ((20, _BIAS), (40, ()))
    },
    "several_labels_features": _several_labels(),
}

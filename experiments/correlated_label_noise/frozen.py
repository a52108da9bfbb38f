r"""Tables on frozen features of EfficientNet-Lite0, where a run takes seconds: scale "features".

    python -m heteroscedastic.runs.embed --data=cifar10_n --backbone=EfficientNetLite0 \
        --weights=pretrained --size=224 --out=DIR
    python -m experiments.run --study=correlated_label_noise --table=frozen_features \
        --scale=features --data_dir=DIR --jobs=2

5,000 training images of CIFAR-10N are held out with their noisy labels, whose NLL chooses
temperature and, in the linear tables, weight decay. Split, start and noise follow from the seed.
The public weights were trained on ImageNet, which has the training images of Tiny-ImageNet and
perhaps its validation images, on which its tables report.
"""

from typing import Any

from experiments import features
from experiments.correlated_label_noise import mosaics, siblings
from experiments.study import Primary, Regime, Row, Scale, Table

Overrides = dict[str, Any]
FACTORS = (3, 6, 9)
METRICS = ("accuracy", "nll", "scaled_nll", "ece", "scaled_ece")
LAST = {"last epoch": Regime(select="valid", report="test")}
_BOTH = {"early stopping": Regime(select="valid_best", report="test_best"), **LAST}
_SAMPLED = {"predictive": dict(name="softmax", num_samples=32, points="sobol", chunk_size=None)}
TRAINING = {
    "training.batch_size": 500,
    "training.num_epochs": 12.0,
}
# One evaluation of each split, at the end.
LAST_EPOCH = {
    "training.checkpoint_epochs": 1e6,
    "evals": {
        name: dict(split=name, checkpoint="last", answers=None) for name in ("valid", "test")
    },
}
TINY_IMAGENET = {
    "data.name": "tiny_imagenet_EfficientNetLite0_224",
    "data.label": "label",
    "data.splits": dict(train="train", test="validation"),
    "backbone.widths": (512,),
}
_GRID = {
    "head.temperature": (1.0, 2.0, 4.0, 8.0, 16.0),
    "optimizer.weight_decay": (1e-4, 1.0),
}


def _plain(name: str, overrides: Overrides | None = None) -> Row:
    return Row(name, "cifar10_n_features_hom", overrides or {})


def _low_rank(num_factors: int, suffix: str = "", overrides: Overrides | None = None) -> Row:
    settings = _SAMPLED | {"head.num_factors": num_factors} | (overrides or {})
    return Row(f"low_rank_{num_factors}{suffix}", "cifar10_n_features_het_full", settings)


def _efficient(num_factors: int) -> Row:
    settings = _SAMPLED | {"head.num_factors": num_factors}
    return Row(f"parameter_efficient_{num_factors}", "cifar10_n_features_het_pe", settings)


_DIAGONAL = Row("diagonal", "cifar10_n_features_het_diag")
_HEADS = (_plain("plain"), _DIAGONAL, _low_rank(6), _efficient(6))
_ROBUST = {"loss": dict(name="generalized_cross_entropy", q=0.7)}
_CLEAN = {"data.label": "label"}  # in training and in the choice
# The share of correct labels is taken as known. Small loss within an epoch is the core of
# co-teaching, here of one network.
_SMALL_LOSS = {
    "selection": dict(name="smallest", fraction=0.6),
    "score": dict(name="loss"),
    "prioritization": dict(
        warmup_epochs=3, every_epochs=1, scores="training", target=None, record=False
    ),
}
_REMEDIES = (
    _plain("generalized_cross_entropy", _ROBUST),
    _low_rank(6, "_generalized_cross_entropy", _ROBUST),
    _plain("label_smoothing", {"smoothing": dict(name="uniform", rate=0.1)}),
    _plain("mixup", {"mixing": dict(name="mixup", alpha=0.2, draws="batch")}),
    _plain("small_loss", _SMALL_LOSS),
)
_BOUND = (_plain("clean", _CLEAN), _low_rank(6, "_clean", _CLEAN))


def _table(
    claim: str,
    rows: tuple[Row, ...],
    overrides: Overrides | None = None,
    *,
    seeds: tuple[int, ...] = features.SEEDS,
    runs: str | None = None,
    **settings: Any,
) -> Table:
    scale = Scale(seeds, TRAINING | LAST_EPOCH | (overrides or {}), runs=runs)
    defaults: Overrides = dict(
        metrics=METRICS,
        regimes=LAST,
        grid=_GRID,
        select_metric="nll",
        also_select=("accuracy", "brier"),
    )
    return Table(
        claim=claim,
        rows=rows,
        scales={"features": scale},
        reference="plain",
        **(defaults | settings),
    )


def _primary(row: str, *metrics: str, reference: str = "plain") -> tuple[Primary, ...]:
    return tuple(Primary(row, metric, reference, "last epoch") for metric in metrics)


# For tables other than the first, in which every plain run and most others chose decay 1. Chosen
# before any run of these tables, as were their seeds and primary comparisons: to keep a table near
# half an hour.
_TEN_SEEDS = features.SEEDS[:10]
_DECAY = {"optimizer.weight_decay": (1.0,)}
_FEWER = {"head.temperature": (1.0, 4.0, 16.0), **_DECAY}
_SHARED = (
    "seeds and grid were chosen when the results of plain and low_rank_6 had been seen, before any"
    " run of another row."
)
_OTHER_LABELS = {
    "aggregate": ("aggre_label", "With the majority votes of three people, of which 9 % are wrong"),
    "random1": ("random_label1", "With one person's labels, of which 17 % are wrong"),
    "clean": ("label", "With clean labels"),
}


def _tiny_imagenet(claim: str, curation: str = "", primary: tuple[Primary, ...] = ()) -> Table:
    """A hidden layer on features of all 200 classes."""
    many = {"head.num_classes": 200}
    rows = (
        _plain("plain", many),
        Row("low_rank_15", "cifar10_n_features_het_full", many | _SAMPLED | _FIFTEEN),
        Row("parameter_efficient_15", "cifar10_n_features_het_pe", many | _SAMPLED | _FIFTEEN),
    )
    return _table(
        claim,
        rows,
        TINY_IMAGENET | {"curation": curation},
        metrics=("accuracy", "top5_accuracy", *METRICS[1:]),
        grid={"head.temperature": (0.25, 1.0, 4.0)},
        primary=primary,
    )


_FIFTEEN = {"head.num_factors": 15}


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
        regimes=LAST,
        select_metric="nll",
        grid={"head.temperature": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)},
        scales={
            "features": Scale(
                features.SEEDS,
                features.OVERRIDES
                | LAST_EPOCH
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
    "frozen_features": _table(
        "A head with correlated noise is more accurate on clean labels than a plain one, trained on"
        " the worst human labels: frozen features.",
        _HEADS,
        # Chosen before any run of this table.
        primary=_primary("low_rank_6", "accuracy", "nll"),
    ),
    "frozen_features_factors": _table(
        "The number of factors does not matter: frozen features, worst labels.",
        (_HEADS[0], *(row(n) for row in (_low_rank, _efficient) for n in FACTORS)),
        runs="frozen_features",
        seeds=_TEN_SEEDS,
        grid={"head.temperature": (4.0, 8.0), **_DECAY},  # which the low-rank head chooses
        primary=_primary("low_rank_9", "accuracy", "nll", reference="low_rank_3"),
        changed=_SHARED,
    ),
    "frozen_features_remedies": _table(
        "Correlated noise helps against wrong labels as other remedies do: frozen features, worst"
        " labels. Their bound is frozen_features_clean.",
        (_HEADS[0], _HEADS[2], *_REMEDIES),
        runs="frozen_features",
        seeds=_TEN_SEEDS,
        grid=_GRID | _DECAY,
        primary=(
            *_primary("generalized_cross_entropy", "accuracy", reference="low_rank_6"),
            *_primary(
                "low_rank_6_generalized_cross_entropy",
                "accuracy",
                reference="generalized_cross_entropy",
            ),
        ),
        changed=_SHARED,
    ),
    **{
        f"frozen_features_{name}": _table(
            f"{start}, correlated noise helps less: frozen features.",
            _HEADS,
            {"data.label": label},
            seeds=_TEN_SEEDS,
            grid=_FEWER,
            primary=_primary("low_rank_6", "accuracy", "nll"),
        )
        for name, (label, start) in _OTHER_LABELS.items()
    },
    # Rule, rows, grid and comparisons were chosen before any run of this table, after the tables of
    # the other labels had shown that of NLL, accuracy and Brier score of noisy labels the last
    # chooses best. A further one, which --select_metric=nll prints with the opposite sign: the
    # accuracy and NLL of the low-rank head as tuned by the Brier score less those as tuned by NLL.
    "frozen_features_random2": _table(
        "Held-out noisy labels choose better settings by the Brier score than by the NLL, and the"
        " head with correlated noise gains: labels of another person, of which 18 % are wrong,"
        " frozen features.",
        _HEADS,
        {"data.label": "random_label2"},
        seeds=_TEN_SEEDS,
        grid={"head.temperature": (0.5, 1.0, 2.0, 4.0), **_DECAY},
        select_metric="brier",
        also_select=("accuracy", "nll"),
        primary=(
            *_primary("low_rank_6", "accuracy", "nll"),
            *_primary("low_rank_6", "accuracy", "nll", reference="diagonal"),
        ),
    ),
    # Chosen before any run of this table, after frozen_features_remedies had shown that accuracy is
    # the rule for losses that ignore wrong labels.
    "frozen_features_random3": _table(
        "Tuned by the accuracy of held-out noisy labels, the generalized cross-entropy is better"
        " than the cross-entropy, and correlated noise adds to it: labels of a third person, of"
        " which 18 % are wrong, frozen features.",
        (_HEADS[0], _HEADS[2], *_REMEDIES[:2]),
        {"data.label": "random_label3"},
        seeds=_TEN_SEEDS,
        grid={"head.temperature": (0.5, 1.0, 2.0, 4.0), **_DECAY},
        select_metric="accuracy",
        also_select=("brier", "nll"),
        primary=(
            *_primary("generalized_cross_entropy", "accuracy", "nll"),
            *_primary(
                "low_rank_6_generalized_cross_entropy",
                "accuracy",
                "nll",
                reference="generalized_cross_entropy",
            ),
        ),
    ),
    # Two hidden layers can memorise labels, so that the epoch matters.
    "frozen_features_hidden": _table(
        "Correlated noise helps where the network can memorise wrong labels: two hidden layers on"
        " frozen features, worst labels.",
        (*_HEADS, *_REMEDIES, *_BOUND),
        {
            "backbone.widths": (512, 512),
            "training.checkpoint_epochs": 1.0,
            "evals": {
                name: dict(split=name.partition("_")[0], checkpoint=checkpoint, answers=None)
                for name, checkpoint in (
                    *(("valid", "last"), ("valid_best", "best")),
                    *(("test", "last"), ("test_best", "best")),
                )
            },
        },
        regimes=_BOTH,
        seeds=_TEN_SEEDS,
        grid={"head.temperature": (1.0, 4.0, 16.0)},
        primary=tuple(
            Primary("low_rank_6", metric, "plain", regime)
            for regime in _BOTH
            for metric in ("accuracy", "nll")
        ),
    ),
    "tiny_imagenet_features": _tiny_imagenet(
        "With clean labels and similar classes, correlated noise helps: all classes of"
        " Tiny-ImageNet, frozen features."
    ),
    **{
        f"tiny_imagenet_siblings_{percent}": _tiny_imagenet(
            f"Correlated noise helps if {percent} % of the labels of the 65 classes with siblings"
            " in WordNet are those of a sibling: all classes of Tiny-ImageNet, frozen features.",
            siblings.curation(percent / 100),
            _primary("low_rank_15", "accuracy", "nll"),
        )
        for percent in (20, 40)
    },
    "several_labels_features": _several_labels(),
}

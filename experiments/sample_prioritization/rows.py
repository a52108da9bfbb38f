"""Tables of "Can Calibration Improve Sample Prioritization?" (2022), and our questions.

Every epoch after the warm-up has the examples of largest entropy. Scale "paper" has the paper's
settings, "gpu" a smaller network and fewer epochs, and "cpu" also fewer images. Scale "features"
has a hidden layer on fixed features of CIFAR-10, which permits many seeds. The last epoch counts
(reading S11); temperatures are fitted on the images that are held out of the training set.
"""

from pathlib import Path
from typing import Any

from experiments import features
from experiments.study import Primary, Regime, Row, Scale, Table
from heteroscedastic import files

Overrides = dict[str, Any]
PAPER = files.read_json(Path(__file__).parent / "paper.json")
DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
PERCENTS = (100, 30, 20, 10)
METHODS = ("none", "label_smoothing", "mixup", "focal")
_TARGET_ALPHA = {"cifar10": 0.3, "cifar100": 0.25}

_REGIMES = {"test": Regime(select=None, report="test", fit="valid")}
# A positive gap is overconfidence: choosing hard examples lowers confidence, which may pass for
# calibration.
_METRICS = (
    "accuracy",
    "ece",
    "signed_gap",
    "confidence",
    "nll",
    "scaled_ece",
    "scaled_signed_gap",
    "scaled_nll",
)
# Differences of ECE between cells are near the bias of the estimate.
_OF_PAPER = (*_METRICS, "ece_floor", "ece_debiased")
_CHANGED = "the signed gaps were added."
_SEEDS = (0, 1, 2)
_MORE_SEEDS = (0, 1, 2, 3, 4, 5)  # of the primary comparison

_ON_GPU = {
    "backbone.name": "ResNet18",
    "training.num_epochs": 60.0,
    "prioritization.warmup_epochs": 3,
}
# The learning rate was chosen among 0.01, 0.03 and 0.1 for all images, without calibration, on the
# images held out: accuracy 0.413, 0.587 and 0.693 with seed 0.
_ON_CPU = {
    "backbone": dict(name="ResNet8"),
    "data.splits": dict(train="train[:12%]", test="test"),
    "schedule.learning_rate": 0.1,
    "training.num_epochs": 30.0,
    "training.checkpoint_epochs": 1e6,  # of short epochs; the end is saved anyway
    "prioritization.warmup_epochs": 3,
}
_ON_FEATURES = {
    **features.OVERRIDES,
    "data.splits": dict(train="train[:12%]", test="test"),
    "training.num_epochs": 30.0,
    "training.checkpoint_epochs": 1e6,
    "prioritization.warmup_epochs": 3,
}
_CPU_EXAMPLES = 5400  # of train[:12%], without those held out
_CPU_BATCH = 64
_WORSE_LABELS = {"data.label": "worse_label"}  # of CIFAR-10N


def _method(name: str, settings: dict[str, float]) -> Overrides:
    """A method of the paper with the hyper-parameter of a cell (reading S3)."""
    if name == "label_smoothing":
        smoothing = dict(name="uniform", rate=settings["alpha"], over="all")
        return {"smoothing": smoothing}
    if name == "mixup":
        return {"mixing": dict(name="mixup", alpha=settings["alpha"], draws="batch")}  # reading S10
    if name == "focal":
        return {"loss": dict(name="focal", gamma=float(settings["gamma"]))}
    return {}


def _cells(data: str, number: int) -> list[tuple[str, int, dict[str, float]]]:
    """Method, percentage and hyper-parameter of each row of the paper's table."""
    rows = PAPER["tables"][f"table_{number}"]["rows"]
    return [
        (row["id"], row["subset_percent"], row.get("hyper", {}))
        for row in rows
        if row["dataset"] == DATA_SETS[data]
    ]


def _fraction(percent: int) -> Overrides:
    return {"selection": dict(name="largest", fraction=percent / 100)}


def _scales(data: str, cpu: Overrides | None = None, **settings: Any) -> dict[str, Scale]:
    """CIFAR-100 has no scale "cpu", as the data pack lacks it."""
    scales = {
        "gpu": Scale(_SEEDS, _ON_GPU, **settings),
        "paper": Scale(_SEEDS, **settings),
    }
    if data == "cifar10":
        scales["cpu"] = Scale(_SEEDS, _ON_CPU | (cpu or {}), **settings)
    return scales


def _paper_table(data: str, number: int) -> Table:
    """Table 1 or 2 of one data set: four methods by four percentages."""
    guided = {
        "prioritization.scores": "target",
        "prioritization.target": f"{{runs}}/targets_{data}/{{scale}}/target/untuned/seed_{{seed}}",
    }
    rows = tuple(
        Row(
            f"{method}_{percent}",
            f"{data}_resnet34_hom",
            _method(method, settings) | _fraction(percent) | (guided if number == 2 else {}),
            method,
            {"subset_percent": percent},
        )
        for method, percent, settings in _cells(data, number)
        if number == 1 or percent < 100  # nothing is chosen of all examples
    )
    guide = "a larger network with mixup" if number == 2 else "the network itself"
    return Table(
        claim=f"Calibration improves the choice of examples by {guide}: {DATA_SETS[data]}.",
        rows=rows,
        metrics=_OF_PAPER,
        regimes=_REGIMES,
        select_metric="nll",
        scales=_scales(data),
        reference=rows[0].name,
        paper=dict(
            table=f"table_{number}",
            where={"dataset": DATA_SETS[data]},
            columns={"accuracy": "accuracy", "ece": "ece"},
            note="ResNet-34, 200 epochs; the number of runs is not stated",
        ),
    )


def _targets(data: str) -> Table:
    """The runs that guide those of table 2: their scores of every epoch are saved."""
    mixup = _method("mixup", {"alpha": _TARGET_ALPHA[data]})
    row = Row(
        "target",
        f"{data}_resnet34_hom",
        mixup | _fraction(100) | {"prioritization.record": True},
    )
    scales = _scales(data)
    target = {"paper": "ResNet50", "gpu": "ResNet50", "cpu": "ResNet20"}
    scales = {
        name: scale._replace(
            overrides=scale.overrides | ({"backbone": dict(name=target[name], stem="cifar")})
        )
        for name, scale in scales.items()
    }
    return Table(
        claim=f"Targets of table 2: {DATA_SETS[data]}.",
        rows=(row,),
        metrics=_METRICS,
        regimes=_REGIMES,
        select_metric="nll",
        scales=scales,
    )


def num_steps(num_examples: int, batch: int, epochs: int, warmup: int, percent: int) -> int:
    """Steps of a run that chooses a percentage of the examples after the warm-up."""
    full, short = (-(-n // batch) for n in (num_examples, round(num_examples * percent / 100)))
    return warmup * full + (epochs - warmup) * short


def _equal_steps(percent: int, warmup: int, epochs: int, num_examples: int) -> Overrides:
    """All examples for as many steps as a percentage has, with the whole schedule."""
    steps = num_steps(num_examples, _CPU_BATCH, epochs, warmup, percent)
    return {
        "selection": dict(name="everything"),
        "training.num_epochs": steps / -(-num_examples // _CPU_BATCH),
    }


def _excess(table: str, percent: int) -> Overrides:
    """A choice by the excess loss over a target, which has other images than the runs."""
    return {
        "selection": dict(name="excess", fraction=percent / 100),
        "score": dict(name="loss"),
        "prioritization.target": f"{{runs}}/{table}_target/{{scale}}/target/untuned/seed_{{seed}}",
    }


def _controls() -> Table:
    """What the paper lacks: the same number of steps without entropy, and fresh scores."""
    rows = [Row("all", "cifar10_resnet34_hom", _fraction(100))]
    for percent in (30, 10):
        largest = _fraction(percent)
        random = {"selection": dict(name="random", fraction=percent / 100)}
        fresh = largest | {"prioritization.scores": "evaluation"}
        rows += [
            Row(f"entropy_{percent}", "cifar10_resnet34_hom", largest),
            Row(f"random_{percent}", "cifar10_resnet34_hom", random),
            Row(
                f"fewer_epochs_{percent}",
                "cifar10_resnet34_hom",
                _equal_steps(percent, 3, 30, _CPU_EXAMPLES),
            ),
            Row(f"fresh_{percent}", "cifar10_resnet34_hom", fresh),
        ]
    rows += [
        *(
            Row(
                f"gradient_norm_{percent}",
                "cifar10_resnet34_hom",
                _fraction(percent) | {"score": dict(name="gradient_norm")},
            )
            for percent in (30, 10)
        ),
        *(
            Row(f"excess_{percent}", "cifar10_resnet34_hom", _excess("controls", percent))
            for percent in (30, 10)
        ),
        Row(
            "pruned",
            "cifar10_resnet34_hom",
            {
                "selection": dict(name="pruned", rate=0.5),
                "score": dict(name="loss"),
                "prioritization.warmup_epochs": 1,
            },
        ),
    ]
    return Table(
        claim="Choosing by entropy beats a random choice, and all data for as many steps.",
        rows=tuple(rows),
        metrics=_METRICS,
        regimes=_REGIMES,
        select_metric="nll",
        scales={"cpu": Scale(_MORE_SEEDS, _ON_CPU)},
        reference="entropy_30",
        primary=tuple(
            Primary(f"entropy_{percent}", "accuracy", f"{control}_{percent}", "test")
            for percent in (30, 10)
            for control in ("random", "fewer_epochs")
        ),
        changed=f"{_CHANGED[:-1]}, and the rows `gradient_norm_10`, `excess_30` and `excess_10`.",
    )


def _noisy() -> Table:
    """40 % of the labels are wrong: does a choice without the label noise avoid them?"""
    small = {"selection": dict(name="smallest", fraction=0.3), "score": dict(name="loss")}
    samples = dict(num_samples=64, points="sobol")
    choices = {
        "all": _fraction(100),
        "entropy": _fraction(30),
        "loss": _fraction(30) | {"score": dict(name="loss")},
        "small_loss": small,
        "excess": _excess("noisy", 30),
    }
    of_head = {
        "het_all": _fraction(100),
        "het_entropy": _fraction(30),
        "het_expected_entropy": _fraction(30) | {"score": dict(name="expected_entropy", **samples)},
        "het_latent_information": _fraction(30)
        | {"score": dict(name="latent_information", **samples)},
    }
    rows = [Row(name, "cifar10_resnet34_hom", x) for name, x in choices.items()]
    rows += [Row(name, "cifar10_resnet34_het_full", x) for name, x in of_head.items()]
    # On features without `excess`, whose target is a run on images.
    on_features = tuple(row.name for row in rows if row.name != "excess")
    return Table(
        claim="Of wrong labels, a choice by entropy without the label noise has fewer.",
        rows=tuple(rows),
        metrics=_METRICS,
        regimes=_REGIMES,
        select_metric="nll",
        scales={
            "cpu": Scale(_SEEDS, _ON_CPU | {"data.name": "cifar10_n"} | _WORSE_LABELS),
            "features": Scale(features.SEEDS, _ON_FEATURES | _WORSE_LABELS, rows=on_features),
        },
        reference="entropy",
        changed=_CHANGED,
    )


def _other_images(claim: str, seeds: tuple[int, ...], data: Overrides) -> Table:
    """The target of `excess`: the same network on as many other images."""
    images = {"data.splits": dict(train="train[12%:24%]", test="test")}
    return Table(
        claim=claim,
        rows=(Row("target", "cifar10_resnet34_hom", data | _fraction(100)),),
        metrics=_METRICS,
        regimes=_REGIMES,
        select_metric="nll",
        scales={"cpu": Scale(seeds, _ON_CPU | images)},
    )


TABLES = {
    **{f"table_1_{data}": _paper_table(data, 1) for data in DATA_SETS},
    **{f"targets_{data}": _targets(data) for data in DATA_SETS},
    **{f"table_2_{data}": _paper_table(data, 2) for data in DATA_SETS},
    "controls_target": _other_images("The target of `excess`.", _MORE_SEEDS, {}),
    "controls": _controls(),
    "noisy_target": _other_images(
        "The target of `excess` on noisy labels.",
        _SEEDS,
        {"data.name": "cifar10_n"} | _WORSE_LABELS,
    ),
    "noisy": _noisy(),
}

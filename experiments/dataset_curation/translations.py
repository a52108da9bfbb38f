"""Tables of translation: figure 6, smoothing and misaligned pairs, noise heads, and another domain.

Scale "paper" has the settings of the paper on IWSLT'14, and "cpu" a small transformer on Multi30k.
Tables of Multi30k that train the same rows share the runs of `figure_6_multi30k`, each of which is
also evaluated on the test sentences of IWSLT'14, as another domain. Scale "features" has heads on
the states of the decoder; decoder_states.py writes them.
"""

import math
from typing import Any

from experiments import features
from experiments.study import Primary, Regime, Row, Scale, Table, Trend

Overrides = dict[str, Any]
FRACTIONS = (0.4, 0.1, 0.8, 0.6, 0.2)  # readings D17 and D8; the first two are trained first
_NUM_WORDS, _NUM_STEPS = 2504, 3_630  # of Multi30k: 15 epochs of 242 steps
_SEEDS = (0, 1, 2)
_OWN = ("accuracy", "confidence", "nll", "ece")
_METRICS = (*_OWN, "scaled_nll", "scaled_ece", "bleu", "beam_accuracy", "beam_ece")


def _evaluation(split: str, **settings: Any) -> Overrides:
    defaults = dict(
        split=split,
        checkpoint="last",
        answers=None,
        during=False,
        num_largest=8,
        beam_size=None,
        length_penalty=1.0,
        max_tokens=200,
    )
    return defaults | settings


# Temperatures require all logits: 160 MB for the tokens of each of valid and test.
_MULTI30K: Overrides = {
    "data.splits": dict(
        train="train", valid="val", test="test2016", iwslt=dict(name="iwslt14", split="test")
    ),
    "evals": dict(
        valid=_evaluation("valid", num_largest=_NUM_WORDS),
        test=_evaluation("test", during=True, num_largest=_NUM_WORDS, beam_size=5),
        iwslt=_evaluation("iwslt"),
    ),
}
_ON_MULTI30K = {
    "test": Regime(select=None, report="test", fit="valid"),
    "IWSLT'14": Regime(select=None, report="iwslt", metrics=_OWN),
}
# All logits of all test tokens would be 4 GB.
_IWSLT14: Overrides = {
    "data.splits": dict(train="train", valid="valid", test="test", part="test[:10%]"),
    "evals": dict(
        test=_evaluation("test", during=True, beam_size=5),
        part=_evaluation("part", num_largest=6632),
    ),
}
_ON_IWSLT14 = {
    "test": Regime(select=None, report="test", metrics=(*_OWN, "bleu")),
    "part of test": Regime(
        select=None, report="part", fit="halves", metrics=("ece", "scaled_ece", "scaled_nll")
    ),
}


def _figure_6(
    claim: str,
    config: str,
    sizes: dict[float, Overrides],
    scales: dict[str, Scale],
    regimes: dict[str, Regime],
    prefix: str = "size",
    primary: tuple[Primary, ...] = (),
    not_in_trend: tuple[float, ...] = (),
) -> Table:
    rows = (
        Row("original", config),
        *(
            Row(f"{prefix}_{f}", config, {"curation": f"subset(fraction={f})"} | overrides)
            for f, overrides in sizes.items()
        ),
    )
    trend = Trend(
        "plain head, over log10 of the fraction of sentence pairs",
        (
            ("original", 0.0),
            *((f"{prefix}_{f}", math.log10(f)) for f in sizes if f not in not_in_trend),
        ),
    )
    return Table(
        claim=claim,
        rows=rows,
        metrics=_METRICS,
        regimes=regimes,
        select_metric="nll",
        scales=scales,
        reference="original",
        primary=primary,
        trends=(trend,),
    )


_EQUAL_UPDATES = "Calibration error of the next word grows as the training set shrinks, at equal"
# As many checkpoints as the whole set has.
_CHECKPOINTS = {f: {"training.checkpoint_epochs": 1 / f} for f in FRACTIONS}
_UPDATES = {"training.num_epochs": None, "training.num_steps": _NUM_STEPS}
_PRIMARY = (Primary("size_0.1", "ece", "original", "test"),)


def _multi30k(runs: str | None = None) -> dict[str, Scale]:
    return {"cpu": Scale(_SEEDS, _MULTI30K, runs=runs)}


def _iwslt14(runs: str | None = None) -> dict[str, Scale]:
    return {"paper": Scale((0, 1, 2, 3, 4), _IWSLT14, runs=runs)}  # reading D16


_FIGURE_6 = {
    "figure_6_multi30k": _figure_6(
        f"{_EQUAL_UPDATES} numbers of updates: Multi30k.",
        "multi30k_hom",
        {f: _UPDATES | x for f, x in _CHECKPOINTS.items()},
        _multi30k(),
        _ON_MULTI30K,
        primary=_PRIMARY,
    ),
    "figure_6_equal_epochs_multi30k": _figure_6(
        f"{_EQUAL_UPDATES} numbers of epochs: Multi30k.",
        "multi30k_hom",
        {f: {} for f in FRACTIONS},
        _multi30k("figure_6_multi30k"),
        _ON_MULTI30K,
        prefix="epochs",
        not_in_trend=(0.1,),  # whose updates are all in the warm-up
    ),
    "figure_6_iwslt14": _figure_6(
        f"{_EQUAL_UPDATES} numbers of updates: IWSLT'14.",
        "iwslt14_hom",
        _CHECKPOINTS,
        _iwslt14(),
        _ON_IWSLT14,
        primary=_PRIMARY,
    ),
    "figure_6_equal_epochs_iwslt14": _figure_6(
        f"{_EQUAL_UPDATES} numbers of epochs: IWSLT'14.",
        "iwslt14_hom",
        {f: {"training.num_steps": round(50_000 * f)} for f in FRACTIONS},
        _iwslt14("figure_6_iwslt14"),
        _ON_IWSLT14,
        prefix="epochs",
    ),
}

# Name of the plain row -> what is smoothed and misaligned, and words for it.
_HARD = {"smoothing": dict(name="hard")}
_MISALIGNED = {"curation": "permute_labels(rate=0.2)"}
CONDITIONS: dict[str, tuple[Overrides, str]] = {
    "original": ({}, "label smoothing of 0.1"),
    "hard": (_HARD, "no label smoothing"),
    "misaligned": (_MISALIGNED, "label smoothing of 0.1 and 20 % of the pairs misaligned"),
    "hard_misaligned": (
        _HARD | _MISALIGNED,
        "no label smoothing and 20 % of the pairs misaligned",
    ),
}

_SMOOTHING = Table(
    claim="Label smoothing lowers the calibration error, with aligned pairs as with pairs of which"
    " 20 % are misaligned: Multi30k.",
    rows=tuple(Row(name, "multi30k_hom", x) for name, (x, _) in CONDITIONS.items()),
    metrics=_METRICS,
    regimes=_ON_MULTI30K,
    select_metric="nll",
    scales=_multi30k("figure_6_multi30k"),
    reference="original",
    primary=(
        Primary("original", "ece", "hard", "test"),
        Primary("misaligned", "ece", "hard_misaligned", "test"),
    ),
)


def _noise(condition: str) -> Table:
    """A noise head end to end beside the plain one, at temperature 1."""
    overrides, words = CONDITIONS[condition]
    return Table(
        claim=f"Correlated noise between words helps, with {words}: Multi30k.",
        rows=(
            Row(condition, "multi30k_hom", overrides),
            Row(f"het_pe_{condition}", "multi30k_het_pe", overrides),
        ),
        metrics=_METRICS,
        regimes=_ON_MULTI30K,
        select_metric="nll",
        scales=_multi30k("figure_6_multi30k"),
        reference=condition,
        primary=(Primary(f"het_pe_{condition}", "nll", condition, "test"),),
    )


_SHORTLIST = dict(name="shortlist", num_classes=32, num_samples=8, points="sobol", chunk_size=None)
_ON_STATES: Overrides = {
    "data.label": "label",
    "data.splits": dict(train="train", valid="valid", test="test"),
    "data.extras": ("groups",),  # the sentences of the tokens
    "data.validation_fraction": 0.0,
    "head.num_classes": _NUM_WORDS,
    "schedule.learning_rate": 0.01,
    "training.batch_size": 2048,
    "training.num_epochs": 1.0,  # of 466,000 tokens, which the plain run has seen 15 times
    "training.checkpoint_epochs": 1e6,  # the end is saved anyway
    "evals": {
        name: dict(split=name, checkpoint="last", answers=None, num_largest=_NUM_WORDS)
        for name in ("valid", "test")
    },
}


def _frozen(condition: str) -> Table:
    """Heads alone, tuned over the same temperatures, on the decoder states of the plain runs.

    A seed is that of the plain run, too, as heads on the states of one run are no replicates.
    """
    overrides, words = CONDITIONS[condition]
    smoothed = {"smoothing": dict(name="uniform", rate=0.1, over="all")} | overrides
    smoothed.pop("curation", None)  # the states are of the curated pairs
    settings = _ON_STATES | {"data.name": f"{features.STATES}{condition}_{{seed}}"} | smoothed
    noisy = {"predictive": _SHORTLIST}
    return Table(
        claim=f"On decoder states noise heads help, with {words}: Multi30k.",
        rows=(
            Row("hom", "cifar10_n_features_hom"),
            Row("het_diag", "cifar10_n_features_het_diag", noisy),
            Row("het_pe", "cifar10_n_features_het_pe", noisy | {"head.num_factors": 16}),
        ),
        metrics=(*_OWN, "scaled_nll", "scaled_ece"),
        regimes={"test": Regime(select="valid", report="test")},
        select_metric="nll",
        scales={"features": Scale(_SEEDS, settings)},
        grid={"head.temperature": (0.5, 1.0, 2.0)},
        reference="hom",
        primary=tuple(Primary(row, "nll", "hom", "test") for row in ("het_diag", "het_pe")),
    )


# Nothing is held out of so few pairs. As many updates as on Multi30k.
_ON_VALID: Overrides = {
    "data.name": "iwslt14",
    "data.splits": dict(train="valid", test="test", part="test[:15%]"),
    "backbone.num_source_words": 3320,
    "head.num_classes": 2736,
    "training.num_epochs": None,
    "training.num_steps": _NUM_STEPS,
    "training.checkpoint_epochs": 2.0,
    "validation": None,
    "evals": dict(
        test=_evaluation("test"),
        part=_evaluation("part", during=True, num_largest=2736, beam_size=5),
    ),
}
_SMALL_IWSLT14 = Table(
    claim="Correlated noise between words helps with few sentence pairs: the 7,283 validation pairs"
    " of IWSLT'14, evaluated on its test pairs.",
    rows=(Row("hom", "multi30k_hom"), Row("het_pe", "multi30k_het_pe")),
    metrics=_METRICS,
    regimes={
        "test": Regime(select=None, report="test", metrics=_OWN),
        "part of test": Regime(select=None, report="part", fit="halves"),
    },
    select_metric="nll",
    scales={"cpu": Scale(_SEEDS, _ON_VALID)},
    reference="hom",
    primary=(Primary("het_pe", "nll", "hom", "test"),),
)

TABLES = (
    _FIGURE_6
    | {"smoothing_multi30k": _SMOOTHING}
    | {f"noise_{condition}_multi30k": _noise(condition) for condition in CONDITIONS}
    | {f"states_{condition}_multi30k": _frozen(condition) for condition in CONDITIONS}
    | {"small_iwslt14": _SMALL_IWSLT14}
)

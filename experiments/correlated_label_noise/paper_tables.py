"""The tables of the paper at its own scale.

Table 1 is split into two tables, for 90 and for 270 epochs, and Table 3 into one table per data
set. Tables 8 to 11 share models with Table 1, which are trained once. Table 6 is in transfer.py,
and the ensembles of Table 7 are in ensembles.py.
"""

from typing import Any

from experiments.study import Regime, Row, Scale, Table

# As in the paper: nothing is tuned, as it reports its temperatures, and the last epoch is reported.
_LAST = {"last epoch": Regime(select=None, report="test", fit="valid")}
_BEFORE_AND_AFTER = ("nll", "scaled_nll", "ece", "scaled_ece")  # temperature scaling
_FIVE_SEEDS = (0, 1, 2, 3, 4)
_90_EPOCHS = {"paper": Scale(_FIVE_SEEDS, {"training.num_epochs": 90.0})}
_270_EPOCHS = {"paper": Scale(_FIVE_SEEDS, {"training.num_epochs": 270.0})}


def _rows(data: str, *names: str, **papers: str) -> tuple[Row, ...]:
    """Rows of configs/DATA_NAME.py.

    Args:
      data: prefix of the configs.
      *names: rest of the config names; also the names of the rows.
      **papers: row name -> id of the paper's row; defaults to the row name, "homoscedastic" for
        "hom".
    """
    defaults = {"hom": "homoscedastic"}
    return tuple(
        Row(name, f"{data}_{name}", paper=papers.get(name, defaults.get(name, name)))
        for name in names
    )


def _paper(
    number: int, columns: dict[str, str], note: str = "the same settings", **where: Any
) -> dict[str, Any]:
    return dict(table=f"table_{number}", where=where, columns=columns, note=note)


def _at_270_epochs(
    number: int,
    claim: str,
    rows: tuple[Row, ...],
    reference: str,
    metrics: tuple[str, ...] = _BEFORE_AND_AFTER,
) -> Table:
    """A table of ImageNet models trained for 270 epochs, which share the runs of table_1_270."""
    return Table(
        claim=claim,
        rows=rows,
        metrics=("accuracy", *metrics),
        regimes=_LAST,
        select_metric="nll",
        scales={"paper": _270_EPOCHS["paper"]._replace(runs="table_1_270")},
        reference=reference,
        paper=_paper(number, {"accuracy": "top1"}),
        test="unpaired t-test",
    )


def _table_1(epochs: int, scales: dict[str, Scale]) -> Table:
    return Table(
        claim="Modelling correlated label noise raises accuracy and lowers NLL on ImageNet.",
        rows=_rows("imagenet", "hom", "het_diag", "het_full"),
        metrics=("accuracy", "top5_accuracy", *_BEFORE_AND_AFTER),
        regimes=_LAST,
        select_metric="nll",
        scales=scales,
        reference="hom",
        paper=_paper(1, {"accuracy": "top1", "top5_accuracy": "top5", "nll": "nll"}, epochs=epochs),
        test="unpaired t-test",
    )


def _table_3(data: str) -> Table:
    """Table 3 for one of its two data sets."""
    return Table(
        claim="Input-dependent noise raises global average precision, correlated noise more.",
        rows=(
            *_rows(data, "hom"),
            Row(
                "het_diag_tau_1",
                f"{data}_het_diag",
                {"head.temperature": 1.0},
                paper="het_diag_tau_1",
            ),
            *_rows(data, "het_diag", "het_pe"),
        ),
        metrics=("gap", "gap_error", "nll"),  # gap_error bounds the approximation error of gap
        regimes={"last epoch": Regime(select=None, report="test", prefix=f"{data}_")},
        select_metric="nll",
        scales={"paper": Scale(_FIVE_SEEDS)},
        reference="hom",
        paper=_paper(3, {"gap": "gap", "nll": "nll"}),
        test="unpaired t-test",
    )


TABLES = {
    "table_1_90": _table_1(90, _90_EPOCHS),
    "table_1_270": _table_1(270, _270_EPOCHS),
    "table_2": Table(
        claim=(
            "A model of correlated noise helps with labels from the web, on images of the web and"
            " of ImageNet."
        ),
        rows=_rows("webvision", "hom", "het_diag", "het_full"),
        metrics=("accuracy", "top5_accuracy", "nll"),
        regimes={
            "WebVision": Regime(select=None, report="test", prefix="webvision_"),
            "ILSVRC12": Regime(select=None, report="ilsvrc12", prefix="ilsvrc12_"),
        },
        select_metric="nll",
        scales={"paper": Scale(_FIVE_SEEDS)},
        reference="hom",
        paper=_paper(
            2,
            {"accuracy": "top1", "top5_accuracy": "top5", "nll": "nll"},
            "updates of 64 images as in the paper, but sequential; rows without runs are quoted in"
            " the paper from other papers",
        ),
        test="unpaired t-test",
    ),
    "table_3_imagenet21k": _table_3("imagenet21k"),
    "table_3_jft": _table_3("jft"),
    "table_7": Table(
        claim=(
            "Heteroscedastic models gain as much from ensembles as homoscedastic ones; this table"
            " has the members."
        ),
        rows=(
            Row("hom", "imagenet_resnet50_hom", paper="hom_single"),
            # Twice as long, as in the public code (reading C8).
            Row(
                "het_full",
                "imagenet_resnet50_het_full",
                {"training.num_epochs": 180.0},
                paper="het_single",
            ),
        ),
        metrics=("accuracy", "nll", "ece"),  # no temperature scaling: nothing is held out
        regimes={"last epoch": Regime(select=None, report="test")},
        select_metric="nll",
        scales={"paper": Scale((0, 1, 2, 3))},
        reference="hom",
        paper=_paper(
            7,
            {"accuracy": "top1", "nll": "nll", "ece": "ece"},
            "the same settings; python -m experiments.correlated_label_noise.ensembles prints our"
            " ensembles",
        )
        | {"rows_without_runs": ("hom_ensemble", "het_ensemble")},
        test="unpaired t-test",
    ),
    "table_8": _at_270_epochs(
        8,
        "The second-order expansion keeps most of the gain of a diagonal head.",
        _rows("imagenet", "hom", "het_diag", "het_diag_taylor"),
        "hom",
    ),
    "table_9": _at_270_epochs(
        9,
        "More than a hundred samples, in training and in evaluation, bring little.",
        (
            *(
                Row(
                    f"het_full_{n}",
                    "imagenet_het_full",
                    {"predictive.num_samples": n},
                    "het_full",
                    {"mc_samples": n},
                )
                for n in (1, 10, 100, 1000)
            ),
            Row("het_full", "imagenet_het_full", paper="het_full", where={"mc_samples": 10_000}),
        ),
        "het_full",
    ),
    "table_10": _at_270_epochs(
        10,
        "The gain is not due to the number of parameters.",
        _rows(
            "imagenet",
            "hom",
            "hom_equal_params",
            "het_full",
            hom_equal_params="homoscedastic_equal_params",
        ),
        "hom",
    ),
    "table_11": _at_270_epochs(
        11,
        "A model of correlated noise helps under a sigmoid as under a softmax. Only top-1 accuracy"
        " is reported: NLL is over one label under a softmax and over 1,000 labels under a sigmoid,"
        " with and without temperature scaling.",
        _rows(
            "imagenet",
            "hom",
            "hom_sigmoid",
            "het_full",
            "het_full_sigmoid",
            hom="homoscedastic_softmax",
            hom_sigmoid="homoscedastic_sigmoid",
            het_full="het_full_softmax",
        ),
        "hom",
        metrics=(),
    ),
}

"""Tables of Collier et al. (2021), Correlated Input-Dependent Label Noise, arXiv:2105.10305."""

from experiments.study import Regime, Row, Scale, Table

_METHODS = (
    Row("hom", "digits_hom", paper="homoscedastic"),
    Row("het_diag", "digits_het_diag", paper="het_diag"),
    Row("het_full", "digits_het_full", paper="het_full"),
    Row("het_pe", "digits_het_pe"),
)

TABLES = {
    "planted_noise": Table(
        claim="Modelling correlated label noise helps on clean test images, and the learned"
        " covariance shows which classes were confused.",
        rows=_METHODS,
        metrics=("accuracy", "nll", "ece"),
        regimes={
            "early stopping": Regime(select="valid_best", report="test_best"),
            "last epoch": Regime(select="valid", report="test"),
            # How well the noisy labels themselves are predicted; chosen on the same, so equally flattered.
            "early stopping, noisy validation": Regime(select="valid_best", report="valid_best"),
            "last epoch, noisy validation": Regime(select="valid", report="valid"),
        },
        select_metric="nll",
        grid={"head.temperature": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)},
        # Long enough to memorise the wrong labels, which is the second regime.
        scales={"cpu": Scale(tuple(range(10)), {"training.num_epochs": 200.0, "training.checkpoint_epochs": 5.0})},
        reference="hom",
        paper=dict(
            table="table_1",
            where={"epochs": 90},
            columns={"accuracy": "top1", "nll": "nll"},
            note="ILSVRC12, ResNet-152, 90 epochs: another data set, for the order of the methods alone",
        ),
        test="unpaired t-test",
    ),
}

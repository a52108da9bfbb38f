import shutil

import pytest

from experiments import run, save_results, study
from experiments.correlated_label_noise import ensembles, rows
from heteroscedastic.analysis.uncertainty import ensemble

TABLE = rows.TABLES["ensembles"]
T = "head.temperature"
SHORT = {"training.num_epochs": 1.0, "training.checkpoint_epochs": 1.0}
FEW = TABLE._replace(scales={"cpu": study.Scale((0, 1), TABLE.scales["cpu"].overrides | SHORT)})


@pytest.mark.extended
def test_single_models_and_ensembles_are_printed_with_the_papers_numbers_and_scaled_metrics(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(rows.TABLES, "few", FEW)
    jobs = [
        j
        for j in study.jobs(FEW, "cpu", tmp_path / "correlated_label_noise" / "few")
        if dict(j.point)[T] == 2.0
    ]
    monkeypatch.setattr(study, "saved_path", lambda *_: tmp_path / "saved/few.cpu.json")
    assert [run.run(job, None) for job in jobs] == [None] * 4

    def call(module, *flags):
        monkeypatch.setattr("sys.argv", ["", "--table=few", f"--out={tmp_path}", *flags])
        module.main()
        return capsys.readouterr().out

    flags = "--size=2", "--at=2.0"
    printed = call(ensembles, *flags, "--save")
    call(save_results, "--study=correlated_label_noise")
    first = printed[printed.index("**last epoch**") :]
    lines = [line for line in first.splitlines() if line.startswith("|")]
    heads, _, *cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert [row[0] for row in cells] == [
        f"{method}, {kind}"
        for method in ("hom", "het_full")
        for kind in ("single model", "ensemble of 2")
    ]
    members = ensemble.members([job.directory for job in jobs if job.row == "hom"])
    line = dict(zip(heads, cells[1]))
    for name, value in ensemble.metrics(members.predictions, members.fit_predictions).items():
        assert line[name] == f"{value:.4f}"
    assert {"scaled_nll", "scaled_ece"} <= set(line)
    assert "Temperatures are fitted on valid." in first
    assert line["chosen"] == "2.0 (2x)"
    assert float(line["paper nll"]) == 0.877
    for job in jobs:
        shutil.rmtree(job.directory)
    assert call(ensembles, *flags) == printed[: printed.index("\n" + str(tmp_path / "saved"))]
    with pytest.raises(SystemExit, match=r"hom has 2 seeds .* an ensemble needs predictions"):
        call(ensembles, "--size=1", "--at=2.0")

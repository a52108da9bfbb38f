"""What a page of results says about its runs is what the runs of the table are."""

from pathlib import Path

from experiments import study
from heteroscedastic import files

PAGES = Path(__file__).parents[2] / "docs/results"


def test_planted_noise_has_the_epochs_seeds_and_temperatures_of_its_page():
    page = " ".join((PAGES / "planted_noise.md").read_text().split())
    table = study.table("correlated_label_noise", "planted_noise")
    jobs = study.jobs(table, "cpu", files.as_path("runs"))
    assert {job.config["training"]["num_epochs"] for job in jobs} == {200.0}
    assert "trains for 200 epochs" in page
    temperatures = {}
    for job in jobs:
        row = temperatures.setdefault((job.row, job.seed), set())
        row.add(job.config["head"]["temperature"])
    assert set(map(frozenset, temperatures.values())) == {
        frozenset((0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0))
    }
    assert "the same seven temperatures from 0.5 to 32" in page
    assert {seed for _, seed in temperatures} == set(range(10))
    assert "separately for each of ten seeds" in page
    assert f"**Runs.** {len(jobs)} runs" in page
    assert table.select_metric == "nll"
    assert {(r.select, r.report) for r in table.regimes.values()} == {
        ("valid_best", "test_best"),
        ("valid", "test"),
        ("valid_best", "valid_best"),
        ("valid", "valid"),
    }

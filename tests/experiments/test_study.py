import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from subprocesses import ROOT

from experiments import run, statistics, study, table
from experiments.study import Primary, Regime, Row, Scale, Table, Trend
from heteroscedastic import files
from heteroscedastic.analysis.uncertainty import calibration
from heteroscedastic.calibration.bootstrap import Interval
from heteroscedastic.runs import sections

TINY = Table(
    claim="Two methods.",
    rows=(
        Row("hom", "digits_hom", paper="homoscedastic"),
        Row("het_diag", "digits_het_diag", paper="het_diag"),
    ),
    metrics=("accuracy", "nll"),
    regimes={"last": Regime(select="valid", report="test")},
    select_metric="nll",
    grid={"head.temperature": (1.0, 4.0)},
    scales={"cpu": Scale((0, 1, 2), {"training.num_epochs": 1.0})},
    reference="hom",
    paper=dict(
        table="table_1", where={"epochs": 90}, columns={"accuracy": "top1"}, note="another data set"
    ),
    test="unpaired t-test",
)
PAPER = {
    "tables": {
        "table_1": {
            "title": "Title",
            "columns": [{"key": "top1", "unit": "%"}],
            "rows": [
                {"id": "homoscedastic", "epochs": 90, "top1": 76.5, "std": {"top1": 0.2}},
                {"id": "homoscedastic", "epochs": 270, "top1": 99.9},
            ],
        }
    }
}


def complete_results(values):
    """Complete runs: values[row][temperature][seed] = (validation nll, test accuracy)."""
    job_results = []
    for job in study.jobs(TINY, "cpu", study.Path("out")):
        nll, accuracy = values[job.row][job.point[0][1]][job.seed]
        # The best on test is another one, which must not be selected.
        test = {"accuracy": accuracy, "nll": -nll}
        results = {"evals": {"valid": {"nll": nll}, "test": test}}
        job_results.append(study.JobResult(job, results | {"seconds": 1.0, "device": "1 x cpu"}))
    return job_results


VALUES = {
    "hom": {
        1.0: [(0.5, 0.70), (0.6, 0.72), (float("nan"), 0.99)],
        4.0: [(0.6, 0.1), (0.4, 0.8), (0.7, 0.75)],
    },
    "het_diag": {
        1.0: [(0.4, 0.75), (0.4, 0.84), (0.4, 0.78)],
        4.0: [(0.6, 0.0), (0.6, 0.0), (0.6, 0.0)],
    },
}


def test_each_seed_has_the_setting_that_its_own_validation_metric_selects():
    tuned = study.tuned_results(complete_results(VALUES), TINY.regimes["last"], "nll")
    chosen = [tuned["hom", seed].job.point[0][1] for seed in range(3)]
    assert chosen == [1.0, 4.0, 4.0]  # a nan never wins


def test_a_seed_with_an_incomplete_grid_is_left_out():
    results = complete_results(VALUES)
    results[0] = results[0]._replace(results=None)
    tuned = study.tuned_results(results, TINY.regimes["last"], "nll")
    assert ("hom", results[0].job.seed) not in tuned


def test_later_seeds_tune_over_the_later_grid():
    narrow = Scale((5, 6, 7), {"training.num_epochs": 1.0}, later_grid={"head.temperature": (4.0,)})
    jobs = study.jobs(TINY._replace(scales={"cpu": narrow}), "cpu", study.Path("out"))
    points = {(job.seed, job.point[0][1]) for job in jobs if job.row == "hom"}
    assert points == {(5, 1.0), (5, 4.0), (6, 4.0), (7, 4.0)}
    assert len(jobs) == 8


def test_differences_are_paired_by_seed():
    text = table.text(TINY, complete_results(VALUES), PAPER)
    hom, het = [0.70, 0.80, 0.75], [0.75, 0.84, 0.78]
    differences = np.subtract(het, hom)
    interval = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    half = (interval[1] - interval[0]) / 2
    assert f"{differences.mean():+.4f} ± {half:.4f}" in text
    assert f"{stats.ttest_ind(het, hom).pvalue:.2g}" in text
    assert "| 0.765 ± 0.002 |" in text  # a fraction, as ours
    assert "0.999" not in text


def test_only_differences_that_survive_the_correction_are_marked(monkeypatch):
    """Of accuracy and NLL, each paired over three seeds."""
    monkeypatch.setattr(statistics, "LEVEL", 0.03)
    text = table.text(TINY, complete_results(VALUES), PAPER)
    accuracy = stats.ttest_rel([0.75, 0.84, 0.78], [0.70, 0.80, 0.75]).pvalue
    nll = stats.ttest_rel([-0.4, -0.4, -0.4], [-0.5, -0.4, -0.7]).pvalue
    assert accuracy < 0.03 < 2 * accuracy < nll  # significant alone, but not among two
    assert " *" not in text
    assert "correction over the 2 comparisons" in text
    alone = table.text(TINY._replace(metrics=("accuracy",)), complete_results(VALUES), PAPER)
    assert re.search(r"\+0\.0400 ± 0\.0248 \* \|", alone)
    assert f"accuracy {statistics.detectable_difference(0.01, 3):.4f}." in alone


def test_an_interval_over_examples_has_no_mark_of_the_test_over_seeds():
    interval = Interval(0.04, -0.01, 0.09)
    fake = SimpleNamespace(differences=lambda *_: {"accuracy": interval}, rows_left_out=list)
    chosen = TINY._replace(metrics=("accuracy",))
    text = table.text(chosen, complete_results(VALUES), PAPER, fake)
    assert "| +0.0400 [-0.0100, +0.0900] |" in text


def test_primary_comparisons_and_changes_are_printed():
    chosen = TINY._replace(
        primary=(
            Primary("het_diag", "accuracy", "hom", "last"),
            Primary("het_diag", "nll", "hom", "last"),
            Primary("of_another_scale", "nll", "hom", "last"),
        ),
        changed="the grid.",
    )
    text = table.text(chosen, complete_results(VALUES), PAPER)
    p = stats.ttest_rel([0.75, 0.84, 0.78], [0.70, 0.80, 0.75]).pvalue
    assert (
        f"| accuracy of het_diag - hom, last | 3 | +0.0400 ± 0.0248 | {p:.2g} | {2 * p:.2g} |"
        in text
    )
    assert "of_another_scale" not in text
    assert "Changed after test results had been seen: the grid." in text
    text = table.text(TINY, complete_results(VALUES), PAPER)
    assert "Primary" not in text
    assert "No comparison was chosen beforehand; all are exploratory." in text


def test_a_primary_comparison_without_runs_is_said_to_be_missing():
    chosen = TINY._replace(primary=(Primary("het_diag", "nll", "hom", "last"),))
    results = [
        result._replace(results=None) if result.job.row == "het_diag" else result
        for result in complete_results(VALUES)
    ]
    text = table.text(chosen, results, PAPER)
    assert "| nll of het_diag - hom, last | 0 | not run | | | |" in text
    assert re.search(r"Missing: (\d+) of \d+ runs, \1 of het_diag; the first", text)


def test_a_primary_comparison_without_runs_counts_in_the_correction():
    """No p value grows when it is run."""
    chosen = TINY._replace(
        rows=(*TINY.rows, TINY.rows[1]._replace(name="later")),
        primary=tuple(Primary(row, "accuracy", "hom", "last") for row in ("het_diag", "later")),
    )
    results = complete_results(VALUES)
    job = results[-1].job._replace(row="later")
    text = table.text(chosen, [*results, study.JobResult(job, None)], PAPER)
    assert "| accuracy of later - hom, last | 0 | not run |" in text
    p = stats.ttest_rel([0.75, 0.84, 0.78], [0.70, 0.80, 0.75]).pvalue
    assert f" | {p:.2g} | {2 * p:.2g} |" in text


def test_a_primary_comparison_that_diverged_counts_in_the_correction():
    values = VALUES | {
        "hom": {1.0: [(0.5, np.nan), *VALUES["hom"][1.0][1:]], 4.0: VALUES["hom"][4.0]}
    }
    primary = tuple(Primary("het_diag", metric, "hom", "last") for metric in ("accuracy", "nll"))
    text = table.text(TINY._replace(primary=primary), complete_results(values), PAPER)
    assert re.search(r"\| accuracy of het_diag - hom, last \| 3 \| .*\| nan \| 1 \|", text)
    p = stats.ttest_rel([-0.4, -0.4, -0.4], [-0.5, -0.4, -0.7]).pvalue
    assert f"| {p:.2g} | {2 * p:.2g} |" in text


def test_a_primary_comparison_is_of_the_regime_that_it_names():
    results = [
        result._replace(
            results=result.results
            | {"evals": result.results["evals"] | {"shifted": {"accuracy": 0.25, "nll": 2.0}}}
        )
        for result in complete_results(VALUES)
    ]
    chosen = TINY._replace(
        regimes={"shifted": Regime(select="valid", report="shifted"), **TINY.regimes},
        primary=(Primary("het_diag", "accuracy", "hom", "last"),),
    )
    text = table.text(chosen, results, PAPER)
    assert "| accuracy of het_diag - hom, last | 3 | +0.0400 ± 0.0248 |" in text


def test_a_row_that_equals_the_reference_has_no_part_in_what_could_be_found():
    same = TINY.rows[1]._replace(name="same")
    results = complete_results(VALUES)
    results += [
        result._replace(job=result.job._replace(row="same"))
        for result in results
        if result.job.row == "hom"
    ]
    chosen = TINY._replace(rows=(*TINY.rows, same), metrics=("accuracy",))
    text = table.text(chosen, results, PAPER)
    assert "| same | 3 |" in text
    assert f"correction: accuracy {statistics.detectable_difference(0.01, 3):.4f}." in text
    alone = table.text(
        chosen._replace(rows=(TINY.rows[0], same)),
        [result for result in results if result.job.row != "het_diag"],
        PAPER,
    )
    assert "over the 1 comparisons" in alone
    assert "finds with a probability" not in alone


def test_runs_of_several_commits_are_named_by_row():
    def of_commits(commits):
        return [
            result._replace(results=result.results | {"commit": commits[result.job.row] * 40})
            for result in complete_results(VALUES)
        ]

    mixed = table.text(TINY, of_commits({"hom": "a", "het_diag": "b"}), PAPER)
    assert "commit aaaaaaa (hom); bbbbbbb (het_diag)." in mixed
    assert "commit aaaaaaa." in table.text(TINY, of_commits({"hom": "a", "het_diag": "a"}), PAPER)


@pytest.mark.parametrize("reference", ["adaptive_context", "none"])  # the first is of another scale
def test_a_reference_without_runs_at_the_scale_is_refused(monkeypatch, tmp_path, reference):
    monkeypatch.chdir(tmp_path)
    flags = ["--study=adaptive_label_smoothing", "--table=context_only", "--scale=cpu"]
    monkeypatch.setattr("sys.argv", ["table", *flags, f"--reference={reference}"])
    with pytest.raises(SystemExit, match=f"{reference} is not a row at the scale cpu; choose one"):
        table.main()


def test_primary_comparisons_are_of_tuned_settings_alone(monkeypatch, capsys, tmp_path):
    """At a setting of the user's they are as exploratory as the others."""
    monkeypatch.chdir(tmp_path)
    words = ["--study=correlated_label_noise", "--table=frozen_features", "--scale=features"]
    for at, is_primary in (((), True), (("--at=4.0,1.0",), False)):
        monkeypatch.setattr("sys.argv", ["table", *words, *at])
        table.main()
        printed = capsys.readouterr().out
        assert ("Primary comparisons" in printed) == is_primary
        assert ("all are exploratory" in printed) != is_primary


def test_a_trend_is_tested_over_the_slopes_of_the_seeds():
    trend = Trend("both over noise", (("hom", 0.0), ("het_diag", 0.5), ("of_another_scale", 0.9)))
    text = table.text(TINY._replace(trends=(trend,)), complete_results(VALUES), PAPER)
    slopes = np.subtract([0.75, 0.84, 0.78], [0.70, 0.80, 0.75]) / 0.5
    test = stats.ttest_1samp(slopes, 0)
    half = slopes.mean() - test.confidence_interval(0.95).low
    value = f"{slopes.mean():+.4f} ± {half:.4f} (p {test.pvalue:.2g})"
    assert f"| both over noise | 3 | {value}" in text
    assert "slope" not in table.text(TINY, complete_results(VALUES), PAPER)


def test_every_trend_is_of_rows_of_its_table():
    trends = 0
    for path in study.Path(study.__file__).parent.glob("*/rows.py"):
        tables = importlib.import_module(f"experiments.{path.parent.name}.rows").TABLES
        for chosen in tables.values():
            for trend in chosen.trends:
                names = [name for name, _ in trend.rows]
                assert set(names) <= {row.name for row in chosen.rows}
                assert len(set(dict(trend.rows).values())) == len(names)
                trends += 1
    assert trends


def chooses_wrongly(chosen, config):
    """What a config of a table chooses by other data than validation, or at another checkpoint."""
    splits = config["data"].get("splits") or {}
    of_validation = (config.get("validation") or {}).get("split", "valid")
    found = []
    for regime in chosen.regimes.values():
        for chooses in (regime.select, regime.fit):
            if chooses in (None, "halves"):  # one half of test is scaled by the other
                continue
            split = config["evals"].get(chooses, {}).get("split", chooses.split("_")[0])
            stored = str(splits.get(split, split))
            if not (split == of_validation == "valid" or stored.startswith("train")):
                found.append(f"{chooses} is of {split}")
        names = [x for x in (regime.select, regime.report) if x in config["evals"]]
        if len({x.endswith("_best") for x in names}) == 2:
            found.append(f"{names[0]} and {names[1]} are of two checkpoints")
        for name in names:
            if name.endswith("_best") != (config["evals"][name]["checkpoint"] == "best"):
                found.append(f"{name} is of the checkpoint {config['evals'][name]['checkpoint']}")
    return found


def test_no_table_chooses_a_setting_a_checkpoint_or_a_temperature_by_test_data():
    for path in study.Path(study.__file__).parent.glob("*/rows.py"):
        tables = importlib.import_module(f"experiments.{path.parent.name}.rows").TABLES
        for name, chosen in tables.items():
            for row, scale in itertools.product(chosen.rows, chosen.scales.values()):
                config = study.config(row.config, scale.overrides | row.overrides)
                assert not chooses_wrongly(chosen, config), (name, row.name)
    wrong = chosen._replace(regimes={"test": study.Regime(select="test", report="test")})
    assert chooses_wrongly(wrong, config) == ["test is of test"]


def test_every_primary_comparison_is_of_rows_metrics_and_regimes_of_its_table():
    primaries = 0
    for path in study.Path(study.__file__).parent.glob("*/rows.py"):
        tables = importlib.import_module(f"experiments.{path.parent.name}.rows").TABLES
        for chosen in tables.values():
            rows = {row.name for row in chosen.rows}
            for primary in chosen.primary:
                regime = chosen.regimes[primary.regime]
                assert {primary.row, primary.reference} <= rows
                assert primary.metric in (regime.metrics or chosen.metrics)
                primaries += 1
    assert primaries


def test_missing_runs_are_counted():
    results = [result._replace(results=None) for result in complete_results(VALUES)]
    assert "Missing: 12 of 12 runs" in table.text(TINY, results, PAPER)


def test_every_table_of_every_study_names_configs_and_settings_that_exist():
    for path in sorted(study.Path(study.__file__).parent.glob("*/rows.py")):
        tables = study.importlib.import_module(f"experiments.{path.parent.name}.rows").TABLES
        for chosen in tables.values():
            for scale, size in chosen.scales.items():
                few = size._replace(seeds=size.seeds[:2])  # the first one has a grid of its own
                jobs = study.jobs(chosen._replace(scales={scale: few}), scale, study.Path("out"))
                assert len({job.directory for job in jobs}) == len(jobs)
                for regime in chosen.regimes.values():
                    names = {regime.report, regime.select, regime.fit} - {None, calibration.HALVES}
                    assert all(names <= set(job.config["evals"]) for job in jobs)
                    assert regime.fitted_on or not any(
                        metric.startswith("scaled_") for metric in regime.metrics or chosen.metrics
                    )
            numbers = json.loads((path.parent / "paper.json").read_text())
            if chosen.paper:
                assert chosen.paper["table"] in numbers["tables"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"head.warmth": 1.0}, "no setting 'head.warmth'"),
        ({"mixing.rate": 1.0}, "no section 'mixing'"),
        ({"head.num_factors": 2}, "no setting 'head.num_factors'"),
        ({"head.name": "Diagonal", "head.num_factors": 2}, "no setting 'head.num_factors'"),
        ({"head.name": "LowRanks", "head.num_factors": 2}, "heads has no 'LowRanks'"),
    ],
)
def test_an_override_of_an_unknown_setting_is_an_error(overrides, message):
    with pytest.raises(ValueError, match=message):
        study.config("digits_hom", overrides)


def test_an_override_of_a_name_permits_the_settings_of_the_new_part():
    config = study.config("digits_hom", {"head.name": "LowRank", "head.num_factors": 2})
    assert config["head"] == dict(name="LowRank", num_classes=10, num_factors=2)


def test_unknown_names_list_the_choices():
    with pytest.raises(ValueError, match="choose one of adaptive_label_smoothing"):
        study.table("label_noise", "planted_noise")
    with pytest.raises(ValueError, match="planted_noise"):
        study.table("correlated_label_noise", "table_99")
    with pytest.raises(ValueError, match="choose one of cpu"):
        study.jobs(TINY, "paper", study.Path("out"))


def test_a_complete_run_is_not_trained_again(tmp_path):
    small = TINY._replace(
        rows=TINY.rows[:1],
        grid={"head.temperature": (1.0,)},
        scales={"cpu": Scale((0,), {"training.num_epochs": None, "training.num_steps": 2})},
    )
    (before,) = study.job_results(small, "cpu", tmp_path)
    assert before.results is None
    assert run.run(before.job, None) is None
    (after,) = study.job_results(small, "cpu", tmp_path)
    assert after.results["step"] == 2
    changed = small._replace(
        scales={"cpu": Scale((0,), {"training.num_epochs": None, "training.num_steps": 3})}
    )
    with pytest.raises(ValueError, match="another config"):
        study.job_results(changed, "cpu", tmp_path)


@pytest.mark.parametrize(
    ("config", "setting", "others"),
    [
        ("vtab", "warm_start.workdir", {}),
        ("cifar10_resnet34_hom", "prioritization.target", {"prioritization.scores": "target"}),
    ],
)
def test_a_run_that_reads_another_is_recognised_by_any_path_to_both(
    config, setting, others, tmp_path, monkeypatch
):
    row = Row("hom", config, others | {setting: "{runs}/upstream/{scale}/seed_{seed}"})
    chosen = TINY._replace(rows=(row,), grid={}, scales={"cpu": Scale((0,))})
    (job,) = study.jobs(chosen, "cpu", tmp_path / "runs" / "study" / "tiny")
    files.write_json(job.directory / "config.json", job.config)
    evals = {name: {"accuracy": 0.5} for name in job.config["evals"]}
    files.write_json(job.directory / "results.json", {"evals": evals, "step": 1})
    files.write_json(job.directory / "dataset.json", {"class_names": ["a", "b"]})

    def evals_in(out):
        return study.job_results(chosen, "cpu", Path(out) / "study" / "tiny")[0].results["evals"]

    monkeypatch.chdir(tmp_path)
    assert evals_in("runs") == evals_in(tmp_path / "runs") == evals
    (tmp_path / "runs").rename("moved")
    assert evals_in("moved") == evals
    other = chosen._replace(
        rows=(row._replace(overrides=others | {setting: "{runs}/other/{scale}/seed_{seed}"}),)
    )
    with pytest.raises(ValueError, match="another config"):
        study.job_results(other, "cpu", Path("moved") / "study" / "tiny")


def test_a_run_of_a_row_that_replaces_the_head_is_recognised(tmp_path):
    row = Row("low_rank", "digits_hom", {"head.name": "LowRank", "head.num_factors": 2})
    chosen = TINY._replace(rows=(row,), grid={}, scales={"cpu": Scale((0,))})
    (job,) = study.jobs(chosen, "cpu", tmp_path)
    assert "temperature" not in job.config["head"]  # that of the former head does not hold
    # A run records every setting.
    files.write_json(job.directory / "config.json", sections.completed(job.config))
    evals = {name: {"accuracy": 0.5} for name in job.config["evals"]}
    files.write_json(job.directory / "results.json", {"evals": evals, "step": 1})
    files.write_json(job.directory / "dataset.json", {"class_names": ["a", "b"]})
    (result,) = study.job_results(chosen, "cpu", tmp_path)
    assert result.results["step"] == 1


def test_a_failed_run_is_reported_and_logged(tmp_path):
    job = study.jobs(TINY, "cpu", tmp_path)[0]
    job.config["head"]["temperature"] = -1.0
    assert "temperature is -1.0" in run.run(job, None)
    assert "Traceback" in (job.directory.parent / "seed_0.log").read_text()


def short_jobs(directory, num_runs, **settings):
    config = study.config("digits_hom", {"training.num_epochs": 1.0, **settings})
    return [
        study.Job("hom", (), i, directory / f"seed_{i}", config | {"seed": i}, str(i))
        for i in range(num_runs)
    ]


def test_flags_select_the_rows_seeds_and_grid_points_to_train(tmp_path, monkeypatch, capsys):
    started = []
    monkeypatch.setattr(run, "run_all", lambda jobs, *_: started.extend(jobs) or 0)
    flags = [
        "run",
        "--study=correlated_label_noise",
        "--table=planted_noise",
        f"--out={tmp_path}",
        "--rows",
    ]
    monkeypatch.setattr("sys.argv", [*flags, "hom", "het_*e*"])
    run.main()
    assert {job.row for job in started} == {"hom", "het_pe"}
    assert f"{len(started)} runs, 0 complete" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*flags, "het_two"])
    with pytest.raises(SystemExit, match=r"the rows are \['hom', 'het_diag'"):
        run.main()
    started.clear()
    flags += ["hom", "--at", "4.0", "--seeds"]
    monkeypatch.setattr("sys.argv", [*flags, "1", "3"])
    run.main()
    assert [(job.row, job.point, job.seed) for job in started] == [
        ("hom", (("head.temperature", 4.0),), seed) for seed in (1, 3)
    ]
    monkeypatch.setattr("sys.argv", [*flags, "77"])
    with pytest.raises(SystemExit, match=r"no run has one of the seeds \[77\]; leave out --seeds"):
        run.main()
    # Other tables lack the row or the point.
    started.clear()
    flags = [*(flag for flag in flags if not flag.startswith("--table")), "1"]
    monkeypatch.setattr("sys.argv", flags)
    run.main()
    assert {job.point for job in started} == {(("head.temperature", 4.0),)}
    monkeypatch.setattr("sys.argv", ["5.5" if flag == "4.0" else flag for flag in flags])
    with pytest.raises(SystemExit, match=r"5\.5 is not a point of the grid"):
        run.main()
    monkeypatch.setattr("sys.argv", [*flags, "--jobs=0"])
    with pytest.raises(SystemExit, match=r"--jobs"):
        run.main()


def test_several_tables_run_in_turn_and_a_shared_run_once(tmp_path, monkeypatch, capsys):
    batches = []
    monkeypatch.setattr(run, "run_all", lambda jobs, *_: batches.append(jobs) or 0)
    monkeypatch.setattr(run.features, "check_stored", lambda *_: None)
    flags = ["run", "--study=correlated_label_noise", "--scale=features", f"--out={tmp_path}"]
    names = ["frozen_features", "frozen_features_factors", "frozen_features_clean"]
    monkeypatch.setattr("sys.argv", [*flags, "--table", *names, "--rows", "plain", "low_rank_[36]"])
    run.main()
    assert [{job.row for job in jobs} for jobs in batches] == [
        {"plain", "low_rank_6"},
        {"low_rank_3"},  # its other runs are those of frozen_features
        {"plain", "low_rank_6"},
    ]
    assert f"{sum(map(len, batches))} runs, 0 complete" in capsys.readouterr().out


def test_without_a_table_all_tables_of_the_study_with_the_scale_run(tmp_path, monkeypatch, capsys):
    flags = ["run", "--study=sample_prioritization", "--print", f"--out={tmp_path}"]
    monkeypatch.setattr("sys.argv", [*flags, "--scale=features"])
    run.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all("--config=experiments/row.py:noisy@" in line for line in lines)
    monkeypatch.setattr("sys.argv", [*flags, "--scale=huge"])
    with pytest.raises(SystemExit, match="has the scale 'huge'; choose one of cpu, features, gpu"):
        run.main()


def test_a_table_comes_after_those_from_whose_runs_it_starts():
    starts = 0
    for path in (ROOT / "experiments").glob("*/rows.py"):
        tables = importlib.import_module(f"experiments.{path.parent.name}.rows").TABLES
        for position, chosen in enumerate(tables.values()):
            settings = [row.overrides for row in chosen.rows]
            settings += [scale.overrides for scale in chosen.scales.values()]
            needed = set(re.findall(r"\{runs\}/(\w+)/", repr(settings)))
            starts += len(needed)
            assert needed <= set(list(tables)[:position])
    assert starts > 5


def test_parallel_runs_share_the_memory_of_a_gpu(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(run, "run", print_preallocation)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    for num_workers, expected in ((1, "None"), (2, "false")):
        run.run_all(short_jobs(tmp_path, 1), num_workers, None)
        assert f"preallocate {expected}" in capfd.readouterr().out


def print_preallocation(job, data_dir):
    print("preallocate", os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE"), flush=True)


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.extended), 2])
def test_a_killed_run_fails_alone(num_workers, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "run", kill_the_process_of_seed_0)
    jobs = short_jobs(tmp_path, 4)
    assert run.run_all(jobs, num_workers, None) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("failed, BrokenProcessPool" in line for line in lines) == 1
    assert sum(line.endswith(": done") for line in lines) == 3
    (failed,) = (line for line in lines if "failed" in line)
    assert str(jobs[0].directory) in failed


def kill_the_process_of_seed_0(job, data_dir):
    if job.seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def is_alive(process):
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="the children of a process are read from /proc"
)
def test_workers_exit_when_the_driver_is_killed(tmp_path):
    command = "-m experiments.run --study=correlated_label_noise --table=planted_noise --jobs=1"
    driver = subprocess.Popen([sys.executable, *command.split(), f"--out={tmp_path}"], cwd=ROOT)
    while not list(tmp_path.glob("**/metrics.jsonl")):
        assert driver.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    assert children
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 60
    while any(is_alive(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert "is saved in" in next(tmp_path.glob("**/*.log")).read_text()

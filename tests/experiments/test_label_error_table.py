import sys
from types import SimpleNamespace

import pytest

from experiments import statistics, study
from experiments.correlated_label_noise import label_errors
from heteroscedastic.analysis.report.comparison import paired, spread


def summaries(*values):
    """Summaries of two scores by seed."""
    return {
        seed: {
            "scores": {
                name: {"average_precision": v + add, "precision_at_errors": 0.5}
                for name, add in (("margin", 0), ("x", 0.1))
            },
            "given_predicted": {"right": 0.9, "wrong": v},
        }
        for seed, v in enumerate(values)
    }


def test_differences_are_paired_by_common_seeds():
    reference, ours = summaries(0.2, 0.3, 0.7), summaries(0.4, 0.6)
    differences = statistics.Differences()
    margin, other = label_errors._lines(ours, reference, differences)
    mean, half = paired([0.4, 0.6], [0.2, 0.3])
    assert margin == [
        "margin",
        spread([0.4, 0.6]),
        "",
        f"{mean:+.4f} ± {half:.4f}",
        f"{mean:+.4f} ± {half:.4f}",
        spread([0.5, 0.5]),
    ]
    assert other[4] == margin[4]
    assert other[2] == "+0.1000 ± 0.0000"
    assert other[3] == f"{0.35:+.4f} ± {half:.4f}"
    # Those that are 0.1 in each seed have none.
    detectable = statistics.compared({0: 0.4, 1: 0.6}, {0: 0.2, 1: 0.3}).detectable
    assert differences.detectable()[0].endswith(
        f"correction: - margin of reference {detectable:.4f}, - reference {detectable:.4f}."
    )


def test_the_reference_is_not_compared_with_itself_and_missing_seeds_have_no_lines():
    reference = summaries(0.2, 0.3)
    differences = statistics.Differences()
    lines = label_errors._lines(reference, reference, differences)
    assert [line[3:5] for line in lines] == [["", ""], ["", ""]]
    assert label_errors._lines({}, reference, differences) == []
    one = label_errors._lines(summaries(0.5), reference, differences)[1]
    assert one[2] == "+0.1000"
    assert float(one[3]) == pytest.approx(0.4)


def test_a_score_that_not_every_run_has_is_left_out():
    reference, ours = summaries(0.2, 0.3), summaries(0.4, 0.6)
    del ours[1]["scores"]["x"]
    lines = label_errors._lines(ours, reference, statistics.Differences())
    assert [line[0] for line in lines] == ["margin"]


def test_predicted_fractions_are_spreads_over_seeds():
    fractions = label_errors._predicted_fractions(summaries(0.2, 0.3))
    assert fractions == [spread([0.9, 0.9]), spread([0.2, 0.3])]


def test_each_split_has_the_summary_of_its_own_scores(monkeypatch):
    monkeypatch.setattr(label_errors, "_check_noise_is_known", lambda _: None)
    monkeypatch.setattr(label_errors.loaded_run, "load", lambda *arguments: arguments)
    inner = label_errors.label_errors
    monkeypatch.setattr(inner, "label_scores", lambda run, split: {"scores of": (*run, split)})
    monkeypatch.setattr(inner, "summary", lambda scores: {"summary of": scores})
    monkeypatch.setattr(label_errors.jax, "clear_caches", lambda: None)  # of other tests
    assert label_errors.summaries("run", "best", "data") == {
        split: {"summary of": {"scores of": ("run", "best", "data", split)}}
        for split in ("train", "valid")
    }


@pytest.mark.parametrize("record", [{}, {"label_noise": [[0, 0, 6], [1, 1, 2]]}])
def test_without_known_wrong_labels_nothing_is_evaluated(record, tmp_path, monkeypatch, capsys):
    evals = {"evals": {"test": {}, "test_best": {}}}
    result = SimpleNamespace(
        job=SimpleNamespace(directory=tmp_path, config=evals, fingerprint="f", row="hom", seed=0),
        results={},
    )
    chosen = study.table("correlated_label_noise", "planted_noise")
    monkeypatch.setattr(label_errors.study, "run_results", lambda _: {})
    monkeypatch.setattr(sys, "argv", ["label_errors"])
    monkeypatch.setattr(label_errors, "table_results", lambda _: (chosen, [result]))
    monkeypatch.setattr(label_errors.study, "tuned_results", lambda *_: {("hom", 0): result})
    monkeypatch.setattr(label_errors.loaded_run, "read", lambda _: SimpleNamespace(dataset=record))
    monkeypatch.setattr(label_errors.loaded_run, "load", lambda *_: pytest.fail("a run was loaded"))
    with pytest.raises(
        SystemExit, match="no training label is known to be wrong; choose a table with noise"
    ):
        label_errors.main()

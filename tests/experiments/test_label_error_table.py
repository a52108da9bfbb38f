from types import SimpleNamespace

import pytest

from experiments import study
from experiments.correlated_label_noise import label_errors
from heteroscedastic.analysis.report.comparison import paired, spread


def summaries(*values):
    """Of two scores, by seed."""
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


def test_differences_are_paired_by_the_seeds_that_both_have():
    reference, found = summaries(0.2, 0.3, 0.7), summaries(0.4, 0.6)
    usual, other = label_errors._lines(found, reference)
    mean, half = paired([0.4, 0.6], [0.2, 0.3])
    assert usual == [
        "margin",
        spread([0.4, 0.6]),
        "",
        f"{mean:+.4f} ± {half:.4f}",
        spread([0.5, 0.5]),
    ]
    assert other[2] == "+0.1000 ± 0.0000"
    assert other[3] == f"{0.35:+.4f} ± {half:.4f}"


def test_the_reference_is_not_compared_with_itself_nor_what_is_missing():
    reference = summaries(0.2, 0.3)
    assert [line[3] for line in label_errors._lines(reference, reference)] == ["", ""]
    assert label_errors._lines({}, reference) == []
    one = label_errors._lines(summaries(0.5), reference)[1]
    assert one[2] == "+0.1000"
    assert float(one[3]) == pytest.approx(0.4)


def test_what_was_memorised_is_told_over_seeds():
    assert label_errors._predicted(summaries(0.2, 0.3)) == [spread([0.9, 0.9]), spread([0.2, 0.3])]


@pytest.mark.parametrize("told", [{}, {"label_noise": [[0, 0, 6], [1, 1, 2]]}])
def test_where_no_label_is_known_to_be_wrong_nothing_is_evaluated(
    told, tmp_path, monkeypatch, capsys
):
    made = SimpleNamespace(
        job=SimpleNamespace(directory=tmp_path, config={"evals": {"test": {}, "test_best": {}}})
    )
    monkeypatch.setattr(
        label_errors,
        "told_by_flags",
        lambda _: (study.table("correlated_label_noise", "planted_noise"), [made], None),
    )
    monkeypatch.setattr(label_errors.study, "tuned", lambda *_: {("hom", 0): made})
    monkeypatch.setattr(label_errors.loaded_run, "read", lambda _: SimpleNamespace(dataset=told))
    monkeypatch.setattr(label_errors.loaded_run, "load", lambda *_: pytest.fail("a run was loaded"))
    with pytest.raises(
        SystemExit, match="no training label is known to be wrong; name a table with noise"
    ):
        label_errors.main()

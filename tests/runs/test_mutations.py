import pytest
from benches import load

mutations = load("mutations")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return mutations.make_runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.extended
def test_a_changed_file_gives_the_same_results_or_one_line_that_names_it(runs, tmp_path):
    outcomes = mutations.outcomes(runs, tmp_path, seed=0, num=30, with_report=False)
    assert mutations.failures(outcomes) == []
    assert {x.result for x in outcomes} == {"identical", "one line"}

"""The list of mutations fits the present code, and the command reports which are caught."""

import ast
import json

import pytest
from benches import load
from subprocesses import ROOT

mutants = load("mutants")
MUTANTS = mutants.read()


def test_every_mutation_changes_the_present_code_and_names_tests_that_exist():
    assert len(MUTANTS) == len({m.fault for m in MUTANTS})
    page = (ROOT / "docs/reliability.md").read_text()
    assert f"The {len(MUTANTS)} changes of `benchmarks/mutants.toml`" in page
    assert f"All {len(MUTANTS)} are caught now" in page
    assert f"on {len(MUTANTS)} plausible faults" in (ROOT / "benchmarks/README.md").read_text()
    for mutant in MUTANTS:
        changed = ast.parse(mutants.mutated(ROOT, mutant))
        assert ast.dump(changed) != ast.dump(ast.parse((ROOT / mutant.file).read_text()))
        assert mutant.tests
        for name in mutant.tests:
            module, _, test = name.partition("::")
            assert f"def {test or 'test_'}" in (ROOT / module).read_text(), name


def test_the_saved_results_are_of_this_list_and_each_mutation_is_caught_by_a_test_that_it_names():
    saved = json.loads((ROOT / "benchmarks/results/mutants.json").read_text())
    assert [
        mutants.Mutant(*(entry[x] for x in mutants.Mutant._fields)) for entry in saved
    ] == MUTANTS
    for entry in saved:
        assert entry["result"] == "caught"
        assert entry["test"].startswith(tuple(entry["tests"]))


def test_a_mutation_whose_line_has_changed_is_an_error_that_names_it(tmp_path):
    mutant = mutants.Mutant("a wrong sum", "code.py", "a + b", "a - b", ["test_code.py"])
    for text in ("", "a + b, a + b"):
        (tmp_path / "code.py").write_text(text)
        with pytest.raises(
            ValueError, match=r"'a wrong sum': the old text occurs \d times in code"
        ):
            mutants.mutated(tmp_path, mutant)


def test_a_mutation_is_caught_by_a_test_that_passes_without_it(tmp_path, monkeypatch, capsys):
    code = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
    tests = (
        "import code_\n\ndef test_double():\n    assert code_.double(3) == 6\n\n"
        "def test_never():\n    assert False\n"
    )

    def copy(directory):
        (directory / "code_.py").write_text(code)
        (directory / "test_code.py").write_text(tests)

    copy(tmp_path)
    one = "test_code.py::test_double"
    chosen = [
        mutants.Mutant("doubles by adding two", "code_.py", "2 * x", "2 + x", [one]),
        mutants.Mutant("halves to zero", "code_.py", "x / 2", "0 * x", [one]),
        mutants.Mutant(
            "halves to one", "code_.py", "x / 2", "1 + 0 * x", ["test_code.py::test_never"]
        ),
        mutants.Mutant("halves to two", "code_.py", "x / 2", "2 + 0 * x", ["test_of_nothing.py"]),
    ]
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time
    for name, value in dict(read=lambda: chosen, ROOT=tmp_path, copy_tracked=copy).items():
        monkeypatch.setattr(mutants, name, value)
    out = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["mutants", f"--out={out}"])
    with pytest.raises(SystemExit):
        mutants.main()
    caught, survived, always, not_run = json.loads(out.read_text())
    assert (caught["result"], caught["test"]) == ("caught", one)
    assert (survived["result"], survived["test"]) == ("SURVIVED", None)
    assert "also fails on the unchanged code" in always["result"]
    assert "did not run" in not_run["result"]
    assert "1 of 4 mutations caught" in capsys.readouterr().out

    # A second call repeats what was not caught, and nothing else.
    repeated = []
    outcome = mutants.Outcome("caught", one)
    monkeypatch.setattr(mutants, "tested", lambda _, m: repeated.append(m.fault) or outcome)
    mutants.main()
    assert repeated == [m.fault for m in chosen[1:]]
    assert "4 of 4 mutations caught" in capsys.readouterr().out

    # So does one whose saved test has other parameters now.
    saved = json.loads(out.read_text())
    saved[0]["test"] = f"{one}[before]"
    out.write_text(json.dumps(saved))
    mutants.main()
    assert repeated[3:] == [chosen[0].fault]

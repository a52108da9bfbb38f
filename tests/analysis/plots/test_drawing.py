import shutil

import pytest
from subprocesses import run_without

from heteroscedastic.analysis.plots import figures

_COMMANDS = """
import importlib, os, sys
het, hom, out = sys.argv[1:]
for command, *flags in (
    ["heteroscedastic.analysis.covariance.summary", "--run=" + het],
    ["heteroscedastic.analysis.errors.disagreements", "--runs", het, hom, "--out=" + out],
    ["experiments.correlated_label_noise.expansion", "--out=" + os.path.join(out, "expansion")],
    ["heteroscedastic.analysis.errors.label_errors", "--run=" + het, "--out=" + out],
):
    sys.argv = [command, *flags]
    importlib.import_module(command).main()
"""


def test_without_matplotlib_every_command_writes_its_numbers_and_a_message(
    with_noise, without_noise, tmp_path
):
    run = shutil.copytree(with_noise, tmp_path / "run", ignore=shutil.ignore_patterns("analysis"))
    out = tmp_path / "out"
    process = run_without({"matplotlib"}, _COMMANDS, str(run), str(without_noise), str(out))
    assert process.returncode == 0, process.stderr
    assert (
        process.stdout.count(
            "no figures: figures require matplotlib: pip install matplotlib, or in a checkout"
        )
        == 4
    )
    names = {p.name for p in out.rglob("*") if p.is_file()}
    stems = ("disagreements_test", "label_errors_train_best")
    numbers = {f"{stem}.{kind}" for stem in stems for kind in ("csv", "json")}
    numbers |= {"variance_slopes.csv", "covariance_slopes.csv", "agreement.json"}
    assert names == numbers
    written = {p.name for p in (run / "analysis").rglob("*") if p.is_file()}
    assert written == {"pairs.csv", "classes.csv", "heat_map.csv", "measures.npz", "summary.json"}


_PAGES = """
import importlib
for command, *flags in (
    ["report.build", "--help"],
    ["report.build", *sys.argv[1:]],
    ["uncertainty.__main__", *sys.argv[1:]],
):
    sys.argv = [command, *flags]
    try:
        importlib.import_module("heteroscedastic.analysis." + command).main()
    except (SystemExit, ModuleNotFoundError) as error:
        print(repr(error).splitlines()[0], flush=True)
"""


def test_without_matplotlib_commands_that_only_draw_say_what_to_install(with_noise, tmp_path):
    process = run_without(
        {"matplotlib"}, _PAGES, f"--runs={with_noise}", f"--out={tmp_path / 'out'}"
    )
    assert process.returncode == 0, process.stderr
    assert "SystemExit(0)" in process.stdout  # --help requires no matplotlib
    assert (
        process.stdout.count(
            "figures require matplotlib: pip install matplotlib, or in a checkout pip install -e"
        )
        == 2
    )
    assert not (tmp_path / "out" / "index.html").exists()


def test_with_matplotlib_nothing_is_printed(capsys):
    pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")
    assert figures.can_draw()
    assert not capsys.readouterr().out

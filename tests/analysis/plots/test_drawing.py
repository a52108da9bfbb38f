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


_PAGES = """
words = ["--runs=" + het, "--out=" + out]
for command, *flags in (
    ["report.build", "--help"],
    ["report.build", *words],
    ["uncertainty.__main__", *words],
):
    sys.argv = [command, *flags]
    try:
        importlib.import_module("heteroscedastic.analysis." + command).main()
    except (SystemExit, ModuleNotFoundError) as error:
        print(repr(error).splitlines()[0], flush=True)
"""


def test_without_matplotlib_every_command_writes_its_numbers_and_a_message(
    with_noise, without_noise, tmp_path
):
    run = shutil.copytree(with_noise, tmp_path / "run", ignore=shutil.ignore_patterns("analysis"))
    out = tmp_path / "out"
    process = run_without(
        {"matplotlib"}, _COMMANDS + _PAGES, str(run), str(without_noise), str(out)
    )
    assert process.returncode == 0, process.stderr
    install = "figures require matplotlib: pip install matplotlib, or in a checkout"
    assert process.stdout.count(f"no figures: {install}") == 4
    # Commands that only draw say what to install; --help requires no matplotlib.
    assert "SystemExit(0)" in process.stdout
    assert process.stdout.count(f"{install} pip install -e") == 4 + 2
    assert not (out / "index.html").exists()
    names = {p.name for p in out.rglob("*") if p.is_file()}
    stems = ("disagreements_test", "label_errors_train_best")
    numbers = {f"{stem}.{kind}" for stem in stems for kind in ("csv", "json")}
    numbers |= {"variance_slopes.csv", "covariance_slopes.csv", "agreement.json"}
    assert names == numbers
    written = {p.name for p in (run / "analysis").rglob("*") if p.is_file()}
    assert written == {"pairs.csv", "classes.csv", "heat_map.csv", "measures.npz", "summary.json"}


def test_with_matplotlib_nothing_is_printed(capsys):
    pytest.importorskip("matplotlib", reason="figures require the extra `analysis`")
    assert figures.can_draw()
    assert not capsys.readouterr().out

"""What a page of results says about its runs is what the runs of the table are."""

import csv
import functools
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import mostly_extended
from scipy import stats

from experiments import study
from heteroscedastic import files

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/results"


def test_planted_noise_has_the_epochs_seeds_and_temperatures_of_its_page():
    page = " ".join((PAGES / "planted_noise.md").read_text().split())
    chosen = study.table("correlated_label_noise", "planted_noise")
    jobs = study.jobs(chosen, "cpu", files.as_path("runs"))
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
    assert chosen.select_metric == "nll"
    assert {(r.select, r.report) for r in chosen.regimes.values()} == {
        ("valid_best", "test_best"),
        ("valid", "test"),
        ("valid_best", "valid_best"),
        ("valid", "valid"),
    }


# Parts of pages whose values the commands cannot print, as the runs are not saved: the start of a
# heading, of the title of a warning or of a row of a table; None for the whole page.
_UNSAVED = {
    "num_samples.md": ("| 10 independent | first |", "| 8 Sobol | first |"),
    "tiny_imagenet.md": ('!!! warning "The grid was extended twice',),
}
# Numbers without an interval that no command on their page prints: of one seed or one ensemble, of
# a paper, of a run that is not saved, or the difference of two that are printed. A number, or the
# start of a row.
_NOT_PRINTED = {
    "detection.md": ("0.005", "0.897", "+0.014", "+0.008", "+0.021", "+0.022"),
    "ensembles.md": ("0.050", "0.790", "0.087"),
    "frozen_features.md": ("0.777",),
    "frozen_features_hidden.md": ("0.1054",),
    "human_noise.md": (
        "| early stopping | 4 | 0.4300",
        "| last epoch | 4 | 0.4416",
        "| automobile, truck |",
        "| cat, dog |",
    ),
    "label_noise.md": ("-0.020",),
    "label_noise_features.md": ("-0.372", "-0.375", "-0.461", "-0.284"),
    "tiny_imagenet.md": (
        "| plain softmax | 2.029",
        "| low-rank | 2.388",
        "| parameter-efficient | 2.181",
    ),
    "transfer.md": ("| CIFAR-10 | 0.285", "| digits | 0.585"),
    "translation.md": ("25.6965",),
    "unequal_classes_features.md": ("+0.201",),
}
# How many tables of a page have rows with values of several printed lines.
_JOINED = {
    "claims.md": 4,
    "detection.md": 1,
    "frozen_features.md": 2,
    "frozen_features_hidden.md": 1,
    "frozen_features_labels.md": 4,
    "frozen_features_remedies.md": 2,
    "frozen_features_siblings.md": 3,
    "human_noise.md": 3,
    "label_errors.md": 2,
    "label_noise.md": 2,
    "label_noise_features.md": 4,
    "num_samples.md": 1,
    "planted_noise.md": 1,
    "prioritized_epochs.md": 3,
    "several_labels.md": 4,
    "size_and_augmentation.md": 4,
    "transfer.md": 1,
    "unequal_classes_features.md": 1,
}
# Those whose commands take longest run with `pytest -m extended` alone.
_LONGEST = {"frozen_features.md", "label_noise.md", "objectness.md", "unequal_classes.md"}
# value ± half, or value [low, high]
_VALUE = re.compile(r"[+-]?\d[\d.,]* ± [\d.,]*\d|[+-]?\d[\d.]* \[[+-]?[\d.]+, [+-]?[\d.]+\]")
_BARE = re.compile(r"(?<![\w.])[+-]?\d+\.\d{3,4}\b")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
_CALL = "python -m experiments.table "
# With the saved numbers of derived.py.
_ALSO = (
    "benchmarks.estimator --print",
    "experiments.adaptive_label_smoothing.unseen ",
    "experiments.correlated_label_noise.clean_nll",
    "experiments.correlated_label_noise.ensembles ",
    "experiments.correlated_label_noise.label_errors ",
    "experiments.correlated_label_noise.marked_maps ",
    "experiments.correlated_label_noise.noise_pairs ",
    "experiments.dataset_curation.over_training ",
    "experiments.dataset_curation.token_calibration ",
    "experiments.sample_prioritization.cells ",
    "experiments.sample_prioritization.choices ",
    "experiments.sample_prioritization.statistics ",
)
_WITH_TABLES = sorted(
    path.name
    for path in PAGES.glob("*.md")
    if any(f"python -m {command}" in path.read_text() for command in ("experiments.table ", *_ALSO))
    and _UNSAVED.get(path.name, ()) is not None
)


def _without(page, start):
    """A page without a section, warning or row."""
    end = {"#": r"\n(?=#)", "!": r"\n\n(?!    )", "|": r"\n"}[start[0]]
    before, after = page.split(f"\n{start}", 1)
    return "\n".join((before, *re.split(end, after, maxsplit=1)[1:]))


def _calls(page):
    """The commands of a page and their arguments, with each --at and --reference that it names, and
    whether the page has them in these words.
    """
    calls, others = set(), set()
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        block = re.sub(r" *\\\n *", " ", block)
        for name, values in re.findall(r"for (\w+) in ([^;]*);", block) or [("", "-")]:
            for command in _ALSO:
                module, *first = command.split()
                found = re.findall(rf"python -m {re.escape(command)}(.*)", block)
                found = [x.replace("benchmarks/", f"{ROOT}/benchmarks/") for x in found]
                found = [x.replace(f"${name}", y) for x in found for y in values.split()]
                others |= {(module, "".join((*first, x))) for x in found}
            for arguments in re.findall(f"{re.escape(_CALL)}(.*)", block):
                calls |= {arguments.replace(f"${name}", x) for x in values.split() if name} or {
                    arguments
                }
    tables = {re.sub(r" --(at|reference)=\S+", "", call) for call in calls}
    options = re.findall(r"`(--(?:at|reference|scale)=[^ `]+)`", page)
    own = others | {("experiments.table", f"{x} ") for x in calls}
    every = own | {
        ("experiments.table", f"{x} {option}") for x in calls | tables for option in ("", *options)
    }
    return {call: call in own for call in sorted(every)}


def _printed(call, is_own, outputs, monkeypatch, capsys):
    """What a command prints; pages share commands, so each is run once."""
    if call not in outputs:
        command, arguments = call
        monkeypatch.setattr(sys, "argv", [command, *arguments.split()])
        try:
            importlib.import_module(command).main()
            outputs[call] = capsys.readouterr().out
        except (SystemExit, ValueError) as error:
            # An option of another table of the page, or a table without saved results; not a
            # command of the page with flags that do not exist.
            if is_own and (isinstance(error, ValueError) or error.code == 2):
                raise
            outputs[call] = ""
    return outputs[call]


def _numbers(value):
    """The two or three numbers of a value with its interval."""
    return tuple(number for number in re.split(r" ± | \[|, |\]", value) if number)


def _agrees(shown, printed):
    """Whether a shown number is the printed one, rounded; prose may leave its sign out."""
    shown, printed = shown.replace(",", ""), printed.replace(",", "")
    digits, more = (len(text.partition(".")[2]) for text in (shown, printed))
    a, b = float(shown), float(printed)
    if shown[0] not in "+-":
        b = abs(b)
    slack = 0.5 * (10**-digits + 10**-more) if more > digits else 0.0  # rounded twice
    return more >= digits and abs(a - b) <= slack + 1e-9


def _all_agree(shown, printed):
    return len(shown) == len(printed) and all(map(_agrees, shown, printed))


def _by_line(table, lines):
    """Whether the values of each row are printed in one line."""
    rows = [list(map(_numbers, _VALUE.findall(row))) for row in table.splitlines()]
    return all(
        any(all(any(_all_agree(x, y) for y in line) for x in row) for line in lines) for row in rows
    )


@pytest.fixture(scope="module", autouse=True)
def _jobs_once():
    """The commands of a page ask for the jobs of the same tables again and again."""
    found, jobs = {}, study.jobs

    def once(chosen, scale, out):
        key = id(chosen.rows), id(chosen.grid), id(chosen.scales), scale, str(out)
        if key not in found:
            found[key] = chosen, jobs(chosen, scale, out)  # while it is there, ids are its own
        return found[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "jobs", once)
        yield


@pytest.fixture(scope="module")
def outputs():
    """Command and arguments -> what it printed."""
    return {}


@pytest.mark.parametrize("name", mostly_extended(_WITH_TABLES, set(_WITH_TABLES) - _LONGEST))
def test_every_number_on_a_page_is_printed_by_its_commands_from_saved_results(
    name, outputs, monkeypatch, capsys, tmp_path
):
    """Values with their intervals, and others of three or four decimals."""
    page = (PAGES / name).read_text()
    monkeypatch.chdir(tmp_path)  # without runs
    printed = "\n".join(
        _printed(*call, outputs, monkeypatch, capsys) for call in _calls(page).items()
    )
    page = functools.reduce(_without, _UNSAVED.get(name, ()), page)
    intervals = {_numbers(value) for value in _VALUE.findall(printed)}
    missing = [
        value
        for value in _VALUE.findall(" ".join(page.split()))
        if not any(_all_agree(_numbers(value), numbers) for numbers in intervals)
    ]
    assert not missing, missing
    known = _NOT_PRINTED.get(name, ())
    page = functools.reduce(_without, (x for x in known if x.startswith("|")), page)
    page = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    lines = {frozenset(map(_numbers, _VALUE.findall(line))) for line in printed.splitlines()}
    joined = [table for table in _TABLE.findall(page) if not _by_line(table, lines)]
    assert len(joined) == _JOINED.get(name, 0), joined
    bare = set(_BARE.findall(printed)) | set(known)
    missing = [
        value
        for value in _BARE.findall(_VALUE.sub("", page))
        if not any(_agrees(value, x) for x in bare if not x.startswith("|"))
    ]
    assert not missing, missing


def _values(path):
    return _VALUE.findall(" ".join(path.read_text().split()))


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "README.md",
        PAGES / "index.md",
        *(path for path in ROOT.glob("docs/**/*.md") if path.parent != PAGES),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_an_interval_elsewhere_is_on_a_page_of_results(path):
    pages = set(PAGES.glob("*.md")) - {path}
    shown = [_numbers(value) for page in pages for value in _values(page)]
    unknown = [
        value
        for value in _values(path)
        if not any(_all_agree(_numbers(value), numbers) for numbers in shown)
    ]
    assert not unknown, unknown


def test_the_page_of_pairs_shows_those_of_its_file():
    """The first ten by `seen`, with covariance and correlation."""
    path = study.saved_path("correlated_label_noise", "", "").parents[1]
    with (path / "pictures" / "tiny_imagenet_pairs.csv").open() as file:
        expected = [
            [
                f"{x['class']}, {x['other']}",
                *(f"{float(x[c]):.2f}" for c in ("covariance", "correlation")),
            ]
            for x in csv.DictReader(file)
        ]
    assert len(expected) == 30
    lines = (PAGES / "tiny_imagenet_pairs.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.split("|")[2:5]] for line in lines if line[2:3].isdigit()
    ]
    assert rows == expected[:10]


def test_the_page_of_class_maps_shows_the_saved_numbers():
    """Means over seeds of each map and metric, and the differences with their intervals."""
    path = study.saved_path("adaptive_label_smoothing", "saliency/class_maps", "")
    saved = files.read_json(path.with_name("class_maps.json"))
    of_seeds = {}
    for name, run in saved["runs"].items():
        group = name.partition(", seed ")[0]
        for entry in run["localisation"]:
            key = (group if entry["map"] == "map" else entry["map"]), entry["metric"]
            if entry["map"] == "map" or group == "hard":
                of_seeds.setdefault(key, []).append(entry["mean"]["value"])
    lines = (PAGES / "localisation.md").read_text().splitlines()
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    metrics, means, differences = ("pointing", "box", "max_box", "mass"), 0, 0
    for name, *cells in rows:
        ours, _, theirs = name.removesuffix(", of `hard`").partition(" - ")
        for metric, cell in zip(metrics, cells):
            if (ours, metric) not in of_seeds:
                continue
            values = np.array(of_seeds[ours, metric])
            if theirs:
                values = values - of_seeds[theirs, metric]
                half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
                assert cell == f"{values.mean():+.4f} ± {half:.4f}"
                differences += 1
            else:
                np.testing.assert_allclose(float(cell), values.mean(), atol=5.1e-4)
                means += 1
    assert (means, differences) == (8 * 4, 5 * 4)


def test_the_page_of_noise_maps_shows_the_saved_deletion():
    lines = (PAGES / "noise_maps.md").read_text().splitlines()
    start = lines.index(
        "| seed | no pixel filled | first by the map | at random | from the centre |"
    )
    for seed, line in enumerate(lines[start + 2 : start + 5]):
        path = study.saved_path("sample_prioritization", "saliency/noise_cat_dog", "")
        saved = files.read_json(path.with_name(f"noise_cat_dog_{seed}.json"))
        (run,) = saved["runs"].values()
        column = saved["fractions_deleted"].index(0.1)
        expected = [run["deletion"]["map"][0]]
        expected += [run["deletion"][order][column] for order in ("map", "random", "centre")]
        assert line == f"| {seed} | " + " | ".join(f"{x:.2f}" for x in expected) + " |"


def test_a_page_with_other_digits_or_another_sign_does_not_agree():
    assert _agrees("0.042", "+0.0419")
    assert _agrees("1,234", "1234.2")
    assert not _agrees("0.043", "+0.0419")
    assert not _agrees("-0.042", "+0.0419")
    assert not _agrees("0.0421", "0.042")

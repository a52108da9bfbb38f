import base64
import csv
import io
import json
import shutil

import numpy as np
import pytest
from small_runs import of_earlier_version

pytest.importorskip(
    "matplotlib",
    reason="a report holds figures, which require the extra `analysis`",
)

import browser
from sklearn import datasets
from test_page import Reader

from experiments import report as study_report
from experiments import study
from heteroscedastic import files
from heteroscedastic.analysis.covariance import summary
from heteroscedastic.analysis.errors import confusions, label_errors
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import (
    build,
    classes_section,
    comparison,
    covariance_section,
    entropy_section,
    label_errors_section,
    overview_section,
    saliency_section,
)
from heteroscedastic.analysis.uncertainty import __main__ as uncertainty
from heteroscedastic.runs import loaded_run, predictions

NAME = '<b>one & "two"</b>'
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture(scope="module", autouse=True)
def _coarse_figures():
    """Figures of few pixels, as drawing takes most of the time of a report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_PNG_WIDTH", 400)
        yield


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made and not drawn, for reports of which the words alone are read."""
    monkeypatch.setattr(figures, "_save", lambda figure, suffix, file, **style: file.write(b"-"))


@pytest.fixture(scope="module")
def renamed(digit_runs, tmp_path_factory):
    """The runs with a class name that contains markup."""
    out = tmp_path_factory.mktemp("named")
    copies = []
    for i, run in enumerate(digit_runs):
        copies.append(of_earlier_version(shutil.copytree(run, out / str(i))))
        dataset = files.read_json(copies[-1] / "dataset.json")
        names = dataset["class_names"]
        files.write_json(copies[-1] / "dataset.json", dataset | {"class_names": [NAME, *names[1:]]})
    return copies


@pytest.fixture(scope="module")
def page(renamed, tmp_path_factory):
    """A report of two seeds of one config and a run of another, which is given first."""
    out = tmp_path_factory.mktemp("report")
    paper = out / "numbers.json"
    files.write_json(
        paper, {"note": "Elsewhere.", "numbers": {"plain": {"accuracy": "76.5 ± 0.2", "acc": 1}}}
    )
    before = {p: p.stat().st_mtime_ns for run in renamed for p in run.rglob("*") if p.is_file()}
    runs = ["--runs", *map(str, [renamed[2], *renamed[:2]])]
    names = ["--names", "low <rank>", "plain", "--paper", str(paper)]
    build.main([*runs, *names, "--out", str(out / "report")])
    assert before == {
        p: p.stat().st_mtime_ns for run in renamed for p in run.rglob("*") if p.is_file()
    }
    return out / "report" / "index.html"


def test_the_page_is_self_contained(page):
    text = page.read_text()
    result = Reader(text)
    assert not [
        a
        for _, attrs in result.tags
        for a in attrs.values()
        if a and a.startswith(("http", "//", "file"))
    ]
    assert not result.all("script")
    assert all(
        image["src"].startswith("data:image/") and image["alt"].strip()
        for image in result.all("img")
    )
    assert len(result.all("img")) >= 2 * 12 + 10
    assert result.all("meta")[1]["content"] == "width=device-width, initial-scale=1"
    assert page.stat().st_size < 3e6
    titles = [a["href"] for a in result.all("a") if a["href"].startswith("#")][1:]
    assert len(titles) == len(build.SECTIONS) + 1


def test_of_too_many_classes_there_is_a_table_and_no_confusion_matrix(digit_runs, monkeypatch):
    run_set = comparison.load(comparison.groups([str(digit_runs[0])]))
    monkeypatch.setattr(confusions, "MAX_CLASSES", 9)
    monkeypatch.setattr(confusions, "confusion_matrix", lambda *_: pytest.fail("10 x 10"))
    _, parts, numbers = classes_section.classes(run_set)
    assert "There are no confusions of more than 9 classes" in parts[-1]
    assert len(numbers["by_class"]["classes"]) == 10


def test_a_metric_of_the_paper_that_no_run_has_is_named(page):
    text = page.read_text()
    assert "76.5 ± 0.2" in text
    assert "numbers of acc are left out, as these runs have no such metric; they have" in text


def test_names_are_text(page):
    result = Reader(page.read_text())
    assert not result.all("b")
    assert NAME in result.text
    assert "low <rank>" in result.text


def test_the_table_holds_the_metrics_of_the_runs(page, renamed):
    evals = [files.read_json(run / "results.json")["evals"]["test"] for run in renamed]
    text = Reader(page.read_text()).text
    for metric in ("accuracy", "nll", "ece"):
        ours = [metrics[metric] for metrics in evals]
        assert comparison.spread(ours[:2]) in text
        assert f"{ours[2] - ours[0]:+.4f}" in text  # paired: seed 0 is in common
    assert "76.5 ± 0.2" in text
    assert "Elsewhere." in text
    numbers = json.loads((page.parent / "pictures" / "results.json").read_text())
    assert numbers["plain"]["accuracy"] == {"0": evals[0]["accuracy"], "1": evals[1]["accuracy"]}


def test_the_plain_head_is_the_reference_although_it_is_given_last(page):
    head = page.read_text().partition("<thead>")[2].partition("</thead>")[0]
    assert Reader(head).text == "metricplain (2 runs)low <rank> (1 run)low <rank>, difference"
    assert Reader(page.read_text()).text.count("than the plain head (95") == 1


def test_the_headline_is_the_difference_of_the_accuracies(page, renamed):
    saved = [predictions.read(renamed[i], "test") for i in (2, 0)]  # of seed 0
    ours, theirs = (p.logits.argmax(axis=-1) == p.labels for p in saved)
    points = 100 * np.mean(1.0 * ours - theirs)
    words = Reader(page.read_text()).text.replace("\u00a0", " ")
    sentence = words.partition("The low-rank head is right on ")[2].partition(".\n")[0]
    assert sentence.startswith(
        f"{abs(points):.1f} points {'more' if points >= 0 else 'fewer'} of the clean test images"
        f" than the plain head (95 % interval "
    )
    assert f"paired bootstrap over {len(ours)} images" in sentence
    numbers = json.loads((page.parent / "pictures" / "intervals.json").read_text())
    difference = numbers["differences"]["accuracy"][0]
    assert difference["value"] == pytest.approx(points / 100)
    assert difference["low"] < difference["value"] < difference["high"]
    assert "of the training labels are wrong, but the labels of test are clean" in words


def test_classes_have_their_accuracy_and_confusions(page, renamed):
    saved = [predictions.read(run, "test") for run in renamed[:2]]
    numbers = json.loads((page.parent / "pictures" / "by_class.json").read_text())
    for c in range(10):
        own = saved[0].labels == c
        accuracy = np.mean([np.mean(p.logits[own].argmax(axis=-1) == c) for p in saved])
        assert numbers["accuracy"][0][c] == pytest.approx(accuracy)
        assert numbers["count"][c] == own.sum()
    percent = json.loads((page.parent / "pictures" / "confusion_0_plain.json").read_text())
    pooled = np.concatenate([p.logits[p.labels == 3].argmax(axis=-1) for p in saved])
    expected = 100 * np.bincount(pooled, minlength=10) / len(pooled)
    np.testing.assert_allclose(percent["percent"][3], expected)


def test_the_file_of_suspects_is_the_ranking(page, renamed):
    links = [a for a in Reader(page.read_text()).all("a") if "suspects" in a.get("download", "")]
    assert [a["download"] for a in links] == ["suspects_0_plain.csv", "suspects_1_low_rank.csv"]
    content = base64.b64decode(links[1]["href"].partition(",")[2]).decode()
    rows = list(csv.DictReader(io.StringIO(content)))
    scored = label_errors.label_scores(loaded_run.load(renamed[2], "best"))
    order = np.argsort(-scored.scores.noise_free, kind="stable")
    np.testing.assert_array_equal([int(row["id"]) for row in rows], scored.ids[order])
    assert len(rows) == len(scored.ids)
    text = Reader(page.read_text()).text
    assert f"id {rows[0]['id']}\nlabelled {rows[0]['label']}\nsuggested" in text
    numbers = json.loads((page.parent / "pictures" / "mislabelled_1_low_rank.json").read_text())
    for row in numbers["quality_by_class"]:
        own = scored.labels == ([NAME, *WORDS[1:]].index(row["class"]))
        assert row["labels"] == own.sum()
        assert row["known_wrong"] == np.sum(scored.is_wrong & own)
        quality = np.mean(np.exp(-scored.scores.noise_free[own]))
        assert row["quality"] == pytest.approx(quality, rel=1e-5)
    values = [row["quality"] for row in numbers["quality_by_class"]]
    assert values == sorted(values)


def test_every_figure_has_its_numbers_beside_it(page):
    written = {
        s: {p.stem for p in (page.parent / "pictures").glob(f"*{s}")}
        for s in (".png", ".svg", ".json")
    }
    assert written[".png"] == written[".svg"] <= written[".json"]
    assert {"curve_nll", "risk_coverage", "entropy_samples", "entropy_members"} <= written[".png"]
    assert {"reliability", "reliability_scaled"} <= written[".png"]
    for kind in ("confusion", "confidence_valid"):
        assert {f"{kind}_0_plain", f"{kind}_1_low_rank"} <= written[".png"]
    noisy = json.loads((page.parent / "pictures" / "confidence_valid_0_plain.json").read_text())
    assert noisy["noise_known"]
    assert noisy["number"]["noisy"] > 50  # of two times 240, six of ten classes confused at 40 %
    assert not json.loads((page.parent / "pictures" / "confidence_test_0_plain.json").read_text())[
        "noise_known"
    ]


def test_the_hardest_images_are_those_of_the_largest_loss(page, renamed):
    numbers = json.loads((page.parent / "pictures" / "hardest_0_plain.json").read_text())
    saved = [predictions.read(run, "test") for run in renamed[:2]]
    losses = np.mean([predictions.losses(p) for p in saved], axis=0)
    np.testing.assert_allclose([e["loss"] for e in numbers], np.sort(losses)[::-1][: len(numbers)])
    assert numbers[0]["id"] == saved[0].ids[losses.argmax()]
    assert f"loss {losses.max():.2f}" in Reader(page.read_text()).text


def test_the_class_pairs_are_those_of_the_first_run_that_has_noise(page, renamed):
    assert "plain is not included, because its head has no noise" in Reader(page.read_text()).text
    numbers = json.loads((page.parent / "pictures" / "class_pairs_1_low_rank.json").read_text())
    result = loaded_run.load(renamed[2])
    seen = summary.measures(result, "test").seen[np.triu_indices(10, 1)]
    np.testing.assert_allclose(
        [row["seen"] for row in numbers["pairs"]], np.sort(seen)[::-1][:10], rtol=1e-4
    )
    diagonal = summary.summary(summary.average_covariance(result, "test"))["diagonal"]
    assert numbers["diagonal"] == pytest.approx(diagonal)
    assert f"contributes {100 * diagonal:.1f} % of the variance" in Reader(page.read_text()).text
    assert (
        sum(row["labels_mixed"] > 0 for row in numbers["pairs"]) <= 3
    )  # three pairs were confused
    assert set(numbers["agreement_with_known_noise"]) == set(summary.Measures._fields)
    assert (
        f"the mean of p₁p₂ is {numbers['with_probabilities']['covariance']['rho']:.3g} (p"
        in Reader(page.read_text()).text
    )


def test_the_most_suspicious_labels_are_shown_with_their_clean_labels(page):
    target = datasets.load_digits().target
    for name in ("0_plain", "1_low_rank"):
        numbers = json.loads((page.parent / "pictures" / f"mislabelled_{name}.json").read_text())
        assert [row["clean"] for row in numbers["first"]] == [
            [NAME, *WORDS[1:]][target[row["id"]]] for row in numbers["first"]
        ]
        assert numbers["checkpoint"] == "best"
        precision = numbers["scores"]["noise_free"]["precision_at_errors"]
        assert precision > 1.5 * numbers["num_known_errors"] / numbers["num_examples"]
        assert f"{precision:.3f}" in Reader(page.read_text()).text
        for row in numbers["first"]:
            verdict = (
                "the label is right"
                if row["label"] == row["clean"]
                else f"wrong: it is {row['clean']}"
            )
            assert (
                f"labelled {row['label']}\nsuggested {row['suggested']}\n{verdict}"
                in Reader(page.read_text()).text
            )


def test_disagreements_are_counted_from_the_predictions(page, renamed):
    plain, noisy = (
        predictions.is_correct(predictions.read(renamed[i], "test")) for i in (0, 2)
    )  # of seed 0
    numbers = json.loads((page.parent / "pictures" / "right_alone.json").read_text())
    assert numbers["num_images"] == len(numbers["images"]) == np.sum(noisy & ~plain)
    assert numbers["num_other_way"] == np.sum(plain & ~noisy)
    first = numbers["images"][0]
    assert f"{first['true']},\nnot {first['taken_for']}" in Reader(page.read_text()).text


@pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.NO_CHROMIUM)
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_the_whole_page(page, width):
    state = browser.page_facts(page, width)
    assert state["scrolls"] <= state["width"] <= width
    assert state["wide"] == []
    assert state["console"] == []
    assert all(
        loaded and 0 < shown <= state["width"] and alt for loaded, shown, alt in state["images"]
    )
    assert [name for name, there in state["anchors"] if not there] == []
    assert len(state["anchors"]) == len(build.SECTIONS) + 2
    assert set(state["columns"]) == {2 if width == 1280 else 1}
    assert all(state["focus"])
    assert state["named"]


@pytest.mark.skipif(browser.CHROMIUM is None, reason=browser.NO_CHROMIUM)
def test_the_page_supports_dark_mode(page):
    light, dark = (browser.page_facts(page, 375, dark=dark) for dark in (False, True))
    assert (light["background"], dark["ink"]) == ("rgb(255, 255, 255)", "rgb(230, 230, 234)")
    assert dark["background"] == "rgb(22, 23, 27)"


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_label_lists_has_a_report(several_labels_run, tmp_path, monkeypatch):
    monkeypatch.setattr(saliency_section, "_NUM_EXPLAINED", 1)
    build.main(["--runs", str(several_labels_run), "--out", str(tmp_path)])
    result = Reader((tmp_path / "index.html").read_text())
    assert "a list of labels per example" in result.text
    assert "probabilities of all classes" in result.text
    assert "There is no ensemble of ParameterEfficient, because" in result.text
    assert "The class pairs with the largest covariance" in result.text
    assert (
        "The most suspicious labels of ParameterEfficient are not available: this analysis requires"
        in result.text
    )


@pytest.mark.usefixtures("undrawn")
def test_without_data_the_other_sections_are_written(renamed, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(renamed[0], tmp_path / "run")
    config = files.read_json(copy / "config.json")
    files.write_json(copy / "config.json", config | {"data": config["data"] | {"name": "nowhere"}})
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    build.main(["--runs", str(copy), "--out", str(tmp_path / "report")])
    text = Reader((tmp_path / "report" / "index.html").read_text()).text
    assert "The images are not available: " in text
    assert "The entropy over latent samples of Deterministic is not available: " in text
    assert "The wrong labels are not known: " in text
    assert "The most suspicious labels of Deterministic are not available: " in text
    assert "there are 0 with noise and 1 without" in text
    progress = [x for x in capsys.readouterr().out.splitlines() if x.startswith("section ")]
    assert len(progress) == len(build.SECTIONS)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("lost", ["all", "a step"])
def test_without_checkpoints_the_other_sections_are_written(renamed, tmp_path, lost, monkeypatch):
    if lost == "a step":  # of all sections, those that read checkpoints and one that does not
        some = (
            label_errors_section.label_errors,
            covariance_section.class_pairs,
            entropy_section.entropies,
            overview_section.configs,
        )
        monkeypatch.setattr(build, "SECTIONS", some)
    copy = shutil.copytree(renamed[2], tmp_path / "run")
    for path in [copy / "checkpoints"] if lost == "all" else (copy / "checkpoints").iterdir():
        shutil.rmtree(path)
    before = set(copy.rglob("*"))
    build.main(["--runs", str(copy), "--out", str(tmp_path / "report")])
    text = Reader((tmp_path / "report" / "index.html").read_text()).text
    why = "checkpoints is missing" if lost == "all" else "cannot be read"
    for note in (
        "The entropy over latent samples of LowRank is not available: ",
        "The class pairs of LowRank are not available: ",
    ):
        assert why in text.split(note)[1].split("\n")[0]
    assert why in text.split("The most suspicious labels of LowRank are not available: ")[1]
    assert set(copy.rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--on", "nowhere"], "no predictions of 'nowhere'.*test, test_best"),
        (["--on", "valid"], "on different examples in 'valid'"),
        (["--paper", "PAPER"], "the paper has numbers for somebody"),
    ],
)
def test_an_invalid_request_is_an_error_and_writes_nothing(renamed, tmp_path, flags, message):
    files.write_json(tmp_path / "PAPER", {"note": "", "numbers": {"somebody": {"accuracy": 1}}})
    flags = [str(tmp_path / f) if f == "PAPER" else f for f in flags]
    with pytest.raises(SystemExit, match=message):
        build.main(["--runs", *map(str, renamed), "--out", str(tmp_path / "report"), *flags])
    assert not (tmp_path / "report").exists()


def test_a_paper_file_with_another_structure_is_an_error(tmp_path):
    files.write_json(tmp_path / "paper.json", {"tables": {}})
    with pytest.raises(ValueError, match="must hold"):
        build.read_paper(str(tmp_path / "paper.json"))


def test_a_table_of_a_study_is_reported_with_the_papers_numbers(digit_runs, tmp_path):
    config = files.read_json(digit_runs[0] / "config.json")
    settings = {f"training.{name}": value for name, value in config["training"].items()}
    chosen = study.Table(
        claim="Two methods.",
        rows=(
            study.Row("het", "digits_het_full", paper="het_full"),
            study.Row("hom", "digits_hom", paper="homoscedastic"),
        ),
        metrics=("accuracy", "nll"),
        regimes={"last": study.Regime(select="valid", report="test")},
        select_metric="nll",
        scales={"cpu": study.Scale((0, 1), settings)},
        reference="hom",
        paper=dict(
            table="table_1", where={"epochs": 90}, columns={"accuracy": "top1"}, note="elsewhere"
        ),
    )
    for job, run in zip(
        [job for job in study.jobs(chosen, "cpu", tmp_path) if job.row == "hom"], digit_runs
    ):
        shutil.copytree(run, job.directory)
    groups = study_report.groups(
        chosen, study.job_results(chosen, "cpu", tmp_path), chosen.regimes["last"]
    )
    assert [(group.name, len(group.runs)) for group in groups] == [
        ("hom", 2)
    ]  # the other row has no runs
    numbers = files.read_json(
        study.Path(study.__file__).parent / "correlated_label_noise" / "paper.json"
    )
    paper = study_report.paper(chosen, chosen.regimes["last"], numbers)
    assert paper["numbers"] == {
        "het": {"accuracy": "0.785 ± 0.0006"},
        "hom": {"accuracy": "0.765 ± 0.0022"},
    }
    assert study_report.paper(chosen, study.Regime("valid", "valid"), numbers) is None


def test_figures_without_a_page_are_written_under_the_run(renamed, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(renamed[0], tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["uncertainty", "--runs", str(copy)])
    uncertainty.main()
    new = {p.relative_to(copy).parts[:2] for p in copy.rglob("*.svg")}
    assert new == {("analysis", "uncertainty")}
    assert "wrote" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["uncertainty", "--runs", str(renamed[1]), str(renamed[2])])
    with pytest.raises(SystemExit, match="several runs require --out"):
        uncertainty.main()

import functools
import json
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import streams
from benches import load
from gaussians import key
from scipy import stats
from subprocesses import ROOT

from heteroscedastic.batch import SentencePairs
from heteroscedastic.latent import LatentGaussian
from heteroscedastic.models import heads
from heteroscedastic.models.classifier import Classifier
from heteroscedastic.models.resnet import ResNet
from heteroscedastic.models.transformer import TransformerSmall, Translator


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(dict(stage_sizes=(1, 1), bottleneck=True), marks=pytest.mark.extended),
        dict(stage_sizes=(1, 1), bottleneck=False, stem="cifar"),
    ],
    ids=["imagenet", "cifar"],
)
def test_the_plain_model_is_our_model_without_the_mask(settings):
    plain = load("train").PlainResNet(**settings, num_classes=3, width=4)
    ours = Classifier(ResNet(**settings, width=4, stem_width=4), heads.Deterministic(3))
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(6, 16, 16, 3)), jnp.float32)
    present = jnp.ones(6, bool)
    variables = jax.jit(ours.init)(key(), inputs, present)
    # Every parameter is shifted, so that no scale of zero hides a branch.
    variables = jax.tree.map(lambda x: x + 0.1, variables)
    theirs = {
        "params": {**variables["params"]["backbone"], **variables["params"]["head"]},
        "batch_stats": variables["batch_stats"]["backbone"],
    }
    plain_variables = jax.eval_shape(plain.init, key(), inputs)
    assert jax.tree.map(jnp.shape, theirs) == jax.tree.map(jnp.shape, plain_variables)

    apply_ours, apply_plain = (
        functools.partial(m.apply, train=True, mutable=["batch_stats"]) for m in (ours, plain)
    )
    latent, updated = jax.jit(apply_ours)(variables, inputs, present)
    logits, their_updated = jax.jit(apply_plain)(theirs, inputs)
    np.testing.assert_allclose(logits, latent.loc, rtol=1e-3, atol=1e-3)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        their_updated["batch_stats"],
        updated["batch_stats"]["backbone"],
    )


def test_time_at_equal_error_is_interpolated_between_measured_sizes():
    benchmark = load("predictive")
    lines = {
        ("sobol", 32): dict(error=0.4, gradient=1.0),
        ("sobol", 128): dict(error=0.1, gradient=4.0),
        ("slow", 10): dict(error=0.4, gradient=1.0),
        ("slow", 20): dict(error=0.2, gradient=2.0),
        ("biased", 0): dict(error=0.3, gradient=1.0),
    }
    assert benchmark.time_at_error(lines, "sobol", 0.2) == pytest.approx(2.0)
    # Beyond the measured sizes the error falls as samples^-1/2.
    assert benchmark.time_at_error(lines, "slow", 0.1) == pytest.approx(8.0)
    assert benchmark.time_at_error(lines, "biased", 0.2) is None
    assert benchmark.time_at_error(lines, "biased", 0.3) == 1.0


def test_the_bytes_of_an_update_are_in_proportion_to_the_parameters():
    def passes(width):
        kernel = jax.ShapeDtypeStruct((width, 100), jnp.float32)
        counts = load("train").update_bytes({"head": {"loc": {"kernel": kernel}}})
        return np.array(counts) / (4 * kernel.size)

    momentum, penalty, clipping = passes(1_000)
    assert 5 <= momentum <= penalty < clipping
    np.testing.assert_allclose(passes(3_000), [momentum, penalty, clipping], rtol=1e-3)


@pytest.mark.extended
def test_every_form_of_the_benchmark_is_measured(monkeypatch):
    benchmark = load("predictive")
    monkeypatch.setattr(benchmark, "EXACT_POINTS", 2**14)
    monkeypatch.setattr(benchmark, "EXACT_NODES", 64)
    monkeypatch.setattr(benchmark, "SHORTLISTS", (2,))
    for forms, exact, rank in (
        (benchmark.softmax_forms(4, 1), benchmark.exact_softmax, 1),
        (benchmark.softmax_forms(4, 0), benchmark.exact_softmax, 0),
        (benchmark.sigmoid_forms(), benchmark.exact_sigmoid, 1),
    ):
        smallest = {name[0]: name for name in reversed(forms)}
        few = {
            name: forms[name]
            for kind, name in smallest.items()
            if rank or kind in ("exact", benchmark.REFERENCE[0])  # the others are as at rank 1
        }
        assert ("exact" in {name for name, _ in forms}) == (rank == 0)
        lines = benchmark.measure(
            few, benchmark.examples(2, 4, rank, 1.0), exact, repeats=1, num_keys=2
        )
        assert all(np.isfinite(list(line.values())).all() for line in lines.values())
        assert lines[benchmark.REFERENCE]["error"] < 0.2


@pytest.mark.extended
def test_every_estimate_that_was_tried_is_of_the_averaged_softmax(monkeypatch):
    benchmark = load("variance_reduction")
    monkeypatch.setattr(benchmark.benchmark, "EXACT_POINTS", 2**14)
    latent = benchmark.benchmark.examples(2, 4, 1, 0.5)
    for known in ("independent", "Sobol"):
        monkeypatch.delitem(benchmark.FORMS, known)
    found = benchmark.errors(latent, 128, 1)
    assert len(found) == 4
    assert all(0 < error < 0.3 for error in found.values()), found


@pytest.mark.parametrize("noise_on", ["utilities", "features"])
def test_the_covariance_benchmark_reports_memory(noise_on, monkeypatch, capsys):
    sizes = ["--num_classes=30", "--num_features=8", "--num_factors=2", "--num_examples=70"]
    monkeypatch.setattr(sys, "argv", ["covariance", *sizes, f"--noise_on={noise_on}"])
    load("covariance").main()
    match = re.search(r"before ([\d,]+) MiB, peak ([\d,]+) MiB", capsys.readouterr().out)
    before, peak = (int(x.replace(",", "")) for x in match.groups())
    assert 0 < before <= peak


def test_the_input_benchmark_reads_the_number_of_images_that_it_reports(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    streams.prepare(tmp_path, "pets")
    benchmark = load("input")
    number = benchmark.copied("pets", str(tmp_path), str(tmp_path / "copies"), 2)
    assert number == 2 * (streams.NUM_TRAIN + streams.NUM_TEST)
    ours = benchmark.ours(str(tmp_path / "copies"), "pets", 16, "", operation="resize(8)")
    ours(number)  # asserts the number itself
    stages = benchmark.stages(str(tmp_path / "copies"), "pets", 16)
    num_batches = -(-number // benchmark._BATCH)
    for name, run in list(stages.items())[:-1]:  # the last is `ours`
        num_elements = num_batches * (1 if name == "batch" else benchmark._BATCH)
        assert run(number) == num_elements, name
    images = benchmark.encoded(str(tmp_path / "copies"), "pets")
    assert len(images) == number / 2
    for full_decode in (False, True):
        benchmark.bare(images, 16, full_decode, "")(7)
    assert benchmark.rate(lambda n: sum(range(n)), 10, 2_000_000) > 1000


def test_the_soak_test_fails_if_metrics_differ_or_a_process_grows():
    soak = load("soak")
    normal = {"most_mebibytes_gained": 14.7, "most_files_gained": 0}
    short_lived = {"most_mebibytes_gained": None, "most_files_gained": None}
    assert soak.failures({"same": True, "undisturbed": normal, "disturbed": short_lived}) == []
    growing = {"most_mebibytes_gained": 90.5, "most_files_gained": 2}
    assert soak.failures({"same": False, "undisturbed": normal, "disturbed": growing}) == [
        "the metrics of the disturbed and of the undisturbed run differ.",
        "a process of the disturbed run gained 90.5 mebibytes.",
        "a process of the disturbed run gained 2 files.",
    ]


def test_the_soak_test_refuses_a_directory_whose_runs_may_be_complete(
    tmp_path, monkeypatch, capsys
):
    soak = load("soak")
    (tmp_path / "undisturbed").mkdir()
    monkeypatch.setattr("sys.argv", ["soak", f"--out={tmp_path}"])
    with pytest.raises(SystemExit):
        soak.main()
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        (["--config.seed=3"], ["--config=configs/digits_het_pe.py"]),
        (["--config=configs/digits_hom.py"], ["--config=configs/digits_hom.py"]),
        (["--config", "configs/digits_hom.py"], []),
    ],
)
def test_the_soak_test_has_its_own_config_if_no_other_is_given(
    tmp_path, monkeypatch, flags, config
):
    soak, found = load("soak"), []

    def train(directory, arguments, *_):
        found.extend(arguments)
        raise SystemExit

    monkeypatch.setattr(soak, "train", train)
    monkeypatch.setattr("sys.argv", ["soak", f"--out={tmp_path}", *flags])
    with pytest.raises(SystemExit):
        soak.main()
    assert [x for x in found if x.startswith("--config=")] == config
    assert set(flags) <= set(found)


def test_the_soak_test_starts_no_complete_run_again(tmp_path, monkeypatch):
    soak, starts = load("soak"), []

    class Host:
        """A process that exits with 0 after some looks."""

        returncode, output = 0, ()

        def __init__(self, num_looks):
            self.looks, self.process = iter([None] * num_looks), self

        def poll(self):
            return next(self.looks, 0)

        def wait(self, timeout):
            assert timeout > 0

        def take_sample(self):
            pass

        growth = take_sample

    def start(directory, arguments, num_hosts):
        starts.append(num_hosts)
        return [Host(num_looks) for num_looks in range(2, 2 + num_hosts)]  # not at once

    (tmp_path / "results.json").write_text('{"goodput": {"share": 0.5}}')
    monkeypatch.setattr(soak, "start", start)
    monkeypatch.setattr(soak.time, "sleep", lambda _: None)
    record = soak.train(tmp_path, [], 2, None, 0)
    assert (starts, record["starts"]) == ([2], 1)


def test_the_mutations_are_of_an_empty_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "a").touch()
    monkeypatch.setattr("sys.argv", ["mutations", f"--out={tmp_path}"])
    with pytest.raises(SystemExit):
        load("mutations").main()
    assert f"--out={tmp_path} is not empty" in capsys.readouterr().err


def test_the_soak_test_never_damages_both_of_the_last_two_checkpoints(tmp_path):
    soak = load("soak")

    def save(*steps):
        for step in steps:
            (tmp_path / "checkpoints" / str(step) / "state").mkdir(parents=True)
            (tmp_path / "checkpoints" / str(step) / "state" / "array").write_bytes(bytes(100))

    def damaged_steps():
        return {
            p.parents[1].name
            for p in tmp_path.glob("checkpoints/*/state/array")
            if p.stat().st_size == 50
        }

    save(75)
    assert "damaged" not in soak.damage(None, [], tmp_path)  # the only checkpoint
    save(1500, 1575)
    assert soak.damage(None, [], tmp_path).endswith("checkpoint 1575 damaged")
    # The run moves the damaged checkpoint away and resumes from the previous one.
    shutil.rmtree(tmp_path / "checkpoints" / "1575")
    for _ in range(2):
        assert "damaged" not in soak.damage(None, [], tmp_path)
    assert not damaged_steps()
    save(1575)
    assert "damaged" not in soak.damage(None, [], tmp_path)
    save(1650)
    assert soak.damage(None, [], tmp_path).endswith("checkpoint 1650 damaged")
    assert damaged_steps() == {"1650"}


def test_the_table_of_label_errors_is_that_of_its_saved_results():
    saved = json.loads((ROOT / "benchmarks/results/label_errors_cifar10_n.json").read_text())
    page = (ROOT / "docs/results/label_errors.md").read_text()
    lines = load("estimator").seeds_table(saved["results"])
    assert len(lines) == 5
    assert all(line in page for line in lines)
    rows = {(row["ranking"], row["seed"]): row["average_precision"] for row in saved["results"]}
    differences = [rows["LowRank", s] - rows["Deterministic", s] for s in range(10)]
    mean = float(np.mean(differences))
    half = stats.t.ppf(0.975, 9) * np.std(differences, ddof=1) / np.sqrt(10)
    assert f"{mean:.4f} ± {half:.4f}" in page


def test_a_file_of_speed_has_no_table_of_seeds():
    saved = json.loads((ROOT / "benchmarks/results/estimator_speed_clean.json").read_text())
    with pytest.raises(SystemExit, match="--print needs a file of --what=issues or rules"):
        load("estimator").seeds_table(saved["results"])


def test_files_of_rules_are_one_table_by_loss():
    names = ("estimator_rules_worse_label", "estimator_rules_generalized", "label_errors_cifar10_n")
    *rules, issues = (
        json.loads((ROOT / f"benchmarks/results/{name}.json").read_text()) for name in names
    )
    estimator = load("estimator")
    cross_entropy, both = (
        estimator.seeds_table(estimator.joined(x), f"{loss}LowRank/loss/4")
        for x, loss in ((rules[:1], ""), (rules, "cross_entropy/"))
    )
    assert len(both) == 2 + 2 * (len(cross_entropy) - 2)
    for line in cross_entropy[2:]:
        assert line.replace("| ", "| cross_entropy/", 1) in both
    with pytest.raises(SystemExit, match="one is of issues; print it alone"):
        estimator.joined([*rules, issues])


def test_the_speed_of_the_estimator_is_that_of_its_saved_results():
    page = (ROOT / "docs/results/cost.md").read_text()
    worse, clean = (
        json.loads((ROOT / f"benchmarks/results/estimator_speed_{name}.json").read_text())
        for name in ("worse_label", "clean")
    )
    assert (worse["arguments"]["label"], clean["arguments"]["label"]) == ("worse_label", "labels")
    for fits in zip(worse["results"], clean["results"], strict=True):
        assert fits[0]["fit"] == fits[1]["fit"]
        cells = (f"{fit['seconds']:.1f} | {fit['held_out_nll']:.4f}" for fit in fits)
        assert f"| {fits[0]['fit']} | {' | '.join(cells)} |" in page


def test_the_plain_transformer_is_our_translator():
    benchmark, settings = load("translation"), dict(num_source_words=9, dropout=0.0)
    sizes = dict(num_layers=1, width=8, hidden_width=12, num_heads=4)
    backbone = type("Tiny", (TransformerSmall,), sizes)(**settings)
    ours = Translator(backbone, heads.Deterministic(7, use_bias=False))
    plain = benchmark.PlainTransformer(num_target_words=7, **settings, **sizes)
    rng = np.random.default_rng(0)
    segments = jnp.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 2, 2]])
    source, previous = (jnp.asarray(rng.integers(0, n, (2, 6))) for n in (9, 7))
    inputs = SentencePairs(source, segments, previous, segments)
    params = jax.jit(ours.init)(key(), inputs, segments > 0)["params"]
    theirs = dict(params["backbone"])
    theirs["target_words"] = {"embedding": params["head"]["loc"]["kernel"].T}
    apply_plain = functools.partial(plain.apply, train=False)
    shapes = jax.eval_shape(functools.partial(plain.init, train=False), key(), inputs)["params"]
    assert jax.tree.map(jnp.shape, theirs) == jax.tree.map(jnp.shape, shapes)
    expected = jax.jit(ours.apply)({"params": params}, inputs, segments > 0).loc
    found = jax.jit(apply_plain)({"params": theirs}, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_lump_at_the_best_power_is_better_where_the_noise_is_strong():
    benchmark, rng = load("translation"), np.random.default_rng(0)
    loc, labels = rng.normal(size=(4, 60)).astype(np.float32), rng.integers(60, size=4)
    settings = dict(num_classes=8, num_samples=1024, points="sobol", chunk_size=256)

    def errors(deviation):
        latent = LatentGaussian(loc, scale_diag=np.full_like(loc, deviation))
        return benchmark.lump_errors(latent, labels, settings)

    weak, strong = errors(0.1), errors(5.0)
    assert max(weak.values()) < 0.01
    assert weak["t = 1"] == pytest.approx(weak["best t"], abs=1e-3)
    assert strong["best t"] < 0.5 * strong["t = 1"]

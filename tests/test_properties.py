"""Whatever value a config holds: an error of one line that names the setting, or shapes that
check.
"""

import copy
import math
import os

import jax
import numpy as np
import pytest
from cases import mostly_extended
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_configs import KINDS, SECTIONS, random_config, variants
from small_runs import small

from heteroscedastic.analysis.uncertainty import ensemble
from heteroscedastic.data.inspect import views
from heteroscedastic.runs import assembly, compiled, loop

NAN, INF = math.nan, math.inf
QUICK = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=20,
    suppress_health_check=list(HealthCheck),
)
NUMBERS = [
    0,
    1,
    2,
    7,
    -1,
    -0.5,
    1.5,
    NAN,
    INF,
    -INF,
    1e-30,
    1e30,
    1e300,
    2**31,
    2**32,
    2**70,
    -(2**70),
    True,
    False,
]
OTHERS = [
    None,
    "",
    "8",
    "nan",
    "a\nb",
    "(",
    "../x",
    "\x00",
    (),
    (0,),
    (4, 2),
    (1, 1),
    (NAN, 1.0),
    (None,),
    [1],
    {},
    {"a": 1},
]
VALUES = (
    st.sampled_from(NUMBERS + OTHERS) | st.integers(0, 70) | st.floats(0, 1) | st.text(max_size=5)
)


def with_setting(config, dotted, value):
    config = copy.deepcopy(config)
    *sections, last = dotted.split(".")
    part = config
    for name in sections:
        part = part[name]
    part[last] = value
    return config


def refusal(config):
    """What a config is refused with; None where its shapes check."""
    try:
        compiled.check_shapes(assembly.build(config))
    except ValueError as error:
        return str(error)
    return None


REFUSED = {
    "seed": [2**32, 2**32 + 1, -1, True, 1.0, NAN, "0", None],
    "data.seed": [2**32, -1, False, 0.5, "0"],
    "data.validation_fraction": [1.0, -0.1, NAN, INF, "0.2", None, True],
    "data.max_examples": [0, -1, 1.5, True, "8"],
    "data.max_classes": [0, -1, 1.5, True],
    "data.train": [None, 5, ("flip_lr",), "flip_lr(", "flip_lr|" * 3, "(" * 500 + "4" + ")" * 500],
    "data.splits": [5, "train", {"train": 5}, {"train": None}, {"train": {"split": "train"}}],
    "data.label": [None, 3],
    "data.name": [None, 3, "../x", ""],
    "data": [None, [], 3, {}],
    "curation": [None, 3, {}, "subset(num_examples=1.5)", "confuse_pairs(pairs=5, rate=0.1)"],
    "backbone.widths": [(0,), None, (-1,), (8, 1.5), ("8",), 8, (True,), (2**20,)],
    "head.num_factors": [-1, 2.0, 1.5, True, "6"],
    "head.num_classes": [0, 11, 10.0, True, "10"],
    "head.temperature": [0.0, -1.0, NAN, INF, "1", True, (1.0,), (2.0, 1.0), (0.0, NAN), None],
    "predictive.num_samples": [
        0,
        -1,
        True,
        1.5,
        "8",
        None,
        1000,
        8.0,
        NAN,
    ],  # 1000 with Sobol points
    "predictive.chunk_size": [0, -1, True, 1.5, "8"],
    "predictive.points": ["halton", None, 3],
    "smoothing": [
        {"name": "uniform", "rate": rate} for rate in (1.0, -0.1, NAN, INF, True, "0.1", None)
    ]
    + [
        None,
        [],
        3,
        {"name": None},
        {"rate": 0.1},
        {"name": "uniform", "rate": 0.1, "over": "some"},
        {"name": "adaptive"},  # without boxes
        *({"name": "given", "field": field} for field in ("soft", 3, None, {})),
        *({"name": "by_class", "rate": 0.1, "table": table} for table in ("absent.npy", 3, None)),
    ],
    "loss": [
        None,
        [],
        {"name": "cross"},
        {"name": ["cross_entropy"]},
        {"name": "cross_entropy", 3: 4},
        {"name": "focal"},
        *({"name": "focal", "gamma": gamma} for gamma in (-1.0, NAN, INF, 1e30, "2", None)),
        *({"name": "generalized_cross_entropy", "q": q} for q in (0.0, 1.5, NAN, "1", None)),
        *({"name": "logit_adjusted", "strength": s} for s in (-1.0, NAN, INF, 1e30, "1", None)),
    ],
    "weighting": [None, "equal", {"name": "equal", "rate": 0.5}, {"name": "effective_number"}]
    + [{"name": "effective_number", "beta": beta} for beta in (1.0, -0.1, NAN, True, "0.9", None)],
    "optimizer.momentum": [1.0, -0.1, NAN, INF, True, "0.9", None],
    "optimizer.nesterov": [1, None, "True"],
    "optimizer.l2": [-1e-4, NAN, INF, 1e30, None, True, "0"],
    "optimizer.covariance_l2": [-1e-4, NAN, INF, 1e30, True, "0"],
    "optimizer.decay_normalization": [1, None, "True"],
    "optimizer.decay_biases": [1, None, "True"],
    "optimizer.fixed": ["backbone", None, 3, (1,)],
    "optimizer.clip_norm": [0.0, -1.0, NAN, INF, True, "1"],
    "schedule.learning_rate": [-0.1, NAN, INF, 1e30, None, True, "0.1"],
    "schedule.warmup_epochs": [-1.0, NAN, INF, None, True, "2"],
    "schedule.warmup_steps": [-1, 1.5, True, "2", None],
    "schedule": [
        {"name": "steps", "learning_rate": 0.1, "milestones": m}
        for m in (0.5, (0.0,), (1.0,), (0.5, 0.2), (NAN,), None)
    ]
    + [
        {"name": "steps", "learning_rate": 0.1, "milestones": (0.5,), "factor": f}
        for f in (-1.0, NAN, INF, 1e30, "1")
    ],
    "training.batch_size": [0, -8, True, 8.0, 1.5, "8", None, NAN, 2**40],
    "training.num_epochs": [0.0, -1.0, NAN, INF, 1e30, 10**400, True, "60", (1,)],
    "training.num_steps": [0, -1, True, 1.5, "8", 2**31],
    "training.checkpoint_epochs": [0, 0.0, -1.0, NAN, INF, True, "2", None],
    "training.microbatches": [0, -1, True, 1.5, 3, "2", None],
    "training.class_shards": [0, -1, True, 1.5, None],
    "training.parameters": ["scattered", None, 3],
    "training.profile_steps": [
        5,
        (1,),
        (0, 1),
        (2, 1),
        (1, 10**6),
        (1.0, 2.0),
        ("1", "2"),
        (True, 2),
        "ab",
    ],
    "training": [None, [], 3],
    "validation": [
        [],
        3,
        {"split": "valid"},
        {"split": 3, "metric": "nll"},
        {"split": "valid", "metric": ["nll"]},
    ],
    "evals": [
        None,
        [],
        3,
        {"a": None},
        {"a": {}},
        {"a": {"split": None}},
        {3: {"split": "test"}},
        {"a": {"split": "x"}},
    ],
    "evals.test.checkpoint": ["first", None, 3],
    "warm_start": [
        3,
        {"weights": 3},
        {"workdir": "a", "weights": "b"},
        {"workdir": "a", "checkpoint": 3},
        {"workdir": "a", "head": 1},
    ],
}


@pytest.mark.parametrize("dotted", REFUSED)
def test_a_value_that_makes_no_sense_is_refused_in_one_line_that_names_its_setting(dotted):
    for value in REFUSED[dotted]:
        config = small(**{"predictive.points": "sobol"})
        if dotted == "training.num_steps":
            config["training"]["num_epochs"] = None
        if dotted == "schedule.warmup_steps":
            del config["schedule"]["warmup_epochs"]
        told = refusal(with_setting(config, dotted, value))
        assert told, f"{dotted}={value!r} is let through"
        assert "\n" not in told
        assert dotted.split(".")[-1] in told, f"{dotted}={value!r}: {told}"


def test_commands_refuse_a_seed_that_jax_takes_for_another(monkeypatch):
    assert (jax.random.key(2**32) == jax.random.key(0)).all()
    with pytest.raises(
        ValueError, match=r"config\.seed is 4294967296; it must be a whole number >= 0 and <"
    ):
        views.sheet(small(seed=2**32), None)
    monkeypatch.setattr("sys.argv", ["ensemble", "--runs", "a", "b", f"--seed={2**32}"])
    with pytest.raises(SystemExit, match="--seed is 4294967296; it must be"):
        ensemble.main()


@pytest.mark.parametrize("section", mostly_extended(SECTIONS, set(SECTIONS) - {"seed"}))
@QUICK
@given(data=st.data())
def test_any_values_of_a_section_are_an_error_of_one_line_that_names_one_or_have_sound_shapes(
    section, data
):
    config, known = data.draw(st.sampled_from(variants(section)))
    chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
    for name in [""] if "" in chosen else chosen:
        config = with_setting(
            config, f"{section}.{name}" if name else section, data.draw(VALUES, label=name)
        )
    told = refusal(config)
    if told is not None:
        assert "\n" not in told
        of_others = ["num_classes"] if "max_classes" in chosen else []  # which goes with it
        assert any(name in told for name in (*filter(None, chosen), section, *of_others)), told


@pytest.mark.parametrize("seed", range(int(os.environ.get("NUM_DRAWN_CONFIGS", 1))))
def test_a_config_of_valid_values_drawn_by_a_seed_trains(tmp_path, seed):
    assert loop.train(random_config(seed), str(tmp_path / "run"))["step"] == 2


@pytest.mark.parametrize("number", range(max(len(KINDS["loss"]), len(KINDS["weighting"]))))
def test_a_step_trains_with_every_loss_and_every_weighting(number):
    parts = {s: KINDS[s][number % len(KINDS[s])] for s in ("loss", "weighting")}
    config = small(**{"schedule.warmup_epochs": 0.0})
    config |= parts | dict(
        head=dict(name="Deterministic", num_classes=10),
        predictive=dict(name="deterministic"),
        evals=dict(test=dict(split="test")),
        validation=None,
    )
    run = assembly.build(config)
    feed = next(run.pipeline.training_feeds(0, 0, np.arange(run.steps.batch_size)))
    before, arrays = jax.jit(run.init)(run.root_key), run.pipeline.arrays["train"]
    after, sums, _ = jax.jit(run.train_step)(before, arrays, feed, run.root_key)
    assert np.isfinite(sums.loss)
    for x, y in zip(*map(jax.tree.leaves, (before.params, after.params)), strict=True):
        assert np.isfinite(y).all()
        assert np.any(x != y)

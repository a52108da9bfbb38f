"""A diagonal head on handwritten digits with three pairs of confused classes.

Question:  how much of the gain needs correlated noise?
Command:   python main.py --config=configs/digits_het_diag.py --workdir=runs/digits_het_diag
Cost:      20 seconds on 2 CPU cores
Expected:  docs/results/planted_noise.md
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multiclass"
    c.data = dict(
        name="digits",
        train="shift(1)|value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.2,  # has noisy labels, as clean ones are unavailable in practice
        pipeline="resident",
        label="label",
        splits=placeholder(dict),
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        seed=placeholder(int),
        extras=(),
        max_boxes=16,
        with_boxes=False,
        standardize=False,
    )
    c.curation = "confuse_random_pairs(num_pairs=3, rate=0.4)"
    c.backbone = dict(name="MLP", widths=(128, 128))
    c.head = dict(
        name="Diagonal", num_classes=10, temperature=1.0, noise_on="utilities", edward2=False
    )
    c.predictive = dict(name="softmax_exact", num_nodes=32)
    c.smoothing = dict(name="hard")
    c.loss = dict(name="cross_entropy")
    c.weighting = dict(name="equal")
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=True,
        l2=0.0,
        covariance_l2=placeholder(float),
        decay_normalization=False,
        decay_biases=True,
        clip_norm=1.0,
        fixed=(),
    )
    c.schedule = dict(name="cosine", learning_rate=0.1, warmup_epochs=2.0, warmup_steps=0)
    c.training = dict(
        batch_size=64,
        num_epochs=60.0,
        num_steps=placeholder(int),
        checkpoint_epochs=2.0,
        microbatches=1,
        parameters="replicated",
        class_shards=1,
        profile_steps=placeholder(tuple),
    )
    c.validation = dict(split="valid", metric="nll")
    c.evals = dict(
        valid=dict(split="valid", checkpoint="last", answers=placeholder(str), num_largest=100),
        valid_best=dict(
            split="valid", checkpoint="best", answers=placeholder(str), num_largest=100
        ),
        test=dict(split="test", checkpoint="last", answers=placeholder(str), num_largest=100),
        test_best=dict(split="test", checkpoint="best", answers=placeholder(str), num_largest=100),
    )
    c.warm_start = dict(
        workdir=placeholder(str), weights=placeholder(str), checkpoint="last", head=False
    )
    return c

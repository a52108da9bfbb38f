"""A head without noise on two digits side by side, with labels dropped and added.

Question:  which score does a plain sigmoid reach?
Command:   python main.py --config=configs/digits_multilabel_hom.py \
               --workdir=runs/digits_multilabel_hom
Cost:      30 seconds on 2 CPU cores
Expected:  docs/results/several_labels.md
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multilabel"
    c.data = dict(
        name="digits_pairs",
        train="shift(1)|value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.2,  # of the groups, with noisy labels; no digit is in both splits
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
    c.curation = "drop_and_add(drop_rate=0.2, add_rate=0.02)"
    c.backbone = dict(name="ConvNet", widths=(16, 32, 64))
    c.head = dict(
        name="Deterministic", num_classes=10, temperature=1.0, hidden_width=0, zero_start=False
    )
    c.predictive = dict(name="deterministic")
    c.smoothing = dict(name="hard")
    c.loss = dict(name="sigmoid_cross_entropy")
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
        num_epochs=15.0,
        num_steps=placeholder(int),
        checkpoint_epochs=1.0,
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

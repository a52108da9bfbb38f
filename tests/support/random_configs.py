"""Small configs of every kind, and random valid ones."""

import copy
import random

from small_runs import small

KINDS = {  # section -> valid settings of each kind
    "data": [
        dict(
            name="digits",
            pipeline="resident",
            seed=1,
            label="label",
            splits=dict(train="train[:50%]", test="test[:40]"),
            max_classes=None,
            max_examples=200,
            extras=(),
            max_boxes=4,
            train="shift(1)|value_range(-1, 1)",
            eval="value_range(-1, 1)",
            validation_fraction=0.2,
        )
    ],
    "backbone": [
        dict(name="MLP", widths=(8, 4)),
        dict(name="ConvNet", widths=(4, 8)),
        dict(
            name="ResNet",
            stage_sizes=(1, 1),
            bottleneck=False,
            version=1,
            stem="cifar",
            stem_width=4,
            width=4,
            dtype="float32",
            remat=False,
            group_size=None,
            start="identity",
        ),
        dict(
            name="ResNet",
            stage_sizes=(1,),
            bottleneck=False,
            version=2,
            stem_width=4,
            width=4,
            dtype="bfloat16",
            remat=True,
            group_size=4,
        ),
    ],
    "head": [
        dict(
            name="Deterministic", num_classes=10, temperature=1.0, hidden_width=4, zero_start=True
        ),
        dict(name="Diagonal", num_classes=10, temperature=1.5, noise_on="features", edward2=False),
        dict(
            name="LowRank",
            num_classes=10,
            temperature=(0.5, 2.0),
            noise_on="utilities",
            num_factors=3,
        ),
        dict(
            name="ParameterEfficient", num_classes=10, temperature=1.0, num_factors=3, edward2=True
        ),
    ],
    "predictive": [
        dict(name="softmax", num_samples=8, points="sobol", chunk_size=None),
        dict(name="softmax", num_samples=6, points="antithetic", chunk_size=4),
        dict(name="taylor", min_factor=0.01),
        dict(name="mean_field"),
    ],
    "smoothing": [dict(name="hard"), dict(name="uniform", rate=0.1, over="wrong")],
    "loss": [
        dict(name="cross_entropy"),
        dict(name="focal", gamma=2.0),
        dict(name="generalized_cross_entropy", q=0.7),
        dict(name="logit_adjusted", strength=1.0),
    ],
    "weighting": [
        dict(name="equal"),
        dict(name="inverse_frequency"),
        dict(name="effective_number", beta=0.999),
    ],
    "optimizer": [
        dict(
            name="sgd",
            momentum=0.9,
            nesterov=True,
            l2=1e-4,
            covariance_l2=None,
            decay_normalization=True,
            clip_norm=1.0,
        ),
        dict(name="adamw", b1=0.9, b2=0.999, eps=1e-8, weight_decay=1e-4),
    ],
    "schedule": [
        dict(name="constant", learning_rate=0.1, warmup_epochs=0.0, warmup_steps=0),
        dict(name="cosine", learning_rate=0.1, warmup_epochs=2.0, warmup_steps=0),
        dict(
            name="steps",
            learning_rate=0.1,
            milestones=(0.5, 0.9),
            factor=0.1,
            warmup_epochs=0.0,
            warmup_steps=3,
        ),
    ],
    "training": [
        dict(
            batch_size=8,
            num_epochs=1.0,
            num_steps=None,
            checkpoint_epochs=0.5,
            microbatches=2,
            parameters="replicated",
            class_shards=1,
            profile_steps=None,
        )
    ],
    "validation": [dict(split="valid", metric="nll")],
    "mixing": [
        dict(name="mixup", alpha=0.2, draws="batch"),
        dict(name="cutmix", alpha=1.0, probability=0.5, draws="example"),
        dict(name="ricap", beta=0.3, draws="example"),
        dict(
            name="mixup_or_cutmix",
            mixup_alpha=0.2,
            cutmix_alpha=1.0,
            cutmix_probability=0.5,
            draws="batch",
        ),
    ],
}
SECTIONS = ["seed", "curation", "warm_start", "evals", "evals.test", *KINDS]


def variants(section):
    """Configs of each kind of a section, with its setting names; "" stands for the full section."""
    base = small(**{"backbone": dict(name="MLP", widths=(4,)), "training.batch_size": 8})
    base["curation"] = ""
    base["evals"] = dict(test=dict(split="test", checkpoint="last"))
    if section not in ("head", "predictive"):
        base |= dict(
            head=dict(name="Deterministic", num_classes=10), predictive=dict(name="deterministic")
        )
    if section == "evals.test":
        return [(base, ["split", "checkpoint"])]
    return [
        (
            {**base, section: copy.deepcopy(settings)},
            ["", *(n for n in settings if (section, n) != ("data", "name"))],
        )
        for settings in KINDS.get(section, [])
    ] or [(base, [""])]


def random_config(seed):
    """A random valid config with two training steps."""
    draw = random.Random(seed)
    config = small(seed=draw.randrange(2**32))
    config |= {section: copy.deepcopy(draw.choice(kinds)) for section, kinds in KINDS.items()}
    batch_size = draw.choice((4, 8, 12))
    config["training"] |= dict(
        num_epochs=None, num_steps=2, batch_size=batch_size, microbatches=draw.choice((1, 2))
    )
    if config["optimizer"]["name"] == "sgd":
        config["optimizer"] |= dict(
            momentum=draw.choice((0.0, 0.9)), l2=draw.choice((0.0, 1e-4)), clip_norm=0.5
        )
    config["backbone"] |= {"group_size": None} if "group_size" in config["backbone"] else {}
    config["curation"] = draw.choice(
        ("", "confuse_random_pairs(num_pairs=2, rate=0.4)", "subset(num_examples=50)")
    )
    config["evals"] = dict(test=dict(split="test", checkpoint=draw.choice(("last", "best"))))
    if config["head"]["name"] == "Deterministic":
        config["predictive"] = dict(name="deterministic")
    if draw.random() < 0.5:
        del config["mixing"]
    return config

r"""A low-rank head on features of CIFAR-10 with its worst human labels, 40 % of them wrong.

python -m heteroscedastic.runs.embed --data=cifar10_n --backbone=EfficientNetLite0 \
    --weights=pretrained --out=DIR writes the features.

Question:  does correlated noise help against human label noise?
Command:   python main.py --config=configs/cifar10_n_features_het_full.py \
           --workdir=runs/cifar10_n_features_het_full --data_dir=DIR
Cost:      not measured
Expected:  not measured
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multiclass"
    c.data = dict(
        name="cifar10_n_EfficientNetLite0_224",
        label="worse_label",  # or aggre_label, random_label1 to 3, or label (clean)
        splits=dict(train="train", test="test"),
        train="",
        eval="",
        validation_fraction=0.1,  # has noisy labels, as clean ones are unavailable in practice
        pipeline="resident",
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        seed=placeholder(int),
        extras=(),
        max_boxes=16,
        with_boxes=False,
        standardize=True,
    )
    c.curation = ""
    c.backbone = dict(name="MLP", widths=())  # the features themselves
    c.head = dict(
        name="LowRank",
        num_classes=10,
        num_factors=6,
        temperature=1.0,
        noise_on="utilities",
        edward2=False,
    )
    c.predictive = dict(
        name="softmax", num_samples=128, points="sobol", chunk_size=placeholder(int)
    )
    c.smoothing = dict(name="hard")
    c.loss = dict(name="cross_entropy")
    c.weighting = dict(name="equal")
    c.optimizer = dict(name="adamw", b1=0.9, b2=0.999, eps=1e-8, weight_decay=1e-4)
    c.schedule = dict(name="cosine", learning_rate=1e-3, warmup_epochs=0.0, warmup_steps=0)
    c.training = dict(
        batch_size=256,
        num_epochs=20.0,
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

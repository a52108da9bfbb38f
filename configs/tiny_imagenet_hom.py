"""A plain softmax on Tiny-ImageNet, streamed, with 200 training images for each of 200 classes.

Question:  what is the baseline for the heads with noise?
Command:   python main.py --config=configs/tiny_imagenet_hom.py --workdir=runs/tiny_imagenet_hom
Cost:      about an hour on a GPU (not measured); the study has a smaller version for CPUs
Expected:  not measured at this size; docs/results/tiny_imagenet.md has smaller runs
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multiclass"
    c.data = dict(
        pipeline="streaming",
        name="tiny_imagenet",
        label="label",
        splits=dict(train="train[:90%]", valid="train[90%:]", test="validation"),
        max_classes=200,  # the first 200
        train="pad_crop(8)|flip_lr|value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.0,
        reader_shards=16,
        max_corrupt=100,  # maximum number of images that cannot be decoded
        window=1024,  # of the 2,250 records of a reader shard, 2 KB each
        max_examples=placeholder(int),
        seed=placeholder(int),
        max_labels=16,
        extras=(),
        max_boxes=16,
        with_boxes=False,
        standardize=False,
    )
    c.curation = ""
    c.backbone = dict(
        name="ResNet18",
        stem="cifar",
        dtype="float32",
        remat=False,
        group_size=placeholder(int),
        start="identity",
    )
    c.head = dict(
        name="Deterministic", num_classes=200, temperature=1.0, hidden_width=0, zero_start=False
    )
    c.predictive = dict(name="deterministic")
    c.smoothing = dict(name="hard")
    c.loss = dict(name="cross_entropy")
    c.weighting = dict(name="equal")
    # l2 is half of the usual weight decay of 5e-4 (reading X4).
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=True,
        l2=2.5e-4,
        covariance_l2=placeholder(float),
        decay_normalization=False,
        decay_biases=True,
        clip_norm=5.0,
        fixed=(),
    )
    c.schedule = dict(name="cosine", learning_rate=0.1, warmup_epochs=2.0, warmup_steps=0)
    c.training = dict(
        batch_size=128,
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

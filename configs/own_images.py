"""A low-rank head on your own images.

The images are in DIR/mine.npz, in the format of docs/own_data.md. --config.data.name=X reads
DIR/X.npz.

Question:  what does a model learn from these images with the stored labels?
Command:   python main.py --config=configs/own_images.py --workdir=runs/own_images --data_dir=DIR
Cost:      depends on the images; the backbone is for small images, of up to about 64 pixels
Expected:  depends on the labels
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multiclass"
    c.data = dict(
        name="mine",
        label="label",  # field SPLIT_labels; label="NAME" trains on train_NAME
        splits=dict(train="train", test="test"),
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        # omit flip_lr if left and right matter, as for text
        train="pad_crop(4)|flip_lr|value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.2,
        pipeline="resident",
        seed=placeholder(int),
        extras=(),
        max_boxes=16,
        with_boxes=False,
        standardize=False,
    )
    c.curation = ""  # labels are unchanged
    c.backbone = dict(
        name="ResNet20",
        dtype="float32",
        remat=False,
        group_size=placeholder(int),
        start="identity",
        stem="cifar",
    )
    c.head = dict(
        name="LowRank",
        num_classes=placeholder(int),  # None: number of classes of the data
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

"""A plain sigmoid on ImageNet-21k with ResNet-152: 21,843 yes/no questions.

Question:  which score does a homoscedastic model reach?
Command:   python main.py --config=configs/imagenet21k_hom.py --workdir=runs/imagenet21k_hom
Cost:      not measured; the paper uses an 8x8 slice of TPU v3 for five seeds
Expected:  gAP 45.9 ± 0.14 %, NLL 3.65 (Table 3)
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multilabel"
    c.data = dict(
        pipeline="streaming",
        name="imagenet21k",
        label="labels",  # lists of labels
        # valid and test have 4 % of the images each (Appendix B).
        splits=dict(train="train", valid="validation", test="test"),
        train="inception_crop(224)|flip_lr|value_range(-1, 1)",  # Appendix B
        eval="resize_small(256)|central_crop(224)|value_range(-1, 1)",  # usual; not stated
        validation_fraction=0.0,
        reader_shards=128,
        max_corrupt=100,  # maximum number of images that cannot be decoded
        max_labels=16,  # maximum number of labels per image
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        seed=placeholder(int),
        window=128,
        extras=(),
        max_boxes=16,
        with_boxes=False,
        standardize=False,
    )
    c.curation = ""
    # bfloat16 follows the public code; batch statistics cover the global batch (C13).
    c.backbone = dict(
        name="ResNet152V2",
        dtype="bfloat16",
        stem="imagenet",
        remat=False,
        group_size=placeholder(int),
        start="identity",
    )
    c.head = dict(
        name="Deterministic", num_classes=21_843, temperature=1.0, hidden_width=0, zero_start=False
    )
    c.predictive = dict(name="deterministic")
    c.smoothing = dict(name="hard")
    c.loss = dict(name="sigmoid_cross_entropy")
    c.weighting = dict(name="equal")
    # Appendix B. We read that the larger coefficient applies to the kernel of v(x) and to the
    # shared V (C14). Both are coefficients of sum(w^2) (X4). Nesterov momentum is not stated.
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=False,
        l2=3e-3,
        covariance_l2=1e-2,
        decay_normalization=False,
        decay_biases=True,
        clip_norm=1.0,
        fixed=(),
    )
    # Epochs 30, 60 and 80 of 90 (Appendix B).
    c.schedule = dict(
        name="steps",
        learning_rate=0.1,
        milestones=(1 / 3, 2 / 3, 8 / 9),
        factor=0.1,
        warmup_steps=5000,
        warmup_epochs=0.0,
    )
    c.training = dict(
        batch_size=1024,
        num_epochs=90.0,
        num_steps=placeholder(int),
        checkpoint_epochs=0.25,
        microbatches=1,
        parameters="replicated",
        class_shards=1,
        profile_steps=placeholder(tuple),
    )
    c.validation = dict(split="valid", metric="nll")
    c.evals = dict(
        valid=dict(split="valid", checkpoint="last", answers=placeholder(str), num_largest=100),
        test=dict(split="test", checkpoint="last", answers=placeholder(str), num_largest=100),
    )
    c.warm_start = dict(
        workdir=placeholder(str), weights=placeholder(str), checkpoint="last", head=False
    )
    return c

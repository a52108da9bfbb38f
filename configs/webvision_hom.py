"""A plain softmax on WebVision with Inception-ResNet-v2.

Question:  which accuracy does a homoscedastic model reach with labels from the web?
Command:   python main.py --config=configs/webvision_hom.py --workdir=runs/webvision_hom
Cost:      not measured; the paper uses 32 V100
Expected:  top-1 76.1 ± 0.07 % on WebVision, 67.0 ± 0.08 % on ILSVRC12 (Table 2)
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multiclass"
    c.data = dict(
        pipeline="streaming",
        name="webvision",
        label="label",
        splits=dict(
            train="train",
            test="validation",
            ilsvrc12=dict(
                name="imagenet2012", split="validation"
            ),  # the same classes in the same order
        ),
        # The preprocessing of EfficientNet (Appendix B). Size and range are not stated; these are
        # the defaults of the network.
        train="efficientnet_random_crop(299)|flip_lr|value_range(-1, 1)",
        eval="efficientnet_center_crop(299)|value_range(-1, 1)",
        validation_fraction=0.0,
        reader_shards=64,
        max_corrupt=100,  # maximum number of images that cannot be decoded
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        seed=placeholder(int),
        window=128,
        max_labels=16,
        extras=(),
        max_boxes=16,
        with_boxes=False,
        standardize=False,
    )
    c.curation = ""
    c.backbone = dict(
        name="InceptionResNetV2",
        dtype="float32",
        padding="VALID",
        remat=False,
        group_size=placeholder(int),
    )  # the paper uses GPUs
    c.head = dict(
        name="Deterministic", num_classes=1000, temperature=1.0, hidden_width=0, zero_start=False
    )
    c.predictive = dict(name="deterministic")
    c.smoothing = dict(name="hard")
    c.loss = dict(name="cross_entropy")
    c.weighting = dict(name="equal")
    # l2 is the coefficient of sum(w^2) (reading X4); Nesterov momentum is not stated.
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=False,
        l2=4e-5,
        covariance_l2=placeholder(float),
        decay_normalization=False,
        decay_biases=True,
        clip_norm=placeholder(float),
        fixed=(),
    )
    # Epochs 40 and 80 of 95 (Appendix B).
    c.schedule = dict(
        name="steps",
        learning_rate=0.1,
        milestones=(40 / 95, 80 / 95),
        factor=0.1,
        warmup_epochs=2.0,
        warmup_steps=0,
    )
    # The paper uses 32 asynchronous workers with 64 images each: an update uses 64 images and
    # slightly outdated weights (C9). Here updates use 64 images and are synchronous.
    c.training = dict(
        batch_size=64,
        num_epochs=95.0,
        num_steps=placeholder(int),
        checkpoint_epochs=1.0,
        microbatches=1,
        parameters="replicated",
        class_shards=1,
        profile_steps=placeholder(tuple),
    )
    c.evals = dict(
        test=dict(split="test", checkpoint="last", answers=placeholder(str), num_largest=100),
        ilsvrc12=dict(
            split="ilsvrc12", checkpoint="last", answers=placeholder(str), num_largest=100
        ),
    )
    c.warm_start = dict(
        workdir=placeholder(str), weights=placeholder(str), checkpoint="last", head=False
    )
    return c

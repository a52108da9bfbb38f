"""A small Faster R-CNN on mosaics of handwritten digits, without a model of label noise.

Question:  does the detector find and classify the digits of an image?
Command:   python main.py --config=configs/mosaic_frcnn_hom.py --workdir=runs/mosaic_frcnn_hom
Cost:      not measured
Expected:  no result yet
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "detection"
    c.data = dict(
        name="digits_mosaics",
        train="value_range(-1, 1)",
        eval="value_range(-1, 1)",
        validation_fraction=0.0,
        pipeline="resident",
        label="label",
        splits=placeholder(dict),
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        seed=placeholder(int),
        extras=("boxes",),
        max_boxes=16,
        with_boxes=False,
        standardize=False,
    )
    c.curation = ""
    c.backbone = dict(
        name="ResNet8",
        stem="cifar",
        dtype="float32",
        remat=False,
        group_size=placeholder(int),
        # Normalisation is not trained, so scales of 0, "identity", would stay without a warm start.
        start="keras",
    )
    c.head = dict(
        name="Deterministic", num_classes=11, temperature=1.0, hidden_width=0, zero_start=False
    )
    c.proposals = dict(
        name="RegionProposals",
        sizes=(8.0, 12.0, 16.0),
        ratios=(1.0,),
        channels=64,
        num_candidates=(400, 200),
        num_proposals=(64, 32),
        num_anchors=64,
        num_regions=32,
    )
    c.predictive = dict(name="deterministic")
    c.smoothing = dict(name="hard")
    c.loss = dict(name="cross_entropy")
    c.weighting = dict(name="equal")
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=False,
        l2=5e-5,
        covariance_l2=placeholder(float),
        decay_normalization=False,
        decay_biases=False,
        clip_norm=10.0,
        fixed=(),
    )
    c.schedule = dict(name="cosine", learning_rate=0.02, warmup_epochs=1.0, warmup_steps=0)
    c.training = dict(
        batch_size=16,
        num_epochs=20.0,
        num_steps=placeholder(int),
        checkpoint_epochs=2.0,
        microbatches=1,
        parameters="replicated",
        class_shards=1,
        profile_steps=placeholder(tuple),
        cached_maps=False,
    )
    c.validation = placeholder(dict)
    c.evals = dict(test=dict(split="test", checkpoint="last", answers=placeholder(str)))
    c.warm_start = dict(
        workdir=placeholder(str), weights=placeholder(str), checkpoint="last", head=False
    )
    return c

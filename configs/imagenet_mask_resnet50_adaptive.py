"""Adaptive label smoothing on ImageNet with boxes, one example per object, with ResNet-50.

Question:  is a model unsure where there is little or no object?
Command:   python main.py --config=configs/imagenet_mask_resnet50_adaptive.py \
               --workdir=runs/imagenet_mask_resnet50_adaptive
Cost:      not measured; the paper: 74 hours on 4 V100
Expected:  top-1 64.8 %, log loss 2.176, context-only confidence 0.0191 (Tables 1 and 5)
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

# The mean and standard deviation of each channel of ImageNet become 0 and 1.
_RANGE = "value_range((-2.1179, -2.0357, -1.8044), (2.2489, 2.4286, 2.64))"
_CENTER = "resize_small(256)|central_crop(224)"


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multiclass"
    c.data = dict(
        pipeline="streaming",
        name="imagenet2012_boxes_mask",
        label="label",
        splits=dict(
            train="train",
            test=dict(name="imagenet2012_boxes", split="validation"),
            # The test images without their objects.
            context=dict(
                name="imagenet2012_boxes",
                split="validation",
                eval=f"{_CENTER}|context(1.0)|{_RANGE}",
            ),
            # Not only the centre, for the objectness of whole images (reading L15).
            whole=dict(name="imagenet2012_boxes", split="validation", eval=f"resize(224)|{_RANGE}"),
            v2=dict(name="imagenet_v2/matched-frequency", split="test"),
        ),
        # Other objects are filled before colours change (reading L13).
        train=f"inception_crop(224)|flip_lr|mask_others|blend_jitter|lighting|{_RANGE}",
        eval=f"{_CENTER}|{_RANGE}",
        validation_fraction=0.0,
        reader_shards=64,
        max_corrupt=100,  # maximum number of images that cannot be decoded
        max_classes=placeholder(int),
        max_examples=placeholder(int),
        seed=placeholder(int),
        window=128,
        max_labels=16,
        extras=("boxes",),
        max_boxes=64,
        with_boxes=False,
        standardize=False,
    )
    c.curation = ""
    # What the paper does not state follows the code of CutMix, which has the same epochs, learning
    # rates and batch size (reading L7). ResNet v1.5; batch statistics cover the global batch.
    c.backbone = dict(
        name="ResNet50",
        dtype="bfloat16",
        start="identity",
        stem="imagenet",
        remat=False,
        group_size=placeholder(int),
    )
    c.head = dict(
        name="Deterministic", num_classes=1000, temperature=1.0, hidden_width=0, zero_start=False
    )
    c.predictive = dict(name="deterministic")
    c.smoothing = dict(name="adaptive", beta=1.0, over="wrong", objectness="own")
    c.loss = dict(name="cross_entropy")
    c.weighting = dict(name="equal")
    # l2 is half of the usual weight decay of 1e-4 (reading X4).
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=True,
        l2=5e-5,
        covariance_l2=placeholder(float),
        decay_normalization=True,
        decay_biases=True,
        clip_norm=placeholder(float),
        fixed=(),
    )
    c.schedule = dict(
        name="steps",
        learning_rate=0.1,
        milestones=(0.25, 0.5, 0.75),
        factor=0.1,
        warmup_epochs=0.0,
        warmup_steps=0,
    )
    c.training = dict(
        batch_size=256,
        num_epochs=300.0,
        num_steps=placeholder(int),
        checkpoint_epochs=1.0,
        microbatches=1,
        parameters="replicated",
        class_shards=1,
        profile_steps=placeholder(tuple),
    )
    c.evals = dict(
        test=dict(split="test", checkpoint="last", answers=placeholder(str), num_largest=100),
        context=dict(split="context", checkpoint="last", answers=placeholder(str), num_largest=100),
        whole=dict(split="whole", checkpoint="last", answers=placeholder(str), num_largest=100),
        v2=dict(split="v2", checkpoint="last", answers=placeholder(str), num_largest=100),
    )
    c.warm_start = dict(
        workdir=placeholder(str), weights=placeholder(str), checkpoint="last", head=False
    )
    return c

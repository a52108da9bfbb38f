"""A diagonal head on JFT-300M with ResNet-50, with lists of labels.

Question:  does input-dependent noise without correlations help?
Command:   python main.py --config=configs/jft_het_diag.py --workdir=runs/jft_het_diag
Cost:      not measured; the paper uses a 16x16 slice of TPU v3 for five seeds
Expected:  gAP 64.1 ± 0.07 %, NLL 19.61 (Table 3); 63.1 ± 0.03 %, 19.95 at temperature 1
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0
    c.task = "multilabel"
    c.data = dict(
        pipeline="streaming",
        name="jft",
        label="labels",  # lists of labels
        # JFT is not public. heteroscedastic/data/builders/multilabel.py describes the format;
        # `coco_labels` is a public set of this format with 80 classes. The paper uses 50,000 images
        # each for validation and test.
        splits=dict(train="train", valid="validation", test="test"),
        train="inception_crop(224)|flip_lr|value_range(-1, 1)",  # Appendix B
        eval="resize_small(256)|central_crop(224)|value_range(-1, 1)",  # usual; not stated
        validation_fraction=0.0,
        reader_shards=512,
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
        name="ResNet50V2",
        dtype="bfloat16",
        stem="imagenet",
        remat=False,
        group_size=placeholder(int),
        start="identity",
    )
    # The paper states over 17,000 classes; Sun et al. (2017), arXiv:1707.02968, count 18,291. Set
    # the number of classes of your data.
    c.head = dict(
        name="Diagonal", num_classes=18_291, temperature=0.15, noise_on="utilities", edward2=False
    )  # Appendix B
    # Eq. 5 with the samples of Appendix B; name="sigmoid" is its limit in closed form.
    c.predictive = dict(
        name="sigmoid_sampled", num_samples=1000, points="independent", chunk_size=placeholder(int)
    )
    c.smoothing = dict(name="hard")
    c.loss = dict(name="sigmoid_cross_entropy")
    c.weighting = dict(name="equal")
    # Appendix B. l2 is the coefficient of sum(w^2) (X4); Nesterov momentum is not stated.
    c.optimizer = dict(
        name="sgd",
        momentum=0.9,
        nesterov=False,
        l2=1e-3,
        covariance_l2=placeholder(float),
        decay_normalization=False,
        decay_biases=True,
        clip_norm=1.0,
        fixed=(),
    )
    # Epochs 10, 20 and 25 of 30 (Appendix B).
    c.schedule = dict(
        name="steps",
        learning_rate=0.03,
        milestones=(1 / 3, 2 / 3, 5 / 6),
        factor=0.1,
        warmup_steps=5000,
        warmup_epochs=0.0,
    )
    c.training = dict(
        batch_size=4096,
        num_epochs=30.0,
        num_steps=placeholder(int),
        checkpoint_epochs=0.1,
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

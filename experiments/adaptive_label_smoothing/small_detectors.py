"""Tables of detectors at the scale "cpu": mosaics of Tiny-ImageNet, and COCO at 256 pixels.

Their data sets are those of detection_data.py. Tables 4 and 7 of the paper are in rows.py.
"""

from experiments.adaptive_label_smoothing import detection_data
from experiments.study import Primary, Regime, Row, Scale, Table

SEEDS = tuple(range(detection_data.NUM_TEST_SETS))  # of the primary pair
FEW_SEEDS = (0, 1, 2)  # of the other rows, and of trunks that are trained

_SMALL = "mosaic_frcnn_hom"
_MOSAICS = {
    "data.name": detection_data.MOSAICS,
    # So that an interval over seeds covers other mosaics; rows of a seed have the same.
    "data.splits": dict(train="train", test="test_{seed}"),
    "data.train": "with_mirrored|value_range(-1, 1)",
    "head.num_classes": 2,
    "proposals.sizes": (8.0, 16.0, 26.0),
    "proposals.ratios": (0.5, 1.0, 2.0),
    "proposals.channels": 32,
    "proposals.num_candidates": (1000, 2000),
    "proposals.num_proposals": (64, 100),
    "proposals.num_regions": 16,
    "training.num_epochs": 5.0,  # of 375 steps, as an epoch has each of 3,000 mosaics twice
    "schedule.learning_rate": 0.1,
}
_FIXED_AS_IN_THE_PAPER = ("backbone/stem", "backbone/stage1_*", "normalization")
_FIXED_TRUNK = (*_FIXED_AS_IN_THE_PAPER, "backbone/stage2_*")

_LITE_RANGE = "value_range(-0.9921875, 1.0)"  # of the public weights
_COCO_256 = {
    "data.train": f"with_mirrored|{_LITE_RANGE}",
    "data.eval": _LITE_RANGE,
    "data.max_boxes": 64,
    "backbone": dict(name="EfficientNetLite0", dtype="float32", group_size=None),
    "proposals.sizes": (4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
    "proposals.ratios": (0.5, 1.0, 2.0),
    "proposals.channels": 128,
    "proposals.num_candidates": (600, 300),
    "proposals.num_proposals": (128, 100),
    "proposals.num_regions": 16,
    # The stem and the blocks to a stride of 16.
    "optimizer.fixed": (
        "backbone/stem",
        "backbone/block[0-9]",
        "backbone/block10",
        "normalization",
    ),
    "training.batch_size": 8,
    "training.cached_maps": True,
    # At 0.02 the tail dies: its last ReLU6 is 0 or 6 for every region.
    "schedule.learning_rate": 0.005,
}
_PUBLIC = {"warm_start.weights": "pretrained:EfficientNetLite0"}


def _from_classifier(name: str) -> Row:
    """A detector of mosaics that starts from the last checkpoint of a classifier."""
    workdir = f"{{runs}}/mosaic_classifiers/{{scale}}/{name}/untuned/seed_{{seed}}"
    return Row(name, _SMALL, {"warm_start.workdir": workdir})


def _detector_table(
    claim: str,
    rows: tuple[Row, ...],
    scale: Scale,
    reference: str | None = None,
    report: str = "test",
    primary: tuple[Primary, ...] = (),
) -> Table:
    return Table(
        claim=claim,
        rows=rows,
        metrics=("ap", "ap50", "ap75", "ar100", "detection_ece"),
        regimes={report: Regime(select=None, report=report)},
        select_metric="ap",
        scales={"cpu": scale},
        reference=reference,
        primary=primary,
    )


_PAIR = (_from_classifier("hard"), _from_classifier("adaptive"))
_ADAPTIVE_FIRST = (Primary("adaptive", "ap", "hard", "test"),)
_WITH_FIXED_TRUNK = _MOSAICS | {"optimizer.fixed": _FIXED_TRUNK, "training.cached_maps": True}
TABLES = {
    "mosaic_detectors": _detector_table(
        "A detector that starts from a classifier with adaptive smoothing, and keeps its trunk,"
        " detects objects of other classes better than one that starts from hard labels.",
        _PAIR,
        Scale(SEEDS, _WITH_FIXED_TRUNK),
        reference="hard",
        primary=_ADAPTIVE_FIRST,
    ),
    "mosaic_detectors_all": _detector_table(
        "Starts from other targets, from CutMix, and from no classifier.",
        (
            *_PAIR,
            *map(_from_classifier, ("label_smoothing", "adaptive_beta_0.25", "cutmix")),
            Row("random", _SMALL),
        ),
        Scale(FEW_SEEDS, _WITH_FIXED_TRUNK, runs="mosaic_detectors"),
        reference="hard",
    ),
    "mosaic_detectors_tuned": _detector_table(
        "A detector whose trunk is trained above the first stage is better where it starts from"
        " adaptive smoothing than from hard labels.",
        _PAIR,
        Scale(FEW_SEEDS, _MOSAICS | {"optimizer.fixed": _FIXED_AS_IN_THE_PAPER}),
        reference="hard",
        primary=_ADAPTIVE_FIRST,
    ),
    "coco_objects": _detector_table(
        "A detector that starts from ImageNet, and keeps its trunk, finds objects of COCO better"
        " than one that starts at random and keeps that.",
        (Row("imagenet", _SMALL, _PUBLIC), Row("random", _SMALL)),
        Scale(
            tuple(range(5)),
            _COCO_256
            | {
                "data.name": detection_data.OBJECTS,
                "head.num_classes": 2,
                "training.num_epochs": 20.0,
            },
        ),
        reference="random",
        primary=(Primary("imagenet", "ap", "random", "test"),),
    ),
    "coco_by_heart": _detector_table(
        "A detector learns 16 images of COCO by heart: the AP50 of its training images is above"
        " 0.9.",
        (Row("imagenet", _SMALL, _PUBLIC),),
        Scale(
            (0,),
            _COCO_256
            | {
                "data.name": detection_data.COCO,
                "data.splits": dict(train="train[:16]"),
                "data.train": _LITE_RANGE,
                "head.num_classes": 81,
                "evals": dict(train=dict(split="train", checkpoint="last", answers=None)),
                "training.num_epochs": 300.0,  # of two steps
                "schedule.warmup_epochs": 10.0,
                "training.checkpoint_epochs": 50.0,
            },
        ),
        report="train",
    ),
}

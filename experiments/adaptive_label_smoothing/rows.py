"""Tables of "One Size Doesn't Fit All: Adaptive Label Smoothing" (2021), and our questions.

Tables of the paper have the scale "paper" alone: their data are ImageNet, OpenImages and COCO. Our
tables are of Tiny-ImageNet: "gpu" has 200 classes, "cpu" a smaller network and fewer images. They
fit temperatures on images held out of the training set, also for the images without objects.
Detectors at the scale "cpu" are in small_detectors.py.
"""

from typing import Any

from experiments.adaptive_label_smoothing import detection_data, small_detectors
from experiments.study import Primary, Regime, Row, Scale, Table

_IMAGENET, _OPEN_IMAGES = "imagenet_mask_resnet50_adaptive", "open_images_mask_resnet50_adaptive"
_TINY = "tiny_imagenet_adaptive"

Overrides = dict[str, Any]

_HARD = {"smoothing": dict(name="hard")}
_CUTMIX = {"mixing": dict(name="cutmix", alpha=1.0, probability=1.0, draws="batch")}
_RICAP = {"mixing": dict(name="ricap", beta=0.3, draws="batch")}
_MIXUP = {"mixing": dict(name="mixup", alpha=0.2, draws="batch")}


def _uniform(rate: float) -> Overrides:
    return {"smoothing": dict(name="uniform", rate=rate, over="wrong")}  # reading X1


def _adaptive(beta: float = 1.0, over: str = "wrong", objectness: str = "own") -> Overrides:
    return {"smoothing": dict(name="adaptive", beta=beta, over=over, objectness=objectness)}


# The paper.

_SEEDS = (0,)  # the number of runs is not stated (reading L7)
_RANGE = "value_range((-2.1179, -2.0357, -1.8044), (2.2489, 2.4286, 2.64))"
_COLORS = f"blend_jitter|lighting|{_RANGE}"
_WHOLE_IMAGES = {"data.train": f"inception_crop(224)|flip_lr|{_COLORS}"}
# Most of these images have no boxes, so none are read and objects cannot be removed.
_OF_FULL = {
    **_WHOLE_IMAGES,
    "data.name": "imagenet2012",
    "data.extras": (),
    "data.splits": dict(
        train="train",
        test=dict(name="imagenet2012_boxes", split="validation"),
        v2=dict(name="imagenet_v2/matched-frequency", split="test"),
    ),
    "evals": {name: dict(split=name, checkpoint="last", answers=None) for name in ("test", "v2")},
}
_OF_BOXES = {
    **_WHOLE_IMAGES,
    "data.name": "imagenet2012_boxes",
    "data.with_boxes": True,
}
# Every draw of an example loses its objects with probability 0.15 (reading L11).
_CONTEXT = {"data.train": f"inception_crop(224)|flip_lr|mask_others|context(0.15)|{_COLORS}"}

_MASK_ROWS = (
    ("hard_mask", _HARD, "hard"),
    ("cutmix_mask", _HARD | _CUTMIX, "cutmix"),
    ("label_smoothing_mask", _uniform(0.1), "label_smoothing"),
    ("adaptive_beta_1_mask", _adaptive(), "adaptive_beta_1"),
    ("adaptive_beta_0.75_mask", _adaptive(0.75), "adaptive_beta_0.75"),
    ("adaptive_beta_0.25_mask", _adaptive(0.25), "adaptive_beta_0.25"),
    ("adaptive_context_mask", _adaptive() | _CONTEXT, "adaptive_context"),
)
_ALL_ROWS = (
    ("hard_full", _OF_FULL | _HARD, "hard", "1.28M"),
    ("cutmix_full", _OF_FULL | _HARD | _CUTMIX, "cutmix", "1.28M"),
    ("ricap_full", _OF_FULL | _HARD | _RICAP, "ricap", "1.28M"),
    ("hard_boxes", _OF_BOXES | _HARD, "hard", "0.474M"),
    ("cutmix_boxes", _OF_BOXES | _HARD | _CUTMIX, "cutmix", "0.474M"),
    ("label_smoothing_boxes", _OF_BOXES | _uniform(0.1), "label_smoothing", "0.474M"),
    ("adaptive_beta_1_boxes", _OF_BOXES | _adaptive(), "adaptive_beta_1", "0.474M"),
    *((*row, "0.528M") for row in _MASK_ROWS),
    # Adaptive targets of each crop, mixed by area (reading L9).
    ("adaptive_cutmix_mask", _adaptive() | _CUTMIX, "adaptive_cutmix", "0.528M"),
)

# Our metric -> the paper's column. ECE and MCE of the paper compare with bin centres (reading L5).
_COLUMNS = {
    "accuracy": "acc",
    "nll": "log_loss",
    "ece_center_100": "ece100",
    "ece_center": "ece15",
    "mce_center_100": "mce",
    "overconfidence": "o_conf",
    "underconfidence": "u_conf",
    "confidence": "a_conf",
}
_NOTE = "ResNet-50, 300 epochs; the number of runs is not stated"


def _paper_table(
    number: int,
    claim: str,
    rows: tuple[Row, ...],
    regime: Regime,
    columns: tuple[str, ...] = tuple(_COLUMNS),
    runs: str | None = None,
    where: dict[str, Any] | None = None,
    overrides: Overrides | None = None,
) -> Table:
    return Table(
        claim=claim,
        rows=rows,
        metrics=(*columns, "ece"),
        regimes={regime.report: regime},
        select_metric="nll",
        scales={"paper": Scale(_SEEDS, overrides or {}, runs=runs)},
        reference=rows[0].name,
        paper=dict(
            table=f"table_{number}",
            where=where or {},
            columns={metric: _COLUMNS[metric] for metric in columns},
            note={
                3: _NOTE.replace("ResNet-50", "ResNet-101"),
                6: _NOTE.replace("300", "72"),
            }.get(number, _NOTE),
        ),
    )


_V1, _V2 = Regime(select=None, report="test"), Regime(select=None, report="v2")
_WITHOUT_LOSS = tuple(metric for metric in _COLUMNS if metric not in ("nll", "confidence"))
_TABLE_5 = tuple(
    Row(name, _IMAGENET, overrides, paper, {"train": size})
    for name, overrides, paper, size in _ALL_ROWS
)
_TABLE_2 = tuple(Row(name, _IMAGENET, overrides, paper) for name, overrides, paper in _MASK_ROWS)
_TABLE_1 = tuple(
    row._replace(paper=row.paper.removesuffix("_beta_1"))
    for row in _TABLE_2
    if row.paper in ("hard", "label_smoothing", "cutmix", "adaptive_beta_1")
)
_TABLE_3 = tuple(row for row in _TABLE_2 if row.paper in ("hard", "adaptive_beta_1"))
_RESNET_101 = {"backbone.name": "ResNet101"}
_TABLE_6 = tuple(
    Row(name, _OPEN_IMAGES, overrides, paper)
    for name, overrides, paper in _MASK_ROWS
    if paper not in ("cutmix", "adaptive_beta_0.75")
)


def _paper_tables() -> dict[str, Table]:
    """Tables 1, 2, 3, 5 and 6; `_v1` and `_v2` are of the same runs."""
    tables = {
        "table_1": _paper_table(
            1,
            "Without objects, confidence is low only under adaptive smoothing.",
            _TABLE_1,
            Regime(select=None, report="context"),
            ("accuracy", "overconfidence", "underconfidence", "confidence"),
            runs="table_5_v1",
        )
    }
    for val, regime in (("V1", _V1), ("V2", _V2)):
        suffix, where = val.lower(), {"val": val}
        tables |= {
            f"table_2_{suffix}": _paper_table(
                2,
                f"Smoothing on ImageNet with one object per image: {val}.",
                _TABLE_2,
                regime,
                _WITHOUT_LOSS,
                runs="table_5_v1",
                where=where,
            ),
            f"table_3_{suffix}": _paper_table(
                3,
                f"The same with ResNet-101: {val}.",
                _TABLE_3,
                regime,
                _WITHOUT_LOSS,
                runs="table_3_v1" if val == "V2" else None,
                where=where,
                overrides=_RESNET_101,
            ),
            f"table_5_{suffix}": _paper_table(
                5,
                f"All classifiers of ImageNet: {val}.",
                _TABLE_5,
                regime,
                runs="table_5_v1" if val == "V2" else None,
                where=where,
            ),
        }
    for split, val in (("valid", "Val"), ("test", "Test")):
        tables[f"table_6_{split}"] = _paper_table(
            6,
            f"Classifiers of OpenImages: {split}.",
            _TABLE_6,
            Regime(select=None, report=split),
            runs="table_6_valid" if split == "test" else None,
            where={"val": val},
        )
    return tables


# Numbers of the paper's text: a mean objectness of 0.49, a deviation of 0.24 against 0.42.
_OBJECTNESS = Table(
    claim="The confidence of adaptive smoothing is closer to objectness than that of hard labels.",
    rows=tuple(row for row in _TABLE_2 if row.paper in ("hard", "adaptive_beta_1")),
    metrics=("objectness_deviation", "objectness", "confidence"),
    regimes={split: Regime(select=None, report=split) for split in ("test", "whole")},
    select_metric="nll",
    scales={"paper": Scale(_SEEDS, runs="table_5_v1")},
    reference=_TABLE_2[0].name,
)

# The classifier that each row of tables 4 and 7, detection on COCO, starts from: a row of table 5
# or of table 6, by the paper's id, data set and size.
DETECTOR_STARTS = {
    **{
        (row.paper, "ImageNet", row.where["train"]): ("table_5_v1", row.name)
        for row in _TABLE_5
        if row.name not in ("cutmix_boxes", "label_smoothing_boxes")
    },
    **{(row.paper, "OpenImages", "1.20M"): ("table_6_valid", row.name) for row in _TABLE_6},
}

_AP = {
    "ap": "ap",
    "ap50": "ap50",
    "ap75": "ap75",
    "ap_small": "ap_small",
    "ap_medium": "ap_medium",
    "ap_large": "ap_large",
}


def _detector(paper: str, data: str, size: str, where: dict[str, Any]) -> Row:
    """A detector on COCO that starts from the last checkpoint of a classifier of this scale."""
    table, start = DETECTOR_STARTS[paper, data, size]
    workdir = f"{{runs}}/{table}/{{scale}}/{start}/untuned/seed_{{seed}}"
    name = start if data == "ImageNet" else f"{start}_open_images"
    return Row(name, "coco_frcnn_hom", {"warm_start.workdir": workdir}, paper, where)


def _coco_table(
    number: int, claim: str, rows: tuple[Row, ...], columns: dict[str, str], runs: str | None = None
) -> Table:
    return Table(
        claim=claim,
        rows=rows,
        metrics=(*columns, "detection_ece"),
        regimes={"test": Regime(select=None, report="test")},
        select_metric="ap",
        scales={"paper": Scale(_SEEDS, runs=runs)},
        reference=rows[0].name,
        paper=dict(
            table=f"table_{number}",
            where={},
            columns=columns,
            note="Faster R-CNN with ResNet-50, 10 epochs; the number of runs is not stated",
        ),
    )


_COCO_TABLES = {
    "table_7": _coco_table(
        7,
        "Detection on COCO from every classifier.",
        tuple(
            _detector(paper, data, size, {"pretrain": data, "size": size})
            for paper, data, size in DETECTOR_STARTS
        ),
        _AP,
    ),
    "table_4": _coco_table(
        4,
        "Detection on COCO from classifiers of ImageNet with one object per image.",
        tuple(_detector(paper, "ImageNet", "0.528M", {}) for _, _, paper in _MASK_ROWS),
        {"ap": "ap", "ap50": "ap50", "ap75": "ap75", "ar100": "ar"},
        runs="table_7",
    ),
}

# Tiny-ImageNet.

_REGIMES = {
    "images": Regime(select=None, report="test", fit="valid"),
    "objects removed": Regime(
        select=None,
        report="context",
        fit="valid",
        metrics=(
            "confidence",
            "scaled_confidence",
            "accuracy",
            "overconfidence",
            "underconfidence",
        ),
    ),
}
_METRICS = (
    "accuracy",
    "confidence",
    "overconfidence",
    "underconfidence",
    "nll",
    "scaled_nll",
    "brier",
    "ece",
    "scaled_ece",
    "objectness_deviation",
)
_SCALED_METRICS = (
    "accuracy",
    "confidence",
    "scaled_confidence",
    "overconfidence",
    "scaled_overconfidence",
    "objectness_deviation",
    "scaled_objectness_deviation",
    "scaled_ece",
)
_CROP = "inception_crop({}, min_area=0.25)|flip_lr|"


def _data(size: int, train: str) -> Overrides:
    """Crops and images of `size` pixels, of which the training set is `train`."""
    evaluated = f"resize({size})|value_range(-1, 1)"
    without_objects = f"resize({size})|context(1.0)|value_range(-1, 1)"
    return {
        "data.splits": dict(
            train=train,
            valid="train[90%:]",
            test="validation",
            context=dict(split="validation", eval=without_objects),
        ),
        "data.train": _CROP.format(size) + "value_range(-1, 1)",
        "data.eval": evaluated,
    }


def _on_cpu(num_classes: int, train: str) -> Overrides:
    return {
        **_data(32, train),
        "data.max_classes": num_classes,
        "head.num_classes": num_classes,
        "backbone": dict(name="ResNet8"),
        "training.num_epochs": 30.0,
    }


def _context(size: int) -> Overrides:
    return {"data.train": _CROP.format(size) + "context(0.15)|value_range(-1, 1)"}


# The mean of 1 - objectness of the crops, over three epochs on a CPU and one epoch on a GPU; the
# code is in README.md.
_MEAN_ALPHA = {"cpu": 0.345, "gpu": 0.386}
_NOISE_HEAD = {
    "head.name": "LowRank",
    "head.num_factors": 6,
    "head.temperature": 1.0,
    "predictive": dict(name="softmax", num_samples=128, points="sobol"),
}
_REFERENCES = (
    Row("hard", _TINY, _HARD),
    Row("label_smoothing", _TINY, _uniform(0.1)),
    Row("adaptive", _TINY, _adaptive()),
)
_CONTEXT_ONLY = (
    *_REFERENCES,
    Row("cutmix", _TINY, _HARD | _CUTMIX),
    Row("adaptive_context", _TINY, _adaptive() | _context(64)),
    Row("adaptive_context_small", _TINY, _adaptive() | _context(32)),
    # As soft on average, but equally for each example.
    Row("uniform_mean_alpha", _TINY, _uniform(_MEAN_ALPHA["gpu"])),
    Row("uniform_mean_alpha_small", _TINY, _uniform(_MEAN_ALPHA["cpu"])),
    # As soft for each batch, but by another image.
    Row("adaptive_next", _TINY, _adaptive(objectness="next")),
)
_VARIANTS = (
    *_REFERENCES,
    Row("adaptive_beta_0.75", _TINY, _adaptive(0.75)),
    Row("adaptive_beta_0.25", _TINY, _adaptive(0.25)),
    Row("adaptive_all", _TINY, _adaptive(over="all")),
    Row("mixup", _TINY, _HARD | _MIXUP),
    Row("ricap", _TINY, _HARD | _RICAP),
    Row("adaptive_cutmix", _TINY, _adaptive() | _CUTMIX),
    Row("het_full", _TINY, _HARD | _NOISE_HEAD),
    Row("het_full_adaptive", _TINY, _adaptive() | _NOISE_HEAD),
)
_GPU_SEEDS = (0, 1, 2)


def _tiny_table(
    claim: str,
    rows: tuple[Row, ...],
    cpu: Scale,
    runs_on_gpu: str | None = None,
    primary: tuple[Primary, ...] = (),
) -> Table:
    names = [row.name for row in rows]
    at_gpu = tuple(name for name in names if not name.endswith("_small"))
    at_cpu = tuple(name for name in names if f"{name}_small" not in names)
    return Table(
        claim=claim,
        rows=rows,
        metrics=_METRICS,
        regimes=_REGIMES,
        select_metric="nll",
        scales={
            "cpu": cpu._replace(rows=at_cpu),
            "gpu": Scale(_GPU_SEEDS, _data(64, "train[:90%]"), runs=runs_on_gpu, rows=at_gpu),
        },
        reference="adaptive",
        primary=primary,
    )


# The classifiers that detectors of mosaics start from: twelve epochs of about 9,000 images. Their
# last checkpoint is used, so nothing is validated.
_ON_MOSAIC_CLASSES = {
    **_on_cpu(detection_data.FIRST_CLASS, "train[:90%]"),
    "data.splits": dict(train="train[:90%]", valid="train[90%:]", test="validation"),
    "training.batch_size": 32,
    "training.num_epochs": 12.0,
    "schedule.learning_rate": 0.05,
    "schedule.warmup_epochs": 0.5,
    "validation": None,
    "evals": {
        name: dict(split=name, checkpoint="last", answers=None) for name in ("valid", "test")
    },
}


def _mosaic_classifiers(
    claim: str, rows: tuple[Row, ...], seeds: tuple[int, ...], runs: str | None = None
) -> Table:
    return Table(
        claim=claim,
        rows=rows,
        metrics=_METRICS,
        regimes={"images": _REGIMES["images"]},
        select_metric="nll",
        scales={"cpu": Scale(seeds, _ON_MOSAIC_CLASSES, runs=runs)},
        reference="hard",
    )


_PAIR = (Row("hard", _TINY, _HARD), Row("adaptive", _TINY, _adaptive()))
_MOSAIC_CLASSIFIERS = {
    "mosaic_classifiers": _mosaic_classifiers(
        "The classifiers from which the compared detectors of mosaics start.",
        _PAIR,
        small_detectors.SEEDS,
    ),
    "mosaic_classifiers_all": _mosaic_classifiers(
        "The classifiers from which all detectors of mosaics start.",
        (
            *_PAIR,
            Row("label_smoothing", _TINY, _uniform(0.1)),
            Row("adaptive_beta_0.25", _TINY, _adaptive(0.25)),
            Row("cutmix", _TINY, _HARD | _CUTMIX),
        ),
        small_detectors.FEW_SEEDS,
        runs="mosaic_classifiers",
    ),
}

TABLES = (
    _paper_tables()
    | _COCO_TABLES
    | _MOSAIC_CLASSIFIERS
    | small_detectors.TABLES
    | {"objectness": _OBJECTNESS}
    | {
        "context_only": _tiny_table(
            "Adaptive smoothing lowers the confidence where objects are removed, more than uniform"
            " smoothing of the same mean does.",
            _CONTEXT_ONLY,
            Scale((0, 1, 2, 3, 4), _on_cpu(80, "train[:50%]")),
            primary=tuple(
                Primary("adaptive", "confidence", control, "objects removed")
                for control in ("uniform_mean_alpha", "uniform_mean_alpha_small")  # by scale
            ),
        ),
        "variants": _tiny_table(
            "The strength and the form of adaptive smoothing, mixing, and a noise head.",
            _VARIANTS,
            Scale((0, 1, 2), _on_cpu(20, "train[:90%]")),
            runs_on_gpu="context_only",  # which has the references
        ),
        "variants_scaled": Table(
            claim="Adaptive targets are less overconfident than hard ones, and their confidence is"
            " closer to objectness, also after temperature scaling.",
            rows=(*_REFERENCES, Row("cutmix", _TINY, _HARD | _CUTMIX)),
            metrics=_SCALED_METRICS,
            regimes={"images": _REGIMES["images"]},
            select_metric="nll",
            scales={"cpu": Scale((0, 1, 2), _on_cpu(20, "train[:90%]"), runs="variants")},
            reference="hard",
            primary=tuple(
                Primary("adaptive", metric, "hard", "images")
                for metric in ("scaled_overconfidence", "scaled_objectness_deviation")
            ),
            changed="the accuracy was added, which explains the confidence of CutMix.",
        ),
    }
)

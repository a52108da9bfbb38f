"""Backbones trained under each head, fine-tuned with a plain one: section 4.2, Table 6.

    python -m experiments.run --study=correlated_label_noise --table=transfer_upstream
    python -m experiments.run --study=correlated_label_noise --table=transfer_rate
    python -m experiments.run --study=correlated_label_noise --table=transfer
    python -m experiments.table --study=correlated_label_noise --table=transfer

The second tries learning rates on held-out examples; it and the third make runs that start from
those of the first and, as the first, continue where they stopped; the last prints for each upstream
head the mean accuracy over tasks, of all and of each group, and every task, in %: mean and standard
deviation over the seeds that every head has, and the difference from the first head paired by seed,
± half its 95 % interval, with p of an unpaired t-test. A row is named TASK_from_HEAD and starts
from that head's run of the same seed. These tables are of a CPU's size; the paper's own, 19 tasks
of VTAB-1k, is

    python -m experiments.run --study=correlated_label_noise --table=table_6 --scale=paper

where --rows 'cifar100_*' 'dtd_*' makes some tasks alone. With --scale=try, minutes show that all
works.
"""

from typing import Any

import numpy as np

from experiments import study
from experiments.study import Regime, Row, Scale, Table
from experiments.table import paper_number, unpaired_p
from heteroscedastic.analysis.report.comparison import difference, spread
from heteroscedastic.data.storage import vtab

_SMALL = 96  # pixels a side, below which BiT takes the smaller resolution
_NO_FLIP = ("svhn",)
# Distances, counts, places and angles: a crop or a mirror changes them.
_NO_CROP = tuple(name for name, task in vtab.TASKS.items() if task.group == "structured")
_BACKBONE = dict(name="ResNet8")  # of the runs that a CPU can make
_UPSTREAM = "{runs}/transfer_upstream/{scale}/%s/untuned/seed_{seed}"
_JFT = "{runs}/table_3_jft/{scale}/%s/untuned/seed_{seed}"
_REGIMES = {"1,000 examples": Regime(select=None, report="test")}


def num_steps(num_examples: int) -> int:
    """Of fine-tuning on so many training examples.

    Source: BiT-HyperRule, arXiv:1912.11370, section 3.3.
    """
    return 500 if num_examples < 20_000 else 10_000 if num_examples < 500_000 else 20_000


def of_vtab(name: str) -> dict[str, Any]:
    """The overrides of configs/vtab.py for a task."""
    task = vtab.TASKS[name]
    large, small = (160, 128) if task.side and task.side < _SMALL else (448, 384)
    varied = f"resize({small})" if name in _NO_CROP else f"resize({large})|random_crop({small})"
    flipped = "" if name in _NO_CROP + _NO_FLIP else "|flip_lr"
    return {
        "data.name": f"vtab_{name}",
        "data.train": f"{varied}{flipped}|value_range(-1, 1)",
        "data.eval": f"resize({small})|value_range(-1, 1)",
        "head.num_classes": task.num_classes,
        "training.num_steps": num_steps(vtab.NUM_TRAIN + vtab.NUM_VALID),
    }


def _at_hand(
    name: str, splits: dict[str, str], colour: str = "", mirror: str = ""
) -> dict[str, Any]:
    """Images of a set of ten classes, at the 32 pixels of the upstream runs."""
    return {
        "data": dict(
            name=name,
            splits=splits,
            # The crop is 4/5 of the side, as BiT's 128 of 160.
            train=f"{colour}resize(40)|random_crop(32)|{mirror}value_range(-1, 1)",
            eval=f"{colour}resize(32)|value_range(-1, 1)",
            validation_fraction=0.0,
        ),
        "head.num_classes": 10,
        "backbone": _BACKBONE,
    }


def _rows(
    tasks: dict[str, dict[str, Any]], upstream: dict[str, tuple[str, str | None]]
) -> tuple[Row, ...]:
    """Every task from every head; `upstream` has the directory of its run and the paper's row."""
    return tuple(
        Row(f"{task}_from_{head}", "vtab", overrides | {"init.workdir": workdir}, paper)
        for task, overrides in tasks.items()
        for head, (workdir, paper) in upstream.items()
    )


_HEADS = ("hom", "het_diag", "het_full")
_TINY_IMAGENET = {
    "data.max_classes": 50,
    "data.train": "resize(32)|pad_crop(4)|flip_lr|value_range(-1, 1)",
    "data.eval": "resize(32)|value_range(-1, 1)",
    "head.num_classes": 50,
    "backbone": _BACKBONE,
}
_DIAGONAL = {
    "head": dict(name="Diagonal", num_classes=50, temperature=1.0),
    "predictive": dict(name="softmax", num_samples=128, points="sobol"),
}
_TUNED_ON = {"cifar10": dict(mirror="flip_lr|"), "digits": dict(colour="to_rgb|")}
_AT_HAND = _TUNED_ON | {"fashion_mnist": dict(colour="to_rgb|", mirror="flip_lr|")}
_FIRST_1000 = dict(train="train[:1000]", test="test")
_HELD_OUT = dict(train="train[:800]", test="train[800:1000]")  # of the same 1,000
_CLAIM = (
    "A backbone that was trained under a heteroscedastic head transfers better, under a plain one."
)


def accuracies(
    chosen: Table, tuned: dict[tuple[str, int], study.Made]
) -> dict[str, dict[str, dict[int, float]]]:
    """Of each head and task, by seed, the accuracy on the test images."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in chosen.rows:
        task, _, head = row.name.partition("_from_")
        of_task = found.setdefault(head, {}).setdefault(task, {})
        of_task |= {
            s: made.results["evals"]["test"]["accuracy"]
            for (name, s), made in tuned.items()
            if name == row.name
        }
    return found


def by_head(
    chosen: Table, tuned: dict[tuple[str, int], study.Made], numbers: dict[str, Any]
) -> list[str]:
    """The layout of a table whose rows are tasks from heads, of which the paper has means over
    all.
    """
    (regime,) = chosen.regimes.values()
    rows = {row.name.partition("_from_")[2]: row for row in chosen.rows if chosen.paper}
    paper = {
        head: paper_number(chosen, regime, row, "accuracy", numbers) for head, row in rows.items()
    }
    return text(accuracies(chosen, tuned), paper)


def scores(
    found: dict[str, dict[str, dict[int, float]]], tasks: list[str]
) -> dict[str, dict[int, float]]:
    """Of each head, by seed, the unweighted mean over tasks in %; of the seeds that every head has
    of every task.
    """
    seeds = (
        set.intersection(*(set(of_head[task]) for of_head in found.values() for task in tasks))
        if tasks
        else set()
    )
    return {
        head: {
            seed: 100 * float(np.mean([of_head[task][seed] for task in tasks]))
            for seed in sorted(seeds)
        }
        for head, of_head in found.items()
    }


def text(found: dict[str, dict[str, dict[int, float]]], paper: dict[str, str]) -> list[str]:
    """Means over tasks, of all and by group, and every task, in Markdown; the first head is the
    reference.

    Args:
      found: as of `accuracies`.
      paper: its number of a head, for the mean over all tasks; not told beside a mean over fewer.
    """
    tasks = list(next(iter(found.values())))
    seeds = {task: set(next(iter(scores(found, [task]).values()))) for task in tasks}
    wanted = set.union(*seeds.values())
    whole = [task for task in tasks if wanted and seeds[task] == wanted]
    groups = {"all": whole}
    for task in whole:
        if task in vtab.TASKS:
            groups.setdefault(vtab.TASKS[task].group, []).append(task)
    lines = []
    if len(groups) > 1 or len(whole) > 1:
        columns = {f"{name} ({len(of)})": of for name, of in groups.items()}
        lines += [*_table("mean over", columns, found, paper if whole == tasks else {}), ""]
    if any(seeds.values()):
        lines += [*_table("task", {task: [task] for task in tasks if seeds[task]}, found, {}), ""]
    if whole != tasks:
        told = ", ".join(
            f"{task} ({len(seeds[task])} of {len(wanted)} seeds)"
            for task in tasks
            if task not in whole
        )
        lines.append(f"Not complete for every head, and in no mean: {told}.")
        if paper:
            theirs = ", ".join(f"{number} from {head}" for head, number in paper.items())
            lines.append(f"The paper's mean over all {len(tasks)}: {theirs}.")
    return lines


def _table(title, columns, found, paper):
    by_column = [scores(found, tasks) for tasks in columns.values()]
    reference = next(iter(found))
    heads = [title, *columns, *(["paper, all"] if paper else [])]
    num_seeds = ["seeds", *(str(len(of[reference])) for of in by_column), *(["-"] if paper else [])]
    lines = [
        "| " + " | ".join(heads) + " |",
        "|" + " --- |" * len(heads),
        "| " + " | ".join(num_seeds) + " |",
    ]
    for head in found:
        cells = [f"from {head}"]
        for of in by_column:
            ours, theirs = of[head], of[reference]
            cell = spread(list(ours.values()), 2)
            if head != reference:
                p = unpaired_p(list(ours.values()), list(theirs.values()))
                cell += f" ({difference(ours, theirs, 2)}" + (
                    ")" if np.isnan(p) else f", p {p:.2g})"
                )
            cells.append(cell)
        lines.append("| " + " | ".join(cells + ([paper.get(head, "-")] if paper else [])) + " |")
    return lines


TABLES = {
    "table_6": Table(
        claim=_CLAIM,
        rows=_rows(
            {name: of_vtab(name) for name in vtab.TASKS},
            {
                "hom": (_JFT % "hom", "homoscedastic"),
                "het_diag": (_JFT % "het_diag", "het_diag"),
                "het_pe": (_JFT % "het_pe", "het_pe"),
            },
        ),
        metrics=("accuracy",),
        regimes=_REGIMES,
        select_metric="nll",
        scales={"paper": Scale((0, 1, 2, 3, 4))},
        paper=dict(
            table="table_6", where={}, columns={"accuracy": "vtab1k"}, note="the same settings"
        ),
        layout=by_head,
    ),
    "transfer_upstream": Table(
        claim="Backbones to start from: 50 classes of Tiny-ImageNet at 32 pixels, every head at temperature 1.",
        rows=(
            Row("hom", "tiny_imagenet_hom", _TINY_IMAGENET),
            Row("het_diag", "tiny_imagenet_hom", _TINY_IMAGENET | _DIAGONAL),
            Row("het_full", "tiny_imagenet_het_full", _TINY_IMAGENET | {"head.temperature": 1.0}),
        ),
        metrics=("accuracy", "top5_accuracy", "nll", "scaled_nll", "ece", "scaled_ece"),
        regimes={"last epoch": Regime(select=None, report="test", fit="valid")},
        select_metric="nll",
        scales={
            "cpu": Scale((0, 1, 2, 3, 4), {"training.num_epochs": 30.0}),
            "try": Scale((0,), {"training.num_epochs": 2.0}),
        },
        reference="hom",
        test="unpaired t-test",
    ),
    # From the plain head's backbone, so that what is chosen suits the reference.
    "transfer_rate": Table(
        claim="A rate of fine-tuning for networks of a CPU's size, found without the test images.",
        rows=_rows(
            {name: _at_hand(name, _HELD_OUT, **ops) for name, ops in _TUNED_ON.items()},
            {"hom": (_UPSTREAM % "hom", None)},
        ),
        metrics=("accuracy", "nll"),
        regimes={"200 held-out examples": Regime(select="test", report="test")},
        select_metric="nll",
        grid={"schedule.learning_rate": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)},  # BiT's first
        scales={"cpu": Scale((0,), {"training.batch_size": 128})},
    ),
    "transfer": Table(
        claim=_CLAIM,
        rows=_rows(
            {name: _at_hand(name, _FIRST_1000, **ops) for name, ops in _AT_HAND.items()},
            {head: (_UPSTREAM % head, None) for head in _HEADS},
        ),
        metrics=("accuracy", "nll"),
        regimes=_REGIMES,
        select_metric="nll",
        scales={
            # A rule has one rate for all tasks: that of transfer_rate with the lowest NLL, the mean
            # over its two. BiT's is a 33rd of it; a new head on 64 features moves too slowly by
            # that.
            "cpu": Scale(
                (0, 1, 2, 3, 4), {"training.batch_size": 128, "schedule.learning_rate": 0.1}
            ),
            "try": Scale((0,), {"training.batch_size": 128, "training.num_steps": 16}),
        },
        layout=by_head,
    ),
}

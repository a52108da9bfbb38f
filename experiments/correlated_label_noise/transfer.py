"""Backbones trained with each head and fine-tuned with a deterministic one: section 4.2, Table 6.

    python -m experiments.run --study=correlated_label_noise --table=transfer_upstream
    python -m experiments.run --study=correlated_label_noise --table=transfer_rate
    python -m experiments.run --study=correlated_label_noise --table=transfer
    python -m experiments.table --study=correlated_label_noise --table=transfer

The first command trains the backbones. The second tunes the learning rate on held-out examples; the
second and the third start from the runs of the first. The last prints for each upstream head the
accuracy of every task and the mean over tasks, in total and per group, in %: mean and standard
deviation over the seeds that every head has, and the difference from the first head paired by seed,
± half its 95 % interval, with the p-value of an unpaired t-test. The row TASK_from_HEAD starts from
the run of that head with the same seed. These tables are sized for a CPU. The paper's table, 19
tasks of VTAB-1k, is

    python -m experiments.run --study=correlated_label_noise --table=table_6 --scale=paper

and --rows 'cifar100_*' 'dtd_*' trains selected tasks. --scale=try is a test run of a few minutes.
"""

from typing import Any

import numpy as np

from experiments import paper_numbers, statistics, study
from experiments.study import Regime, Row, Scale, Table
from heteroscedastic.analysis.report.comparison import spread
from heteroscedastic.data.storage import vtab

_SMALL = 96  # image side in pixels below which BiT uses the smaller resolution
_NO_FLIP = ("svhn",)
# Distances, counts, positions and angles: a crop or a flip changes them.
_NO_CROP = tuple(name for name, task in vtab.TASKS.items() if task.group == "structured")
_BACKBONE = dict(name="ResNet8")  # of the runs at CPU scale
_UPSTREAM = "{runs}/transfer_upstream/{scale}/%s/untuned/seed_{seed}"
_JFT = "{runs}/table_3_jft/{scale}/%s/untuned/seed_{seed}"
_REGIMES = {"1,000 examples": Regime(select=None, report="test")}


def num_steps(num_examples: int) -> int:
    """The number of fine-tuning steps for a number of training examples.

    Source: BiT-HyperRule, arXiv:1912.11370, section 3.3.
    """
    return 500 if num_examples < 20_000 else 10_000 if num_examples < 500_000 else 20_000


def vtab_overrides(name: str) -> dict[str, Any]:
    """The overrides of configs/vtab.py for a task of VTAB."""
    task = vtab.TASKS[name]
    large, small = (160, 128) if task.side and task.side < _SMALL else (448, 384)
    crop = f"resize({small})" if name in _NO_CROP else f"resize({large})|random_crop({small})"
    flip = "" if name in _NO_CROP + _NO_FLIP else "|flip_lr"
    return {
        "data.name": f"vtab_{name}",
        "data.train": f"{crop}{flip}|value_range(-1, 1)",
        "data.eval": f"resize({small})|value_range(-1, 1)",
        "head.num_classes": task.num_classes,
        "training.num_steps": num_steps(vtab.NUM_TRAIN + vtab.NUM_VALID),
    }


def _small_overrides(
    name: str, splits: dict[str, str], colour: str = "", flip: str = ""
) -> dict[str, Any]:
    """Overrides for a data set of ten classes, at the 32 pixels of the upstream runs."""
    return {
        "data": dict(
            name=name,
            splits=splits,
            # The crop is 4/5 of the side, as BiT's 128 of 160 pixels.
            train=f"{colour}resize(40)|random_crop(32)|{flip}value_range(-1, 1)",
            eval=f"{colour}resize(32)|value_range(-1, 1)",
            validation_fraction=0.0,
        ),
        "head.num_classes": 10,
        "backbone": _BACKBONE,
    }


def _rows(
    tasks: dict[str, dict[str, Any]], upstream: dict[str, tuple[str, str | None]]
) -> tuple[Row, ...]:
    """Every task from every head.

    Args:
      tasks: task -> overrides.
      upstream: head -> directory of its run, and id of the paper's row.
    """
    return tuple(
        Row(f"{task}_from_{head}", "vtab", overrides | {"warm_start.workdir": workdir}, paper)
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
_TUNING_TASKS = {"cifar10": dict(flip="flip_lr|"), "digits": dict(colour="to_rgb|")}
_SMALL_TASKS = _TUNING_TASKS | {"fashion_mnist": dict(colour="to_rgb|", flip="flip_lr|")}
_FIRST_1000 = dict(train="train[:1000]", test="test")
_HELD_OUT = dict(train="train[:800]", test="train[800:1000]")  # of the same 1,000
_CLAIM = (
    "A backbone that was trained with a heteroscedastic head transfers better to tasks with a"
    " deterministic head."
)


def accuracies(
    chosen: Table, tuned: study.ResultsByRowAndSeed
) -> dict[str, dict[str, dict[int, float]]]:
    """Test accuracies: head -> task -> seed -> accuracy."""
    by_head: dict[str, dict[str, dict[int, float]]] = {}
    for row in chosen.rows:
        task, _, head = row.name.partition("_from_")
        by_seed = by_head.setdefault(head, {}).setdefault(task, {})
        by_seed |= {
            seed: result.results["evals"]["test"]["accuracy"]
            for (name, seed), result in tuned.items()
            if name == row.name
        }
    return by_head


def layout_by_head(
    chosen: Table, tuned: study.ResultsByRowAndSeed, numbers: dict[str, Any]
) -> list[str]:
    """The layout of a table whose rows are pairs of task and head; see study.Table.layout."""
    (regime,) = chosen.regimes.values()
    rows = {row.name.partition("_from_")[2]: row for row in chosen.rows if chosen.paper}
    paper = {
        head: paper_numbers.as_printed(
            paper_numbers.matching_row(chosen, row, numbers),
            paper_numbers.column(chosen, regime, "accuracy"),
        )
        for head, row in rows.items()
    }
    return text(accuracies(chosen, tuned), paper)


def scores(
    by_head: dict[str, dict[str, dict[int, float]]], tasks: list[str]
) -> dict[str, dict[int, float]]:
    """The unweighted mean accuracy over tasks in %: head -> seed -> mean.

    Only seeds that every head has for every task are included.
    """
    seeds = (
        set.intersection(*(set(by_task[task]) for by_task in by_head.values() for task in tasks))
        if tasks
        else set()
    )
    return {
        head: {
            seed: 100 * float(np.mean([by_task[task][seed] for task in tasks]))
            for seed in sorted(seeds)
        }
        for head, by_task in by_head.items()
    }


def text(by_head: dict[str, dict[str, dict[int, float]]], paper: dict[str, str]) -> list[str]:
    """Means over all tasks and per group, and every task, in Markdown.

    Args:
      by_head: as returned by `accuracies`; the first head is the reference.
      paper: head -> the paper's mean over all tasks; printed in the table only if all tasks are
        complete.
    """
    tasks = list(next(iter(by_head.values())))
    seeds = {task: set(next(iter(scores(by_head, [task]).values()))) for task in tasks}
    all_seeds = set.union(*seeds.values())
    complete = [task for task in tasks if all_seeds and seeds[task] == all_seeds]
    groups = {"all": complete}
    for task in complete:
        if task in vtab.TASKS:
            groups.setdefault(vtab.TASKS[task].group, []).append(task)
    lines = []
    if len(groups) > 1 or len(complete) > 1:
        columns = {f"{name} ({len(members)})": members for name, members in groups.items()}
        lines += [*_table("mean over", columns, by_head, paper if complete == tasks else {}), ""]
    if any(seeds.values()):
        lines += [*_table("task", {task: [task] for task in tasks if seeds[task]}, by_head, {}), ""]
    if complete != tasks:
        incomplete = ", ".join(
            f"{task} ({len(seeds[task])} of {len(all_seeds)} seeds)"
            for task in tasks
            if task not in complete
        )
        lines.append(f"Incomplete for some head, and excluded from means: {incomplete}.")
        if paper:
            theirs = ", ".join(f"{number} from {head}" for head, number in paper.items())
            lines.append(f"The paper's mean over all {len(tasks)}: {theirs}.")
    return lines


def _table(title, columns, by_head, paper):
    by_column = [scores(by_head, tasks) for tasks in columns.values()]
    reference, differences = next(iter(by_head)), statistics.Differences()
    heads = [title, *columns, *(["paper, all"] if paper else [])]
    counts = [str(len(means[reference])) for means in by_column]
    num_seeds = ["seeds", *counts, *(["-"] if paper else [])]
    lines = [
        "| " + " | ".join(heads) + " |",
        "|" + " --- |" * len(heads),
        "| " + " | ".join(num_seeds) + " |",
    ]
    for head in by_head:
        cells = [f"from {head}"]
        for column, means in zip(columns, by_column, strict=True):
            ours, theirs = means[head], means[reference]
            cell = spread(list(ours.values()), 2)
            if head != reference:
                p = statistics.unpaired_p(list(ours.values()), list(theirs.values()))
                cell += f" ({differences.cell(column, ours, theirs, 2)}" + (
                    ")" if np.isnan(p) else f", p {p:.2g})"
                )
            cells.append(cell)
        lines.append("| " + " | ".join(cells + ([paper.get(head, "-")] if paper else [])) + " |")
    note = differences.detectable()
    return lines + (["", *note] if note else [])


TABLES = {
    "table_6": Table(
        claim=_CLAIM,
        rows=_rows(
            {name: vtab_overrides(name) for name in vtab.TASKS},
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
        layout=layout_by_head,
    ),
    "transfer_upstream": Table(
        claim="Backbones for transfer: 50 classes of Tiny-ImageNet at 32 pixels, every head at"
        " temperature 1.",
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
    # From the backbone of the deterministic head, so that the selected rate suits the reference.
    "transfer_rate": Table(
        claim="A learning rate for fine-tuning at CPU scale, tuned without the test images.",
        rows=_rows(
            {name: _small_overrides(name, _HELD_OUT, **ops) for name, ops in _TUNING_TASKS.items()},
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
            {
                name: _small_overrides(name, _FIRST_1000, **ops)
                for name, ops in _SMALL_TASKS.items()
            },
            {head: (_UPSTREAM % head, None) for head in _HEADS},
        ),
        metrics=("accuracy", "nll"),
        regimes=_REGIMES,
        select_metric="nll",
        scales={
            # BiT's rule has one learning rate for all tasks. This one has the lowest mean NLL over
            # the two tasks of transfer_rate. BiT's rate is 33 times smaller, which is too slow for
            # a new head on 64 features.
            "cpu": Scale(
                (0, 1, 2, 3, 4), {"training.batch_size": 128, "schedule.learning_rate": 0.1}
            ),
            "try": Scale((0,), {"training.batch_size": 128, "training.num_steps": 16}),
        },
        layout=layout_by_head,
        changed="the task Fashion-MNIST was chosen.",
    ),
}

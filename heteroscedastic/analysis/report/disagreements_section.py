"""The section about the images that only a run with noise classifies correctly."""

from typing import Any

from heteroscedastic.analysis.errors import disagreements as disagreements_lib
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.runs import loaded_run as loaded_run_lib

_NUM_IMAGES = 12
_TITLE = "Images that only one head classifies correctly"
_RANKINGS = {
    "covariance": "absolute covariance",
    "seen": "p₂ var(u₁\u00a0\u2212\u00a0u₂)",
    "probability": "probability alone",
}


def disagreements(run_set: RunSet) -> Section:
    """The images on which a run with noise and a run without noise disagree, for one seed.

    Requires one group with noise and one without.
    """
    noisy = [g for g in run_set.groups if loaded_run_lib.has_noise(g.runs[0].config)]
    plain = [group for group in run_set.groups if group not in noisy]
    if len(noisy) != 1 or len(plain) != 1:
        return Section(
            _TITLE,
            [
                page.note(
                    "This section requires one group with a noise head and one without; there are"
                    f" {len(noisy)} with noise and {len(plain)} without."
                )
            ],
        )
    het, hom = noisy[0], plain[0]
    directories = [{run.config["seed"]: run.directory for run in g.runs} for g in (het, hom)]
    seeds = sorted(set(directories[0]) & set(directories[1]))
    if not seeds:
        return Section(_TITLE, [page.note(f"{het.name} and {hom.name} have no seed in common.")])
    first, second = (paths[seeds[0]] for paths in directories)
    try:
        examples, loaded_run = disagreements_lib.find(
            first, second, run_set.evaluation, run_set.data_dir
        )
    except loaded_run_lib.UNAVAILABLE as error:
        return Section(
            _TITLE, [page.note(f"{het.name} and {hom.name} cannot be compared: {error}")]
        )
    names, facts = figures.class_names(loaded_run.dataset), disagreements_lib.summary(examples)
    top = disagreements_lib.covariance_order(examples)[:_NUM_IMAGES]
    rows = disagreements_lib.table(examples, names)
    introduction = (
        f"Of the {examples.num_examples:,} examples of {run_set.evaluation},"
        f" {len(examples.ids):,} are correct only in {het.name} and {examples.num_other_way:,} only"
        f" in {hom.name} (seed {seeds[0]}). The images below are the examples correct only in"
        f" {het.name} for which {het.name} has the largest absolute covariance between the true"
        f" class and the class that {hom.name} predicts."
    )
    alts = [f"Example {row['id']}, {row['true']}" for row in rows]
    captions = disagreements_lib.captions(examples, names, top)
    images = disagreements_lib.pictures(
        examples, top, het.runs[0].config, run_set.evaluation, run_set.data_dir
    )
    parts: list[Any] = [
        page.paragraph(introduction),
        page.sheet(list(zip(images, alts, captions))),
        page.paragraph(
            f"The table asks whether {het.name} relates the true class (1) to the class that"
            f" {hom.name} predicts by mistake (2). For each image, {het.name} ranks the"
            f" {len(names) - 1:,} classes other than the true one; rank 1 is the largest value. The"
            " mean rank by class first averages the ranks over the images of a true class. Chance"
            " is its mean ± standard deviation if class names are permuted, and p is the"
            " probability of a value at least as small."
        ),
        page.table(
            f"Rank of the class that {hom.name} predicts",
            [
                "ranked by",
                "mean rank",
                "mean rank by class",
                "chance",
                "p",
                "rank 1",
                "rank 1 by chance",
            ],
            [_rank_row(_RANKINGS[name], result) for name, result in facts["ranks"].items()],
        ),
    ]
    return Section(_TITLE, parts, {"right_alone": facts | {"images": rows}})


def _rank_row(ranking: str, result: dict[str, Any]) -> list[str]:
    return [
        ranking,
        f"{result['mean']:.2f}",
        f"{result['of_classes']:.2f}",
        f"{result['expected']:.2f} ± {result['deviation']:.2f}",
        f"{result['p']:.2g}",
        *(f"{100 * result[x]:.1f} %" for x in ("first", "chance_of_first")),
    ]

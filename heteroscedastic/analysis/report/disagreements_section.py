"""The images that a run with noise alone gets right, and whether its covariances know what they
were taken for.
"""

from typing import Any

from heteroscedastic.analysis.errors import disagreements
from heteroscedastic.analysis.plots import figures
from heteroscedastic.analysis.report import page
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.runs import loaded_run

_NUM_SHOWN = 12
_TITLE = "Images that one head alone gets right"
_RANKED = {
    "covariance": "size of the covariance",
    "seen": "p₂ var(u₁\u00a0-\u00a0u₂)",
    "probability": "probability alone",
}


def alone(compared: Compared) -> Section:
    """Of two groups, one with noise and one without, the images that the first seed of both tells
    apart.
    """
    noisy = [group for group in compared.groups if loaded_run.has_noise(group.runs[0].config)]
    plain = [group for group in compared.groups if group not in noisy]
    if len(noisy) != 1 or len(plain) != 1:
        here = f"{len(noisy)} with noise and {len(plain)} without"
        return Section(
            _TITLE,
            [page.note(f"This is told of one group with noise and one without; here are {here}.")],
        )
    runs = [
        {run.config["seed"]: run.directory for run in group.runs} for group in (noisy[0], plain[0])
    ]
    seeds = sorted(set(runs[0]) & set(runs[1]))
    if not seeds:
        return Section(
            _TITLE, [page.note(f"{noisy[0].name} and {plain[0].name} have no seed in common.")]
        )
    first, second = (paths[seeds[0]] for paths in runs)
    try:
        found, run = disagreements.find(first, second, compared.on, compared.data_dir)
    except loaded_run.NOT_HERE as error:
        return Section(
            _TITLE, [page.note(f"{noisy[0].name} and {plain[0].name} are not told: {error}")]
        )
    names, facts = figures.class_names(run.dataset), disagreements.summary(found)
    top = disagreements.largest(found)[:_NUM_SHOWN]
    rows = disagreements.table(found, names)
    said = (
        f"Of the {found.num_examples:,} examples of {compared.on} {len(found.ids):,} are right in"
        f" {noisy[0].name} alone"
        f" and {found.num_other_way:,} in {plain[0].name} alone, seed {seeds[0]}. Of the former"
        " those of the largest"
        f" covariance, by {noisy[0].name}, of what the image is and what {plain[0].name} takes it"
        " for:"
    )
    alts = [f"Example {row['id']}, {row['true']}" for row in rows]
    parts: list[Any] = [
        page.paragraph(said),
        page.sheet(list(zip(found.images[top], alts, disagreements.captions(found, names, top)))),
        page.table(
            f"Rank of what {plain[0].name} predicts (2) among the {len(names) - 1:,} classes but"
            " the true one (1),"
            f" the largest first, by {noisy[0].name}; of classes: with the mean ranks of its true"
            " class for each image,"
            " and p: of one as small by chance",
            ["ranked by", "mean rank", "of classes", "by chance", "p", "first", "first by chance"],
            [_rank(_RANKED[name], told) for name, told in facts["ranks"].items()],
        ),
    ]
    return Section(_TITLE, parts, {"right_alone": facts | {"images": rows}})


def _rank(words: str, told: dict[str, Any]) -> list[str]:
    chance = f"{told['expected']:.2f} ± {told['deviation']:.2f}"
    firsts = (f"{100 * told[x]:.1f} %" for x in ("first", "chance_of_first"))
    return [
        words,
        f"{told['mean']:.2f}",
        f"{told['of_classes']:.2f}",
        chance,
        f"{told['p']:.2g}",
        *firsts,
    ]

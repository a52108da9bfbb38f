"""One page that tells runs: python -m heteroscedastic.analysis.report --runs DIR [DIR ...] --out
report/

Writes index.html, which holds everything it shows and opens from disk, and beside it pictures/
with each picture as PNG and SVG and the numbers behind it as JSON. Runs of one config but for the
seed are told together; the first config is what others are compared with.

A section is a function (Compared) -> Section; a further one is a line of SECTIONS.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import (
    comparison,
    confidence_section,
    covariance_section,
    curves_section,
    disagreements_section,
    entropy_section,
    hardest_section,
    label_errors_section,
    overview_section,
    page,
)
from heteroscedastic.analysis.report.comparison import Compared
from heteroscedastic.analysis.report.page import Section

SECTIONS: tuple[Callable[[Compared], Section], ...] = (
    overview_section.results,
    overview_section.configs,
    curves_section.curves,
    confidence_section.reliability,
    confidence_section.outcomes,
    confidence_section.selective,
    entropy_section.entropies,
    covariance_section.class_pairs,
    disagreements_section.alone,
    label_errors_section.mislabelled,
    hardest_section.hardest,
    overview_section.data,
    overview_section.environment,
)


def sections(compared: Compared, paper: dict[str, Any] | None = None) -> list[Section]:
    """Every section of these runs."""
    bound = {overview_section.results: functools.partial(overview_section.results, paper=paper)}
    return [bound.get(make, make)(compared) for make in SECTIONS]


def write(
    compared: Compared, out: str | files.Path, paper: dict[str, Any] | None = None
) -> files.Path:
    """Writes the page and, before it, what lies beside it; nothing where a section fails.

    Args:
      compared: groups of runs.
      out: directory.
      paper: see overview.results.

    Returns:
      The page.
    """
    made = sections(compared, paper)
    text = page.page(_title(compared), _introduction(compared), made)
    page.write_beside(made, files.as_path(out) / "pictures")
    path = files.as_path(out) / "index.html"
    files.write_atomically(path, lambda file: file.write(text.encode()))
    return path


def _title(compared: Compared) -> str:
    data = compared.groups[0].runs[0].config["data"]["name"]
    names = [group.name for group in compared.groups]
    return f"{' against '.join(names) if len(names) == 2 else ', '.join(names)} on {data}"


def _introduction(compared: Compared) -> str:
    runs = sum(len(group.runs) for group in compared.groups)
    examples = len(compared.told[0][0].ids)
    fit = f"; temperatures are fitted on {compared.fit}" if compared.fit else ""
    kind = "lists of labels" if compared.link == "sigmoid" else "one label an example"
    return page.paragraph(
        f"{runs} {'run' if runs == 1 else 'runs'} of"
        f" {', '.join(group.name for group in compared.groups)}, told on the"
        f" {examples:,} examples of evaluation {compared.on}{fit}. {len(compared.class_names):,}"
        f" classes, {kind}."
    )


def read_paper(path: str | None) -> dict[str, Any] | None:
    """The numbers of a paper, for overview.results.

    Raises:
      ValueError: the file says something else.
    """
    if path is None:
        return None
    found = files.read_json(path)
    numbers = found.get("numbers") if isinstance(found, dict) else None
    if (
        not isinstance(numbers, dict)
        or not all(isinstance(v, dict) for v in numbers.values())
        or "note" not in found
    ):
        raise ValueError(
            f'{path} must hold {{"note": TEXT, "numbers": {{NAME OF A GROUP: {{METRIC: VALUE}}}}}}; of a study,'
            " python -m experiments.report takes them from its paper.json."
        )
    return found


@user_errors.one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a page about finished runs that is one file."""
    parser = comparison.flags_of_runs(main.__doc__)
    parser.add_argument("--out", required=True, help="directory of the page")
    parser.add_argument(
        "--paper", metavar="FILE", help="JSON of a paper's numbers by name of a group and metric"
    )
    flags = parser.parse_args(arguments)
    compared = comparison.compared_by(flags)
    path = write(compared, flags.out, read_paper(flags.paper))
    print(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

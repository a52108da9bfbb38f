"""A report page about runs:
python -m heteroscedastic.analysis.report --runs DIR [DIR ...] --out report/

Writes index.html, a single self-contained file that opens from disk, and pictures/ beside it, with
each figure as PNG and SVG and its numbers as JSON. Runs that differ only by their seed form a
group; all groups are compared with the first one.

A section is a function (RunSet) -> Section. To add one, add a line to SECTIONS.
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
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Section

SECTIONS: tuple[Callable[[RunSet], Section], ...] = (
    overview_section.results,
    overview_section.configs,
    curves_section.curves,
    confidence_section.reliability,
    confidence_section.outcomes,
    confidence_section.selective,
    entropy_section.entropies,
    covariance_section.class_pairs,
    disagreements_section.disagreements,
    label_errors_section.label_errors,
    hardest_section.hardest,
    overview_section.data,
    overview_section.environment,
)


def sections(run_set: RunSet, paper: dict[str, Any] | None = None) -> list[Section]:
    """All sections of the report."""
    with_paper = {
        overview_section.results: functools.partial(overview_section.results, paper=paper)
    }
    return [with_paper.get(section, section)(run_set) for section in SECTIONS]


def write(
    run_set: RunSet, out: str | files.Path, paper: dict[str, Any] | None = None
) -> files.Path:
    """Writes the figures and then the page. If a section fails, nothing is written.

    Args:
      run_set: groups of runs.
      out: output directory.
      paper: see overview_section.results.

    Returns:
      The path of the page.
    """
    all_sections = sections(run_set, paper)
    text = page.page(_title(run_set), _introduction(run_set), all_sections)
    page.write_beside(all_sections, files.as_path(out) / "pictures")
    path = files.as_path(out) / "index.html"
    files.write_atomically(path, lambda file: file.write(text.encode()))
    return path


def _title(run_set: RunSet) -> str:
    data = run_set.groups[0].runs[0].config["data"]["name"]
    names = [group.name for group in run_set.groups]
    return f"{' against '.join(names) if len(names) == 2 else ', '.join(names)} on {data}"


def _introduction(run_set: RunSet) -> str:
    num_runs = sum(len(group.runs) for group in run_set.groups)
    num_examples = len(run_set.predictions[0][0].ids)
    fit = f" Temperatures are fitted on {run_set.fit}." if run_set.fit else ""
    kind = "a list of labels" if run_set.link == "sigmoid" else "one label"
    return page.paragraph(
        f"This page reports {num_runs} {'run' if num_runs == 1 else 'runs'} of"
        f" {', '.join(group.name for group in run_set.groups)} on the {num_examples:,} examples of"
        f" the evaluation {run_set.evaluation}, with {kind} per example and"
        f" {len(run_set.class_names):,} classes.{fit}"
    )


def read_paper(path: str | None) -> dict[str, Any] | None:
    """Reads the numbers of a paper, for overview_section.results.

    Raises:
      ValueError: the file has another structure.
    """
    if path is None:
        return None
    paper = files.read_json(path)
    numbers = paper.get("numbers") if isinstance(paper, dict) else None
    if (
        not isinstance(numbers, dict)
        or not all(isinstance(v, dict) for v in numbers.values())
        or "note" not in paper
    ):
        raise ValueError(
            f'{path} must hold {{"note": TEXT, "numbers": {{NAME OF A GROUP: {{METRIC: VALUE}}}}}};'
            " for a table of a study, python -m experiments.report reads the numbers from its"
            " paper.json."
        )
    return paper


@user_errors.one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a report page about finished runs, as one self-contained file."""
    parser = comparison.argument_parser(main.__doc__)
    parser.add_argument("--out", required=True, help="output directory of the page")
    parser.add_argument(
        "--paper", metavar="FILE", help="JSON file with a paper's numbers by group and metric"
    )
    flags = parser.parse_args(arguments)
    run_set = comparison.from_flags(flags)
    path = write(run_set, flags.out, read_paper(flags.paper))
    print(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

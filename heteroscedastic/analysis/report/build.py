"""A report page about runs:
python -m heteroscedastic.analysis.report --runs DIR [DIR ...] --out report/

Writes index.html, a single self-contained file that opens from disk, and pictures/ beside it, with
each figure as PNG and SVG and its numbers as JSON. Runs that differ only by their seed form a
group; all groups are compared with the first one whose head has no noise.

A section is a function (RunSet) -> Section. To add one, add a line to SECTIONS.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import (
    classes_section,
    comparison,
    confidence_section,
    context_section,
    covariance_section,
    curves_section,
    disagreements_section,
    entropy_section,
    hardest_section,
    headline,
    label_errors_section,
    measured,
    objects_section,
    overview_section,
    page,
    results_section,
    saliency_section,
)
from heteroscedastic.analysis.report.comparison import RunSet
from heteroscedastic.analysis.report.page import Section
from heteroscedastic.runs import compilation_cache

SECTIONS: tuple[Callable[[RunSet], Section], ...] = (  # after the results
    classes_section.classes,
    confidence_section.reliability,
    confidence_section.outcomes,
    confidence_section.selective,
    label_errors_section.label_errors,
    covariance_section.class_pairs,
    saliency_section.doubts,
    objects_section.looks,
    objects_section.localisation,
    context_section.context,
    disagreements_section.disagreements,
    hardest_section.hardest,
    entropy_section.entropies,
    curves_section.curves,
    overview_section.configs,
    overview_section.data,
    overview_section.environment,
)
Log = Callable[[str], None]


def _silent(line: str) -> None:
    """Logs nothing."""


def sections(run_set: RunSet, log: Log = _silent) -> list[Section]:
    """The sections of the report after the results, with a line of the log for each."""
    made = []
    for i, section in enumerate(SECTIONS, 1):
        start = time.monotonic()
        made.append(section(run_set))
        seconds = time.monotonic() - start
        log(f"section {i}/{len(SECTIONS)}  {seconds:4.1f} s  {made[-1].title}")
    return made


def write(
    run_set: RunSet,
    out: str | files.Path,
    paper: dict[str, Any] | None = None,
    log: Log = _silent,
) -> files.Path:
    """Writes the figures and then the page. If a section fails, nothing is written.

    Args:
      run_set: groups of runs.
      out: output directory.
      paper: see results_section.results.
      log: receives a line for each part of the report.

    Returns:
      The path of the page.
    """
    metrics = measured.measured(run_set)
    results = results_section.results(run_set, metrics, paper)
    log(f"metrics of {len(run_set.groups)} groups with intervals")
    words = headline.headline(run_set, metrics, headline.known_labels(run_set))
    all_sections = [results, *sections(run_set, log)]
    introduction = f"{words}\n{_introduction(run_set)}"
    text = page.page(_title(run_set), introduction, all_sections)
    log("writing the page and its pictures")
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
    """Reads the numbers of a paper, for results_section.results.

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


def print_line(line: str) -> None:
    """Prints a line of the log at once, also into a pipe."""
    print(line, flush=True)


@user_errors.one_line()
def main(arguments: Sequence[str] | None = None) -> None:
    """Writes a report page about finished runs, as one self-contained file."""
    parser = comparison.argument_parser(main.__doc__)
    parser.add_argument("--out", required=True, help="output directory of the page")
    parser.add_argument(
        "--paper", metavar="FILE", help="JSON file with a paper's numbers by group and metric"
    )
    flags = parser.parse_args(arguments)
    compilation_cache.enable()
    run_set = comparison.from_flags(flags)
    path = write(run_set, flags.out, read_paper(flags.paper), print_line)
    print(f"wrote {path}, {files.size(path) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

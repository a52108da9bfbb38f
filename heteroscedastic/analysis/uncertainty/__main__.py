"""Figures of the uncertainty of runs: python -m heteroscedastic.analysis.uncertainty --runs DIR ...

Draws reliability diagrams, confidence, risk against coverage, the parts of the entropy and learning
curves of one or several runs, and writes the numbers of each figure as JSON.
"""

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import (
    comparison,
    confidence_section,
    curves_section,
    entropy_section,
    page,
)
from heteroscedastic.runs import compilation_cache

SECTIONS = (
    curves_section.curves,
    confidence_section.reliability,
    confidence_section.outcomes,
    confidence_section.selective,
    entropy_section.entropies,
)


@user_errors.one_line()
def main() -> None:
    """Draws the calibration and uncertainty of finished runs, and writes the numbers as JSON."""
    parser = comparison.argument_parser(main.__doc__)
    parser.add_argument(
        "--out", help="output directory; default for a single run: RUN/analysis/uncertainty"
    )
    flags = parser.parse_args()
    if flags.out is None and len(flags.runs) > 1:
        raise SystemExit("several runs require --out, the output directory of the figures.")
    compilation_cache.enable()
    run_set = comparison.from_flags(flags)
    out = (
        files.as_path(flags.out)
        if flags.out
        else files.as_path(flags.runs[0]) / "analysis" / "uncertainty"
    )
    for path in page.write_beside([section(run_set) for section in SECTIONS], out):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()

"""Pictures of how far probabilities can be trusted: python -m heteroscedastic.analysis.uncertainty
--runs DIR ...

Reliability, confidence, risk against coverage, the parts of the entropy and learning curves, of
one run or of several side by side; beside each picture its numbers as JSON.
"""

from heteroscedastic import files, user_errors
from heteroscedastic.analysis.report import (
    comparison,
    confidence_section,
    curves_section,
    entropy_section,
    page,
)

SECTIONS = (
    curves_section.curves,
    confidence_section.reliability,
    confidence_section.outcomes,
    confidence_section.selective,
    entropy_section.entropies,
)


@user_errors.one_line()
def main() -> None:
    """Draws how far the probabilities of finished runs can be trusted, and writes the numbers
    beside.
    """
    parser = comparison.flags_of_runs(main.__doc__)
    parser.add_argument(
        "--out", help="directory; of a single run its analysis/uncertainty, unless told"
    )
    flags = parser.parse_args()
    if flags.out is None and len(flags.runs) > 1:
        raise SystemExit("several runs need --out, a directory for their pictures.")
    compared = comparison.compared_by(flags)
    out = (
        files.as_path(flags.out)
        if flags.out
        else files.as_path(flags.runs[0]) / "analysis" / "uncertainty"
    )
    for path in page.write_beside([section(compared) for section in SECTIONS], out):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()

"""Pictures of how far probabilities can be trusted: python -m heteroscedastic.analysis.uncertainty --runs DIR ...

Reliability, confidence, risk against coverage, the parts of the entropy and learning curves, of
one run or of several side by side; beside each picture its numbers as JSON.
"""

import argparse
import os

from heteroscedastic import files, user_errors
from heteroscedastic.analysis import comparison, page
from heteroscedastic.analysis.comparison import Compared
from heteroscedastic.analysis.sections import confidence, curves, entropy

SECTIONS = (curves.curves, confidence.reliability, confidence.outcomes, confidence.selective, entropy.entropies)


def flags_of_runs(description: str | None) -> argparse.ArgumentParser:
    """What commands over several runs ask for."""
    parser = user_errors.parser(description)
    parser.add_argument("--runs", nargs="+", required=True, metavar="DIR", help="directories of finished runs")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="one for each config, seeds counted together")
    parser.add_argument("--on", default="test", help="evaluation that is told")
    parser.add_argument(
        "--fit", help="evaluation to fit a temperature on; the held-out one of the same weights if not given"
    )
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    return parser


def compared_by(flags: argparse.Namespace) -> Compared:
    """The runs that the flags name."""
    groups = comparison.groups(flags.runs, flags.names)
    return comparison.compare(groups, flags.on, flags.fit, flags.data_dir)


@user_errors.one_line()
def main() -> None:
    """Draws how far the probabilities of finished runs can be trusted, and writes the numbers beside."""
    parser = flags_of_runs(main.__doc__)
    parser.add_argument("--out", help="directory; of a single run its analysis/uncertainty, unless told")
    flags = parser.parse_args()
    if flags.out is None and len(flags.runs) > 1:
        raise SystemExit("several runs need --out, a directory for their pictures.")
    compared = compared_by(flags)
    out = files.place(flags.out) if flags.out else files.place(flags.runs[0]) / "analysis" / "uncertainty"
    for path in page.write_beside([section(compared) for section in SECTIONS], out):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()

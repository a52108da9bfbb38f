"""Intervals of AP: python -m heteroscedastic.analysis.uncertainty.detections --runs DIR ...

--runs has the runs of one config, one for each seed. AP is no mean over images, so it is computed
anew for each resample of the images of an evaluation. Several runs are resampled too, independently
of the images, so that the interval covers other seeds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from heteroscedastic import user_errors
from heteroscedastic.analysis.report import comparison
from heteroscedastic.analysis.uncertainty import intervals
from heteroscedastic.calibration.bootstrap import Interval
from heteroscedastic.runs import predictions


def mean_intervals(
    runs: Sequence[Mapping[str, np.ndarray]],
    num_resamples: int = intervals.NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """The means over runs of AP, AP50, AP75 and AR at 100, with 95 % intervals.

    Args:
      runs: predictions of each; see `runs.predictions.read_detections`.
      num_resamples: of the images, at least 1.
      seed: of the resamples.

    Raises:
      ValueError: some resample has no true box.
    """
    metrics = intervals.resampled_detections(runs, num_resamples, seed)
    if num_without := int(np.isnan(metrics["ap"].draws).any(axis=1).sum()):
        raise ValueError(
            f"{num_without:,} of {num_resamples:,} resamples of the {len(runs[0]['image_ids']):,}"
            " images have no true box, but AP requires one; evaluate more images with boxes."
        )
    return {name: intervals.mean(metric, seed) for name, metric in metrics.items()}


@user_errors.one_line()
def main() -> None:
    """Prints AP and AR of finished detectors with intervals over other images and seeds."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument(
        "--runs",
        nargs="+",
        required=True,
        metavar="DIR",
        help="directories of finished runs of one config, one for each seed",
    )
    parser.add_argument("--on", default="test", help="evaluation to report")
    parser.add_argument(
        "--num_resamples", type=int, default=intervals.NUM_RESAMPLES, help="resamples of the images"
    )
    flags = parser.parse_args()
    groups = comparison.groups(flags.runs)
    if len(groups) > 1:
        raise ValueError(
            f"--runs has runs of {len(groups)} configs ({', '.join(g.name for g in groups)}), but"
            " an interval is of one; run the command once for each."
        )
    runs = [predictions.read_detections(run.directory, flags.on) for run in groups[0].runs]
    found = mean_intervals(runs, flags.num_resamples)
    over = f"{len(runs[0]['image_ids']):,} images"
    over += f" and t interval over {len(runs)} runs" * (len(runs) > 1)
    print(f"{flags.on}: 95 % intervals by bootstrap over {over}\n")
    for name, (value, low, high) in found.items():
        print(f"{name:<8}{value:.4f} [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()

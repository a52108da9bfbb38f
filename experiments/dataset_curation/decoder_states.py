"""Writes the states of the decoder in each condition of smoothing and alignment, for heads alone.

    python -m experiments.dataset_curation.decoder_states --out=DIR

reads the runs of the table `smoothing_multi30k` and writes DIR/multi30k_states_NAME_SEED.npz for
each: what the head sees of every token, and the reference word as label. A set that exists is left
as it is. The tables `states_NAME_multi30k` train on these sets with --data_dir=DIR, seed by seed.
"""

import os

from experiments import features, run, study
from heteroscedastic import files, user_errors
from heteroscedastic.runs import embed

_STUDY, _TABLE = "dataset_curation", "smoothing_multi30k"


@user_errors.one_line()
def main() -> None:
    """Writes decoder states as data sets of features."""
    parser = user_errors.parser(main.__doc__)
    parser.add_argument("--scale", default="cpu")
    parser.add_argument(
        "--rows", nargs="+", metavar="PATTERN", help="conditions, such as hard; defaults to all"
    )
    parser.add_argument("--runs", default="runs", help="the --out directory of experiments.run")
    parser.add_argument("--data_dir", default=os.environ.get("TFDS_DATA_DIR"))
    parser.add_argument("--out", required=True, help="directory of the files")
    flags = parser.parse_args()
    out = files.as_path(flags.out)
    directory = files.as_path(flags.runs) / _STUDY / _TABLE
    table = study.table(_STUDY, _TABLE)
    chosen = run.with_rows(table, flags.rows)
    if not chosen.rows:
        names = [row.name for row in table.rows]
        raise SystemExit(f"no row matches {flags.rows}; the rows are {names}.")
    jobs = study.jobs(chosen, flags.scale, directory)
    for job in jobs:
        name = f"{features.STATES}{job.row}_{job.seed}"
        if (out / f"{name}.npz").exists():
            continue
        if study.run_results(job) is None:
            raise FileNotFoundError(
                f"{job.directory} has no complete run; train it with python -m experiments.run"
                f" --study={_STUDY} --table={_TABLE} --scale={flags.scale} --rows {job.row}."
            )
        embedded = embed.token_job(job.directory, flags.data_dir)
        embed.write(embedded, job.config["data"]["name"], name, out)


if __name__ == "__main__":
    main()

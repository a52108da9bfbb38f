"""One run of a table as a config of main.py, for the hosts of a pod, where experiments.run cannot
make it.

python -m experiments.run --study=S --table=T --scale=paper --out=gs://BUCKET/runs --print prints of every run that is
left what main.py and the launchers are given: --config=experiments/row.py:T@DIRECTORY
--workdir=DIRECTORY.
"""

from ml_collections import ConfigDict

from experiments import study
from heteroscedastic import files


def name(table: str, directory: files.Path) -> str:
    """What --config is of a run of a table."""
    return f"experiments/row.py:{table}@{directory}"


def get_config(run: str) -> ConfigDict:
    """The config of a run.

    Args:
      run: TABLE@OUT/STUDY/TABLE/SCALE/ROW/POINT/seed_N; the table within is another where it has
        the runs of another.

    Raises:
      ValueError: no table has such a run.
    """
    table, _, directory = run.partition("@")
    wanted = files.as_path(directory)
    if len(wanted.parts) < 7:
        raise ValueError(
            f"{run!r} is no run of a table; experiments.run --print tells what they are called."
        )
    of_table = wanted.parents[3]
    chosen = study.table(of_table.parent.name, table)
    for job in study.jobs(chosen, wanted.parents[2].name, of_table.with_name(table)):
        if job.directory == wanted:
            return ConfigDict(job.config)
    raise ValueError(
        f"table {table} has no run {directory}; experiments.run --print tells what they are called."
    )

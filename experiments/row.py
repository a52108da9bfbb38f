"""One job of a table as a config of main.py, for pods, where experiments.run cannot train.

    python -m experiments.run --study=S --table=T --scale=paper --out=gs://BUCKET/runs --print

prints the arguments of main.py and of the launchers for every incomplete job:
--config=experiments/row.py:T@DIRECTORY --workdir=DIRECTORY.
"""

from ml_collections import ConfigDict

from experiments import study
from heteroscedastic import files


def name(table: str, directory: files.Path) -> str:
    """The value of --config for a job of a table."""
    return f"experiments/row.py:{table}@{directory}"


def get_config(run: str) -> ConfigDict:
    """The config of a job.

    Args:
      run: TABLE@OUT/STUDY/TABLE/SCALE/ROW/POINT/seed_N; the second TABLE differs from the first
        if the table uses the runs of another table.

    Raises:
      ValueError: the table has no such job.
    """
    table, _, name = run.partition("@")
    directory = files.as_path(name)
    if len(directory.parts) < 6:  # OUT may be "."
        raise ValueError(
            f"{run!r} is not a job of a table; experiments.run --print lists the valid names."
        )
    table_directory = directory.parents[3]
    chosen = study.table(table_directory.parent.name, table)
    for job in study.jobs(chosen, directory.parents[2].name, table_directory.with_name(table)):
        if job.directory == directory:
            return ConfigDict(job.config)
    raise ValueError(
        f"table {table} has no job {name}; experiments.run --print lists the valid names."
    )

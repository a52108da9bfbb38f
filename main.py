"""Trains what a config says: python main.py --config=configs/X.py --workdir=DIR."""

import os
import traceback
import warnings

from absl import app, flags, logging
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to train; --config.a.b=c changes a setting.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run, one that all hosts share.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where data sets lie; TFDS_DATA_DIR if not given.")
_SMOKE = flags.DEFINE_bool("smoke", False, "Shrink the config to two small steps.")
_HOSTS = flags.DEFINE_bool("hosts", False, "The same command runs on every host of a pod or cluster, as one run.")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "With --hosts, HOST:PORT of process 0, if it is not found.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "With --coordinator, how many processes there are.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "With --coordinator, which of them this is, from 0.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    # Imported late, so that --help and a mistyped flag answer at once.
    from heteroscedastic.training import hosts, loop, smoke

    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file it writes
    config, data_dir = _CONFIG.value.to_dict(), _DATA_DIR.value or os.environ.get("TFDS_DATA_DIR")
    try:
        if _HOSTS.value:
            hosts.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
            if not hosts.is_first():  # the first one warns for all of them
                logging.set_verbosity(logging.ERROR)
                warnings.simplefilter("ignore")
        if _SMOKE.value:
            config, data_dir = smoke.smoke(config, data_dir)
        loop.train(config, _WORKDIR.value, data_dir)
    except Exception:
        if not _HOSTS.value:
            raise
        traceback.print_exc()
        hosts.farewell()
        os._exit(1)  # an orderly exit would wait for the other hosts


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main)

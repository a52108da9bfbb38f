"""Trains what a config says: python main.py --config=configs/X.py --workdir=DIR."""

import os

from absl import app, flags, logging
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to train; --config.a.b=c changes a setting.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where data sets lie; TFDS_DATA_DIR if not given.")
_SMOKE = flags.DEFINE_bool("smoke", False, "Shrink the config to two small steps.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments {argv[1:]}")
    # Imported late, so that --help and a mistyped flag answer at once.
    from heteroscedastic.training import loop, smoke

    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file it writes

    config = _CONFIG.value.to_dict()
    if _SMOKE.value:
        config = smoke.smoke(config)
    loop.train(config, _WORKDIR.value, _DATA_DIR.value or os.environ.get("TFDS_DATA_DIR"))


if __name__ == "__main__":
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main)

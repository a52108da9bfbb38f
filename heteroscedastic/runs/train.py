"""The command that trains and evaluates a model: main.py, or heteroscedastic train."""

import os
import sys
import textwrap
import traceback
import warnings
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from heteroscedastic import user_errors
from heteroscedastic.files import config_file

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config, by name or as a file; --config.a.b=c overrides a setting."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the run, shared by all hosts.")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Directory of the data sets; defaults to TFDS_DATA_DIR."
)
_SMOKE = flags.DEFINE_bool("smoke", False, "Reduce the config to two small steps.")
_DEBUG = flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
_ALLOW_CHANGED = flags.DEFINE_bool(
    "allow_changed", False, "Resume a run although the JAX flags have changed."
)
_COMPILATION_CACHE = flags.DEFINE_string(
    "compilation_cache",
    None,
    "Directory of compiled programs, which later commands load; defaults to one in the user's"
    " cache. An empty value compiles every program anew.",
)
_HOSTS = flags.DEFINE_bool(
    "hosts", False, "Train one run on several hosts; start the same command on every host."
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "With --hosts, HOST:PORT of process 0, if it is not detected."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "With --coordinator, the number of processes."
)
_PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "With --coordinator, the index of this process, from 0."
)
_HELP_FLAGS = {"--help", "-help", "-h", "-?", "--helpshort"}


def main() -> None:
    """Trains and evaluates a model from a config, and writes the run to a directory."""
    app.run(_train, flags_parser=_parsed)


def _train(argv: list[str]) -> None:
    if len(argv) > 1:
        raise SystemExit(f"error: unknown arguments {argv[1:]}; --help lists the flags.")
    # Imported late, so that --help and flag errors respond immediately.
    with user_errors.one_line(_DEBUG.value):
        from heteroscedastic.distributed import hosts, preemption
        from heteroscedastic.runs import compilation_cache, host_memory, loop, sections, smoke

    logging.set_verbosity(logging.WARNING)  # Orbax logs every file that it writes
    config = config_file.with_nones(_CONFIG.value, sys.argv[1:])
    data_dir = _DATA_DIR.value or os.environ.get("TFDS_DATA_DIR")
    compilation_cache.enable(_COMPILATION_CACHE.value)
    host_memory.keep()
    with user_errors.one_line(_DEBUG.value), preemption.leaving_at_once():
        try:
            if _HOSTS.value:
                hosts.start(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
                if not hosts.is_first():  # only the first host logs warnings
                    logging.set_verbosity(logging.ERROR)
                    warnings.simplefilter("ignore")
            config = sections.renamed(*config_file.before_overrides(sys.argv[1:]), config)
            if _SMOKE.value:
                config, data_dir = smoke.smoke(config, data_dir)
            loop.train(config, _WORKDIR.value, data_dir, allow_changed=_ALLOW_CHANGED.value)
        except SystemExit as leaving:
            if leaving.code == preemption.EXIT_CODE and hosts.is_alone():
                preemption.leave()
            raise
        except Exception as error:
            if not _HOSTS.value:
                raise
            text = None if _DEBUG.value else user_errors.message(error)
            print(f"error: {text}" if text else traceback.format_exc(), file=sys.stderr, flush=True)
            hosts.leave(error)  # an orderly exit would wait for the other hosts


def _parsed(argv: list[str]) -> list[str]:
    """Parses the flags; returns the other arguments. A flag error exits with a one-line message."""
    if _HELP_FLAGS & set(argv[1:]):
        _show_help()
    try:
        rest = flags.FLAGS(config_file.with_path(config_file.without_nones(argv)))
        if _CONFIG.value is not None:  # raises where the file could not be read
            config_file.with_nones(_CONFIG.value, argv[1:])
    except (flags.Error, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        if "--debug" in argv:
            raise
        with user_errors.one_line():
            config_file.read(argv[1:])  # raises a clearer error if --config is the cause
        raise SystemExit(f"error: {error}") from None
    if _CONFIG.value is None or not _WORKDIR.value:
        raise SystemExit("error: give --config=NAME and --workdir=DIR; --help shows an example.")
    host_flags = {
        "coordinator": _COORDINATOR,
        "num_processes": _NUM_PROCESSES,
        "process_id": _PROCESS_ID,
    }
    names = [f"--{name}" for name, flag in host_flags.items() if flag.value is not None]
    if names and not _HOSTS.value:
        raise SystemExit(
            f"error: {', '.join(names)} without --hosts; add --hosts to train on several processes."
        )
    return rest


def _show_help() -> NoReturn:
    """Prints the flags of this command, without those of absl, and exits."""
    print(
        f"{main.__doc__}\n\n"
        f"{sys.argv[0]} --config=digits_het_full --workdir=runs/digits --config.seed=1\n\n"
        f"{textwrap.fill('Configs: ' + ', '.join(config_file.names()), 100)}\n"
        f"{flags.FLAGS.module_help(sys.modules[__name__])}"
    )
    raise SystemExit(0)

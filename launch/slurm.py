"""Launches a run on a GPU cluster with Slurm: one process per GPU, requeued until it is complete.

    python -m launch.slurm --nodes=4 --gpus_per_node=8 --time=24:00:00 --config=configs/X.py
        --workdir=DIR

submits one job that runs main.py on all GPUs as one run, with this checkout and this Python, which
all nodes must share. Two minutes before its time limit, or when it is preempted, the run saves its
state and exits, and the job is requeued until the run is complete.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence

from launch import accelerators, command
from launch.command import CommandResult, Shell

# https://slurm.schedmd.com/sbatch.html. Without "B:" the signal is sent to the processes of srun
# and not to this script, which requeues the job afterwards: Slurm requeues a job after preemption
# or the loss of a node, but not after the time limit. srun does not end all tasks with the first
# (--kill-on-bad-exit), as tasks that are still exiting would be reported as killed; after a failure
# of one task, the others fail without it. jax.distributed finds its peers by SLURM_ variables and
# uses the GPU with the number of the task on its node
# (https://docs.jax.dev/en/latest/multi_process.html), so each task must see all GPUs of the node.
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={gpus}
#SBATCH --gpus-per-node={gpus}
{options}
#SBATCH --output={log}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@{grace}

cd {root} || exit 1
{exports}
srun{cpus} {main}
code=$?
if [ $code -eq {saved} ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
"""


def script(flags: argparse.Namespace, rest: Sequence[str]) -> str:
    """The batch script of a job."""
    options = {
        "time": flags.time,
        "cpus-per-task": flags.cpus_per_task,
        "partition": flags.partition,
        "account": flags.account,
    }
    return _SCRIPT.format(
        name=flags.name,
        nodes=flags.nodes,
        gpus=flags.gpus_per_node,
        options="\n".join(
            f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None
        ),
        log=flags.log,
        grace=flags.grace,
        root=shlex.quote(str(command.ROOT)),
        exports="\n".join(
            # What the user has set comes last, so that it counts.
            f'export {name}={shlex.quote(value)}"${{{name}:+ ${name}}}"'
            for name, value in accelerators.GPU_ENVIRONMENT.items()
        ),
        # srun does not inherit the option from sbatch.
        cpus=f" --cpus-per-task={flags.cpus_per_task}" if flags.cpus_per_task else "",
        main=shlex.join(command.main_words(flags, rest, flags.python)),
        saved=command.SAVED,
    )


def _time(text: str) -> str:
    """Validates a time of Slurm, such as 90 (minutes), 24:00:00 or 2-12 (days and hours)."""
    if not re.fullmatch(r"\d{1,6}(:\d{1,2}){0,2}|\d{1,4}-\d{1,2}(:\d{1,2}){0,2}", text):
        raise argparse.ArgumentTypeError(
            f"is {text}, but must be a time such as 90 (minutes), 24:00:00 or 2-12:00:00."
        )
    return text


def _seconds(time: str) -> int:
    """The seconds of a time of Slurm; 0 is no limit."""
    days, has_days, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if has_days:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, minutes, seconds = (0, *parts, 0)[:3] if len(parts) < 3 else parts
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Submits a run of a config to a GPU cluster with Slurm."""
    parser = command.Parser(
        prog="python -m launch.slurm", description=main.__doc__, allow_abbrev=False
    )
    command.add_flags(parser)
    parser.add_argument("--name", default="heteroscedastic", help="name of the job")
    parser.add_argument("--nodes", type=command.number(int, 1, 100_000), default=1)
    parser.add_argument("--gpus_per_node", type=command.number(int, 1, 64), default=8)
    cpus = command.number(int, 1, 4096)
    parser.add_argument(
        "--cpus_per_task", type=cpus, help="CPUs per process, which decode its part of a stream"
    )
    parser.add_argument(
        "--time", type=_time, default="24:00:00", help="time limit, after which the job is requeued"
    )
    parser.add_argument("--partition")
    parser.add_argument("--account")
    # Slurm accepts up to 65,535, and may send the signal a minute early.
    grace = command.number(int, 1, 65_535)
    parser.add_argument(
        "--grace",
        type=grace,
        default=120,
        metavar="SECONDS",
        help="time to save before the time limit",
    )
    parser.add_argument("--log", default="%x-%j.out", help="see --output of sbatch")
    parser.add_argument(
        "--python", default=sys.executable, help="Python of all nodes, with JAX for their GPUs"
    )
    flags, rest = command.parse(parser, arguments)
    command.check(flags, parser)
    if 0 < _seconds(flags.time) <= flags.grace:
        parser.error(f"--grace is {flags.grace} s, but must be less than --time, {flags.time}.")
    options = [flags.name, flags.time, flags.partition, flags.account, flags.log]
    if any(set(" \n") & set(value or "") for value in options):
        parser.error("--name, --time, --partition, --account and --log must not contain spaces.")
    shell = Shell(flags.dry_run)
    result = shell.capture(
        ["sbatch", "--parsable"], stdin=script(flags, rest), dry_run_result=CommandResult(0)
    )
    if result.code:
        sys.exit(f"sbatch rejected the job, and nothing was submitted: {result.errors.strip()}")
    job = result.output.strip().partition(";")[0]
    shell.log(
        f"submitted job {job}; its log is {flags.log}. If the run is incomplete after the job, the"
        " same command resumes it."
    )
    shell.log(f"monitor it with squeue --job={job}, cancel it with scancel {job}.")


if __name__ == "__main__":
    main()

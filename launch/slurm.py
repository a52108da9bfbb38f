"""A run on a GPU cluster with Slurm: one process a GPU, and back into the queue when its time is
up.

python -m launch.slurm --nodes=4 --gpus_per_node=8 --time=24:00:00 --config=configs/X.py --workdir=DIR submits one job
that runs main.py on all GPUs as one run, in this checkout and with this Python, which all nodes
must see. Two minutes before its time is up, or when it is preempted, it saves, leaves, and is
queued again, until the run is complete.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence

from launch import accelerators, command
from launch.command import Done, Shell

# https://slurm.schedmd.com/sbatch.html. Without "B:" the signal goes to what srun started and not
# to this script, which lives to queue the job again: Slurm does so itself after preemption or the
# loss of a node, but not after the time. Nor does srun end all tasks with the first
# (--kill-on-bad-exit): those that are still leaving would be told as killed, and where one fails
# the others miss it by themselves. jax.distributed finds the others by SLURM_ variables, and takes
# the GPU that is the task's number on its node (https://docs.jax.dev/en/latest/multi_process.html),
# so each task must see all GPUs of the node.
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
    cpus = {"cpus-per-task": flags.cpus_per_task}
    given = {"time": flags.time, **cpus, "partition": flags.partition, "account": flags.account}
    return _SCRIPT.format(
        name=flags.name,
        nodes=flags.nodes,
        gpus=flags.gpus_per_node,
        options="\n".join(
            f"#SBATCH --{name}={value}" for name, value in given.items() if value is not None
        ),
        log=flags.log,
        grace=flags.grace,
        root=shlex.quote(str(command.ROOT)),
        exports="\n".join(
            f"export {shlex.quote(each)}" for each in command.settings(accelerators.GPU_ENVIRONMENT)
        ),
        cpus=f" --cpus-per-task={flags.cpus_per_task}"
        if flags.cpus_per_task
        else "",  # srun does not take it over
        main=shlex.join(command.main_words(flags, rest, flags.python)),
        saved=command.SAVED,
    )


def _time(text: str) -> str:
    """A time as Slurm takes it, such as 90 (minutes), 24:00:00 or 2-12 (days and hours)."""
    if not re.fullmatch(r"\d{1,6}(:\d{1,2}){0,2}|\d{1,4}-\d{1,2}(:\d{1,2}){0,2}", text):
        raise argparse.ArgumentTypeError(
            f"is {text}, but must be a time such as 90 (minutes), 24:00:00 or 2-12:00:00."
        )
    return text


def _seconds(time: str) -> int:
    """Of what `_time` takes; 0 is no limit."""
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
    parser.add_argument("--name", default="heteroscedastic", help="of the job")
    parser.add_argument("--nodes", type=command.number(int, 1, 100_000), default=1)
    parser.add_argument("--gpus_per_node", type=command.number(int, 1, 64), default=8)
    cpus = command.number(int, 1, 4096)
    parser.add_argument(
        "--cpus_per_task", type=cpus, help="of each process, which decodes its part of a stream"
    )
    parser.add_argument(
        "--time", type=_time, default="24:00:00", help="after which the job is queued again"
    )
    parser.add_argument("--partition")
    parser.add_argument("--account")
    # Slurm takes up to 65,535, and may send the signal a minute early.
    grace = command.number(int, 1, 65_535)
    parser.add_argument(
        "--grace", type=grace, default=120, metavar="SECONDS", help="to save before the time is up"
    )
    parser.add_argument("--log", default="%x-%j.out", help="as sbatch's --output")
    parser.add_argument(
        "--python", default=sys.executable, help="that all nodes see, with jax for their GPUs"
    )
    flags, rest = command.parse(parser, arguments)
    command.check(flags, parser)
    if 0 < _seconds(flags.time) <= flags.grace:
        parser.error(f"--grace is {flags.grace} s, but must be less than --time, {flags.time}.")
    told = [flags.name, flags.time, flags.partition, flags.account, flags.log]
    if any(set(" \n") & set(value or "") for value in told):
        parser.error("--name, --time, --partition, --account and --log must have no space in them.")
    shell = Shell(flags.dry_run)
    done = shell.ask(["sbatch", "--parsable"], given=script(flags, rest), assumed=Done(0))
    if done.code:
        sys.exit(f"sbatch did not take the job, and nothing is left of it: {done.errors.strip()}")
    job = done.output.strip().partition(";")[0]
    shell.say(
        f"job {job}; its log is {flags.log}. The same command, once it is over, continues an"
        " unfinished run."
    )
    shell.say(f"watch it with squeue --job={job}, end it with scancel {job}.")


if __name__ == "__main__":
    main()

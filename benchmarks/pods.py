"""Every step of the paper compiled for its own slice of TPU, and for one of today, on a machine
that has neither.

python -m benchmarks.pods compiles the training step of each row of tables 1 to 3 and 6 to 11, as a run on
that slice would, and appends to benchmarks/pods.json what the compiler says of one device: bytes by
kind, what crosses between devices, operations, and its own estimate of cycles. A row that is there
is not compiled again; one that does not fit is told as such. --rows 'imagenet21k_*' and --slice
'v3:*' choose, --tell prints the table.

Nothing runs: a time is the sum of the cycles that the compiler's model expects of each operation,
loops counted as often as they run, over the clock. What crosses has no cycles there, so it is
beside that. Needs libtpu, which the extra `tpu-compile` installs.
"""

import argparse
import fnmatch
import gzip
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.pods_rows import programs
from heteroscedastic import files

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("pods.json")
_QUIET = {  # libtpu asks the cloud what machine this is, and takes minutes where there is none
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is used, so others may compile beside
    "JAX_PLATFORMS": "cpu",
}
# Of a device, from cloud.google.com/tpu/docs ("TPU v3", "TPU v5e"): memory in GiB; bytes/s and
# FLOP/s in bfloat16, halves of a chip's on v3, where a device is a core; MXUs, of 128 x 128
# multiply-adds a cycle.
CHIPS = {
    "v3": dict(memory=16, bandwidth=450e9, peak=61.5e12, mxus=2),
    "v5e": dict(memory=16, bandwidth=819e9, peak=197e12, mxus=4),
}


def clock(chip):
    """Cycles a second, from the peak: 0.94 GHz of v3, 1.50 of v5e."""
    return chip["peak"] / (chip["mxus"] * 128 * 128 * 2)


def measure(program, slice_name, keep=None):
    """What the compiler says of a program on a slice; its text is kept in a directory."""
    import jax
    from jax.experimental import topologies

    from benchmarks import hlo
    from benchmarks.described import Described
    from heteroscedastic.distributed.sharding import Placement
    from heteroscedastic.runs import assembly, compiled

    devices = topologies.get_topology_desc(platform="tpu", topology_name=slice_name).devices
    run = assembly.build(program.config, pipeline=Described(program.config))
    placement = Placement(
        run.steps.batch_size,
        num_microbatches=run.steps.num_microbatches,
        **run.layout,
        devices=devices,
    )
    shapes = compiled.shapes(run, placement)
    at_work = jax.tree.map(lambda x: x.sharding, shapes[0])
    began = time.process_time()
    lowered = compiled.train_step(run, placement, at_work, donates=True).lower(*shapes)
    made = lowered.compile()
    if keep:
        with gzip.open(Path(keep) / f"{program.name} {slice_name}.hlo.gz", "wt") as file:
            file.write(made.as_text())
    memory, cost, text = made.memory_analysis(), made.cost_analysis(), made.as_text()
    sizes = {
        kind: getattr(memory, f"{name}_size_in_bytes")
        for kind, name in dict(
            arguments="argument",
            outputs="output",
            aliased="alias",
            temporaries="temp",
            code="generated_code",
        ).items()
    }
    return dict(
        devices=len(devices),
        batch=run.steps.batch_size,
        parameters=sum(x.size for x in jax.tree.leaves(shapes[0].params)),
        bytes=sizes,
        peak=memory.peak_memory_in_bytes,
        crossings={kind: x._asdict() for kind, x in hlo.crossings(text).items()},
        flops=cost["flops"],
        bytes_accessed=cost["bytes accessed"],
        optimal_seconds=cost.get("optimal_seconds"),
        cycles=hlo.cycles(text)._asdict(),
        compile_seconds=round(time.process_time() - began),
        versions=dict(jax=jax.__version__, libtpu=_libtpu()),
    )


def _libtpu():
    import importlib.metadata

    return importlib.metadata.version("libtpu")


def results():
    """The rows that are there, by name and slice."""
    rows = files.read_json(RESULTS) if RESULTS.exists() else []
    return {(row["name"], row["slice"]): row for row in rows}


def in_a_process(*settings):
    """`measure` where a compiler that gives up ends no other row."""
    command = [sys.executable, "-m", "benchmarks.pods", "--measure", json.dumps(settings)]
    done = subprocess.run(
        command, env=os.environ | _QUIET, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return dict(error=reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def reason(errors):
    """What the compiler said last, in a line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [
        line
        for line in lines
        if re.search(r"RESOURCE_EXHAUSTED|Ran out of memory|Error|error", line)
    ]
    return (told or lines or ["it said nothing"])[-1][:300]


def total(row):
    """Bytes of a device: what comes in and goes out, once where it is one memory, and what is in
    between.
    """
    of = row["bytes"]
    return of["arguments"] + of["outputs"] - of["aliased"] + of["temporaries"] + of["code"]


def line(row):
    """A row of the table."""
    chip = CHIPS[row["slice"].partition(":")[0]]
    cells = [row["name"], ", ".join(row["tables"]) or "-", row["slice"]]
    if "error" in row:
        return "| " + " | ".join([*cells, f"does not compile: {row['error']}"] + [""] * 10) + " |"
    of = row["bytes"]
    cells += [row["batch"] // row["devices"]]
    cells += [f"{of[kind] / 1e9:.2f}" for kind in ("arguments", "temporaries")]
    used = total(row) / 2**30
    cells += [
        f"{used:.1f} of {chip['memory']}" + ("" if used <= chip["memory"] else ", **too much**")
    ]
    crossing = row["crossings"]
    cells += [", ".join(f"{kind} {x['bytes'] / 1e6:,.0f}" for kind, x in crossing.items())]
    cells += [f"{sum(x['in_loops'] for x in crossing.values()) / 1e6:,.0f}"]
    cells += [
        f"{1e3 * row['flops'] / chip['peak']:,.0f}",
        f"{1e3 * row['bytes_accessed'] / chip['bandwidth']:,.0f}",
    ]
    cells += [f"{1e3 * row['cycles'][of] / clock(chip):,.0f}" for of in ("all", "in_loops")]
    cells += [row["compile_seconds"]]
    return "| " + " | ".join(map(str, cells)) + " |"


COLUMNS = (
    "step, as its config names it",
    "paper's tables",
    "slice",
    "examples a device",
    "arguments, GB",
    "temporaries, GB",
    "in all, GiB",
    "crosses, MB",
    "of that in loops, MB",
    "ms, operations at peak, loops once",
    "ms, bytes at peak, loops once",
    "ms, the compiler's cycles",
    "of that in loops, ms",
    "s of the processor to compile",
)


def tell(rows):
    """The table, in Markdown."""
    return "\n".join(
        ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS), *map(line, rows)]
    )


def main():
    """Compiles what is chosen and not there, and prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument(
        "--slice", nargs="+", default=["*"], help="patterns of slices, as v3:* or v5e:*"
    )
    parser.add_argument("--keep", help="a directory for the text of what is compiled")
    parser.add_argument("--tell", action="store_true", help="compile nothing")
    parser.add_argument(
        "--measure", type=json.loads, help="name, slice and directory of one, as JSON"
    )
    flags = parser.parse_args()
    if flags.measure:
        name, slice_name, keep = flags.measure
        (program,) = (p for p in programs() if p.name == name)
        print(json.dumps(measure(program, slice_name, keep)))
        return
    chosen = [
        (program, slice_name)
        for program in programs()
        for slice_name in program.slices
        if any(fnmatch.fnmatch(program.name, p) for p in flags.rows)
        and any(fnmatch.fnmatch(slice_name, p) for p in flags.slice)
    ]
    for program, slice_name in () if flags.tell else chosen:
        if (program.name, slice_name) in results():
            continue
        found = in_a_process(program.name, slice_name, flags.keep)
        row = dict(name=program.name, tables=program.tables, slice=slice_name, **found)
        files.write_json(RESULTS, [*results().values(), row])
        print(line(row), flush=True)
    there, names = results(), [(program.name, slice_name) for program, slice_name in chosen]
    print("\n" + tell([there[name] for name in names if name in there]))


if __name__ == "__main__":
    main()

"""Compiles every training step of the paper for its TPU slice and for TPU v5e, without TPUs.

    python -m benchmarks.pods

compiles the training step of each row of tables 1 to 3 and 6 to 11, and of the detector of COCO, as
a run on that slice would, and appends the compiler's analysis for one device to
benchmarks/pods.json: memory by kind, collective operations, floating-point operations and estimated
cycles. Rows in the file are not compiled again; a row that does not compile has an error.
--rows 'imagenet21k_*' and --slice 'v3:*' select rows and slices; --print_only prints the table
without compiling.

No step runs. A time is the sum of the cycles that the compiler estimates for each operation, with
loops counted as often as they run, divided by the clock rate. The compiler has no estimate for
collective operations, so they are reported separately. Requires libtpu (extra `tpu-compile`).
"""

import argparse
import fnmatch
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.pods_rows import programs
from heteroscedastic import files

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("pods.json")
_OFFLINE = {  # without this, libtpu queries the cloud metadata server and waits for minutes
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is used, so several processes can compile
    "JAX_PLATFORMS": "cpu",
}
# Per device, from cloud.google.com/tpu/docs ("TPU v3", "TPU v5e"): memory in GiB; bytes/s; FLOP/s
# in bfloat16; MXUs, of 128 x 128 multiply-adds per cycle. On v3 a device is one of the two cores of
# a chip.
CHIPS = {
    "v3": dict(memory=16, bandwidth=450e9, peak=61.5e12, mxus=2),
    "v5e": dict(memory=16, bandwidth=819e9, peak=197e12, mxus=4),
}


def clock(chip):
    """The clock rate in Hz, from the peak FLOP/s: 0.94 GHz for v3, 1.50 GHz for v5e."""
    return chip["peak"] / (chip["mxus"] * 128 * 128 * 2)


def measure(program, slice_name, hlo_directory=None):
    """The compiler's analysis of a program on a slice.

    Args:
      program: of pods_rows.programs.
      slice_name: topology, such as "v3:4x4".
      hlo_directory: directory for the HLO text; None writes none.
    """
    import jax
    from jax.experimental import topologies

    from benchmarks import hlo
    from benchmarks.shape_stream import ShapeStream
    from heteroscedastic.distributed.sharding import Placement
    from heteroscedastic.runs import assembly, compiled

    devices = topologies.get_topology_desc(platform="tpu", topology_name=slice_name).devices
    run = assembly.build(program.config, pipeline=ShapeStream(program.config))
    placement = Placement(
        run.steps.batch_size,
        num_microbatches=run.steps.num_microbatches,
        **run.layout,
        devices=devices,
    )
    shapes = compiled.shapes(run, placement)
    shardings = jax.tree.map(lambda x: x.sharding, shapes[0])
    start = time.process_time()
    lowered = compiled.train_step(run, placement, shardings, donates=True).lower(*shapes)
    step = lowered.compile()
    memory, cost, text = step.memory_analysis(), step.cost_analysis(), step.as_text()
    if hlo_directory:
        with gzip.open(Path(hlo_directory) / f"{program.name} {slice_name}.hlo.gz", "wt") as file:
            file.write(text)
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
        compile_seconds=round(time.process_time() - start),
        versions=dict(jax=jax.__version__, libtpu=_libtpu()),
    )


def _libtpu():
    import importlib.metadata

    return importlib.metadata.version("libtpu")


def results():
    """The rows of pods.json by (name, slice)."""
    rows = files.read_json(RESULTS) if RESULTS.exists() else []
    return {(row["name"], row["slice"]): row for row in rows}


_COMPILER_ERROR = re.compile(
    r"RESOURCE_EXHAUSTED|Ran out of memory|JaxRuntimeError|XlaRuntimeError"
)


def measure_in_subprocess(*settings):
    """The result of `measure` in another process, so that a compiler crash affects one row.

    Raises:
      RuntimeError: it failed, but not in the compiler.
    """
    command = [sys.executable, "-m", "benchmarks.pods", "--measure", json.dumps(settings)]
    done = subprocess.run(
        command, env=os.environ | _OFFLINE, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        # A compiler that crashes ends its process by a signal; others send these.
        has_crashed = -done.returncode in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
        if not has_crashed and not _COMPILER_ERROR.search(done.stderr):
            raise RuntimeError(f"{' '.join(map(str, settings[:2]))}: {reason(done.stderr)}")
        return dict(error=reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def reason(errors):
    """The last error message of the compiler, in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    messages = [
        line
        for line in lines
        if re.search(r"RESOURCE_EXHAUSTED|Ran out of memory|Error|error", line)
    ]
    return (messages or lines or ["no error message"])[-1][:300]


def total(row):
    """The memory of a device in bytes; arguments aliased with outputs count once."""
    sizes = row["bytes"]
    buffers = sizes["arguments"] + sizes["outputs"] - sizes["aliased"]
    return buffers + sizes["temporaries"] + sizes["code"]


def line(row):
    """A row of the table."""
    chip = CHIPS[row["slice"].partition(":")[0]]
    cells = [row["name"], ", ".join(row["tables"]) or "-", row["slice"]]
    if "error" in row:
        return "| " + " | ".join([*cells, f"does not compile: {row['error']}"] + [""] * 10) + " |"
    cells += [row["batch"] // row["devices"]]
    cells += [f"{row['bytes'][kind] / 1e9:.2f}" for kind in ("arguments", "temporaries")]
    used = total(row) / 2**30
    cells += [
        f"{used:.1f} of {chip['memory']}" + ("" if used <= chip["memory"] else ", **too much**")
    ]
    crossings = row["crossings"]
    cells += [", ".join(f"{kind} {x['bytes'] / 1e6:,.0f}" for kind, x in crossings.items())]
    cells += [f"{sum(x['in_loops'] for x in crossings.values()) / 1e6:,.0f}"]
    cells += [
        f"{1e3 * row['flops'] / chip['peak']:,.0f}",
        f"{1e3 * row['bytes_accessed'] / chip['bandwidth']:,.0f}",
    ]
    cells += [f"{1e3 * row['cycles'][part] / clock(chip):,.0f}" for part in ("all", "in_loops")]
    cells += [row["compile_seconds"]]
    return "| " + " | ".join(map(str, cells)) + " |"


COLUMNS = (
    "config and overrides",
    "paper's tables",
    "slice",
    "examples per device",
    "arguments, GB",
    "temporaries, GB",
    "memory in total, GiB",
    "collective operations, MB",
    "in loops, MB",
    "operations at peak, loops once, ms",
    "bytes at peak, loops once, ms",
    "estimated cycles, ms",
    "in loops, ms",
    "compile time, processor s",
)


def markdown(rows):
    """The table, in Markdown."""
    return "\n".join(
        ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS), *map(line, rows)]
    )


def main():
    """Compiles the selected rows that pods.json does not have, and prints the table.

    With --hlo_dir it compiles all of them, those of pods.json again.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", nargs="+", default=["*"], help="row names or patterns")
    parser.add_argument(
        "--slice", nargs="+", default=["*"], help="slices or patterns, such as v3:* or v5e:*"
    )
    parser.add_argument("--hlo_dir", help="directory for the HLO text of compiled programs")
    parser.add_argument(
        "--print_only", "--tell", action="store_true", help="print the table without compiling"
    )
    parser.add_argument(
        "--measure", type=json.loads, help="name, slice and HLO directory of one row, as JSON"
    )
    flags = parser.parse_args()
    if flags.measure:
        name, slice_name, hlo_directory = flags.measure
        (program,) = (p for p in programs() if p.name == name)
        print(json.dumps(measure(program, slice_name, hlo_directory)))
        return
    chosen = [
        (program, slice_name)
        for program in programs()
        for slice_name in program.slices
        if any(fnmatch.fnmatch(program.name, p) for p in flags.rows)
        and any(fnmatch.fnmatch(slice_name, p) for p in flags.slice)
    ]
    hlo_directory = flags.hlo_dir and Path(flags.hlo_dir).resolve()
    if hlo_directory:
        hlo_directory.mkdir(parents=True, exist_ok=True)
    for program, slice_name in () if flags.print_only else chosen:
        key = program.name, slice_name
        if key in results() and not hlo_directory:
            continue
        directory = hlo_directory and str(hlo_directory)
        analysis = measure_in_subprocess(*key, directory)
        row = dict(name=program.name, tables=program.tables, slice=slice_name, **analysis)
        files.write_json(RESULTS, list((results() | {key: row}).values()))
        print(line(row), flush=True)
    rows, names = results(), [(program.name, slice_name) for program, slice_name in chosen]
    print("\n" + markdown([rows[name] for name in names if name in rows]))


if __name__ == "__main__":
    main()

"""The rows of the pods benchmark, and the analysis of compiled programs."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import hlo, pods, pods_rows
from benchmarks.shape_stream import ShapeStream, canvas
from experiments import study
from heteroscedastic.distributed.sharding import Placement
from heteroscedastic.runs import assembly, compiled

TEXT = """
HloModule jit_step, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%fused (p: bf16[8,4]) -> bf16[2,4] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %scatter = bf16[2,4]{1,0:T(8,128)} reduce-scatter(%p), dimensions={0}, to_apply=%add
}

%body (t: (s32[], f32[3,5])) -> (s32[], f32[3,5]) {
  %t = (s32[], f32[3,5]{1,0}) parameter(0)
  %a = f32[3,5]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %r = f32[3,5]{1,0:T(8,128)} all-reduce(%a), channel_id=2, to_apply=%add
  %w = f32[3,5]{1,0} add(%r, %a), backend_config={"window_config":{"estimated_cycles":"50"}}
  ROOT %out = (s32[], f32[3,5]{1,0}) tuple(%i, %w)
}

%cond (t: (s32[], f32[3,5])) -> pred[] {
  %limit = s32[]{:T(256)} constant(1000)
  %t = (s32[], f32[3,5]{1,0}) parameter(0)
  %i = s32[]{:T(256)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(1024)} compare(%i, %limit), direction=LT
}

ENTRY %main (p: f32[3,5], q: bf16[8,4]) -> f32[3,5] {
  %p = f32[3,5]{1,0} parameter(0)
  %g = (f32[7]{0}, /*index=1*/pred[2]{0}) all-reduce(%p, %p), channel_id=1, to_apply=%add
  %s = (f32[2]{0}, f32[16]{0}) all-gather-start(%p), dimensions={0}
  %d = f32[16]{0} all-gather-done(%s)
  %f = bf16[2,4]{1,0} fusion(%q), calls=%fused, backend_config={"window":{"estimated_cycles":"300"}}
  %loop = (s32[], f32[3,5]{1,0}) while(%init), condition=%cond, body=%body, metadata={op_name="w"}
  ROOT %out = f32[3,5]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collective_operations_are_counted_by_kind_with_loop_iterations():
    assert hlo.crossings(TEXT) == {
        "all-gather": hlo.Crossing(1, 64, (16,), 0),  # an asynchronous operation counts once
        "all-reduce": hlo.Crossing(1002, 30 + 60_000, (3, 5), 60_000),
        "reduce-scatter": hlo.Crossing(1, 16, (2, 4), 0),  # inside a fusion
    }


def test_cycles_are_summed_over_operations_with_loop_iterations():
    assert hlo.cycles(TEXT) == hlo.Cycles(50_300, 50_000)


def test_trip_counts_are_read_from_the_installed_compiler():
    def program(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c) @ c, None), x, length=37)[0]

    text = jax.jit(program).lower(jnp.ones((4, 4))).compile().as_text()
    counts = {
        one.opcode: number
        for one, number, in_loop in hlo.executions(text, into_fusions=True)
        if in_loop
    }
    assert counts["dot" if "dot" in counts else "custom-call"] == 37


def test_every_row_of_the_papers_tables_has_one_program():
    rows = pods_rows.programs()
    names = [program.name for program in rows]
    assert len(set(names)) == len(names)
    tables = {table for program in rows for table in program.tables}
    assert tables == {"1", "2", "3", "6", "7", "8", "9", "10", "11"}
    by_name = {program.name: program for program in rows}
    # 90 and 270 epochs share a program, and so do different temperatures.
    assert by_name["imagenet_het_full"].tables == ("1", "9", "10", "11")
    assert "imagenet21k_het_diag_tau_1" not in names
    assert by_name["jft_het_pe"].slices[0] == "v3:16x16"
    for name in ("coco_frcnn_hom", "coco_frcnn_het_full"):
        assert by_name[name].tables == ()
        assert by_name[name].slices == ("v3:2x2", "v5e:2x2")
        wide, square = (by_name[f"{name}{words}"].config for words in ("", " square canvas"))
        assert (canvas(wide), canvas(square)) == ((608, 1008), (1008, 1008))
        run = assembly.build(by_name[name].config, pipeline=ShapeStream(by_name[name].config))
        assert run.steps.batch_size == 16
    samples = {
        p.config["predictive"].get("num_samples")
        for p in rows
        if p.name.startswith("imagenet_het_full")
    }
    assert samples == {1, 10, 100, 128, 1000, 10_000}


@pytest.mark.parametrize("name", ["digits_multilabel_het_pe", "digits_het_full"])
def test_a_shape_stream_has_the_shapes_of_a_stream(name):
    config = study.config(name, {"data.train": "inception_crop(32)|flip_lr|value_range(-1, 1)"})
    config["training"]["batch_size"] = 8
    config["backbone"] = dict(name="ConvNet", widths=(4,))
    run = assembly.build(config, pipeline=ShapeStream(config))
    feed = run.pipeline.example("train", training=True)
    batch = jax.eval_shape(
        lambda feed: run.pipeline.training_batch(jax.random.key(0), (), feed), feed
    )
    assert feed.inputs.dtype == np.uint8
    assert (batch.inputs.shape, batch.inputs.dtype) == ((8, 32, 32, 3), jnp.float32)
    placement = Placement(
        run.steps.batch_size, num_microbatches=run.steps.num_microbatches, **run.layout
    )
    shapes = compiled.shapes(run, placement)
    step = compiled.train_step(
        run, placement, jax.tree.map(lambda x: x.sharding, shapes[0]), donates=True
    )
    state, _, values = jax.eval_shape(step, *shapes)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, shapes[0])
    assert values.losses.shape == (8,)


ROW = dict(
    name="a",
    tables=["1"],
    slice="v3:4x4",
    devices=32,
    batch=1024,
    bytes=dict(arguments=3e9, outputs=2e9, aliased=2e9, temporaries=4e9, code=0),
    crossings={"all-reduce": dict(count=1, bytes=5e6, largest=[1], in_loops=1e6)},
    flops=61.5e9,
    bytes_accessed=450e6,
    cycles=dict(all=938_415, in_loops=469_207),
    compile_seconds=80,
)


def test_a_line_has_memory_collective_operations_and_times():
    cells = pods.line(ROW).split(" | ")
    assert cells[3:] == [
        "32",
        "3.00",
        "4.00",
        "6.5 of 16",
        "all-reduce 5",
        "1",
        "1",
        "1",
        "1",
        "0",
        "80 |",
    ]
    large = {**ROW, "bytes": {**ROW["bytes"], "temporaries": 15e9}}
    assert "16.8 of 16, **too much**" in pods.line(large)
    assert len(cells) == len(pods.COLUMNS)


def test_a_row_that_does_not_compile_is_recorded_and_not_compiled_again(
    tmp_path, monkeypatch, capsys
):
    compiled_names = []

    def failing_measure(name, *settings):
        compiled_names.append(name)
        errors = (
            "trace\nRESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20G\n  at x"
        )
        return dict(error=pods.reason(errors))

    monkeypatch.setattr(pods, "measure_in_subprocess", failing_measure)
    monkeypatch.setattr(pods, "RESULTS", tmp_path / "pods.json")
    for _ in range(2):
        monkeypatch.setattr(
            "sys.argv", ["pods", "--rows", "imagenet21k_het_pe*", "--slice", "v3:*"]
        )
        pods.main()
    assert len(compiled_names) == len(set(compiled_names)) == 8
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        "does not compile: RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20G"
        in last
    )
    assert last.count(" | ") == len(pods.COLUMNS) - 1
    assert len(json.loads((tmp_path / "pods.json").read_text())) == 8


@pytest.mark.parametrize(
    ("status", "errors", "is_of_compiler"),
    [
        (1, "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory", True),
        (-11, "Fatal error", True),
        (-9, "Killed", False),
        (1, "ModuleNotFoundError: No module named 'libtpu'", False),
    ],
)
def test_only_failures_of_the_compiler_are_rows(monkeypatch, status, errors, is_of_compiler):
    done = subprocess.CompletedProcess([], status, "", f"Traceback\n{errors}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    if is_of_compiler:
        assert pods.measure_in_subprocess("a", "v3:2x2", None) == {"error": errors}
    else:
        with pytest.raises(RuntimeError, match=f"^a v3:2x2: {errors}"):
            pods.measure_in_subprocess("a", "v3:2x2", None)


def test_with_a_directory_saved_rows_are_compiled_again(monkeypatch, tmp_path):
    monkeypatch.setattr(pods, "RESULTS", tmp_path / "pods.json")
    monkeypatch.setattr(pods, "line", str)
    monkeypatch.setattr(pods, "markdown", str)
    monkeypatch.chdir(tmp_path)
    directories = []

    def measure(name, slice_name, directory):
        directories.append(directory)
        return {}

    monkeypatch.setattr(pods, "measure_in_subprocess", measure)
    flags = ["pods", "--rows", "imagenet21k_het_pe", "--slice", "v3:*"]
    monkeypatch.setattr("sys.argv", flags)
    pods.main()
    number = len(directories)
    monkeypatch.setattr("sys.argv", [*flags, "--hlo_dir", "hlo"])
    pods.main()
    assert number > 0
    assert directories == number * [None] + number * [str(tmp_path / "hlo")]
    assert (tmp_path / "hlo").is_dir()
    assert len(json.loads((tmp_path / "pods.json").read_text())) == number


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="needs libtpu: pip install -e .[tpu-compile]"
)
def test_a_small_step_is_compiled_for_a_slice_without_tpus(tmp_path):
    program = (
        "import json; from experiments import study\n"
        "from benchmarks import pods; from benchmarks.pods_rows import Program\n"
        "config = study.config('digits_het_full', {'data.train':"
        " 'inception_crop(32)|value_range(-1, 1)',"
        " 'backbone': {'name': 'MLP', 'widths': (32,)}, 'predictive.num_samples': 128})\n"
        "config['training']['batch_size'] = 64\n"
        "print(json.dumps(pods.measure(Program('small', (), config, ()), 'v3:2x2')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | pods._OFFLINE | {"XLA_FLAGS": ""},  # libtpu refuses those of the tests
        cwd=pods.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["devices"], row["batch"]) == (8, 64)
    assert set(row["crossings"]) == {"all-reduce"}
    assert row["cycles"]["all"] > row["cycles"]["in_loops"] > 0
    assert 0 < pods.total(row) < 2**30

import argparse
import importlib
import json
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from benchmarks import chips, gpu


class _Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(6, (3, 3), strides=2, padding=1)(x)
        x = nn.Conv(4, (5, 3), kernel_dilation=2, feature_group_count=2)(x)
        return nn.Dense(7)(x.mean(axis=(1, 2))).sum()


def test_operations_of_a_network_are_those_that_the_compiler_counts():
    network, x = _Network(), jnp.ones((3, 17, 14, 5))
    params = network.init(jax.random.key(0), x)
    step = jax.value_and_grad(lambda params, x: network.apply(params, x), argnums=(0, 1))
    expected = jax.jit(step).lower(params, x).cost_analysis()["flops"]
    assert chips.demand(step, params, x).operations == pytest.approx(expected, rel=0.02)


def test_a_loop_counts_as_often_as_it_runs_and_a_move_never():
    a, b = jnp.ones((8, 5)), jnp.ones((5, 5))
    product = 2 * 8 * 5 * 5

    def repeated(a, b):
        return jax.lax.scan(lambda c, _: (c @ b, None), a, length=10)[0]

    assert chips.demand(repeated, a, b) == (10 * product, 4 * (40 + 25 + 40))
    branches = (lambda a: a @ b, lambda a: a + 1)
    chosen = chips.demand(lambda i, a: jax.lax.cond(i, *branches, a), jnp.array(True), a)
    assert chosen.operations == product
    assert chips.demand(lambda a: a.T.reshape(2, 20)[::-1], a).operations == 0


def test_peaks_are_those_of_the_device_or_unknown():
    class Device:
        device_kind = "NVIDIA H200"

    assert chips.chip(Device()).bandwidth == 4_800
    assert chips.chip(jax.devices("cpu")[0]) is None


def test_the_tables_of_a_text_are_its_rows_by_column():
    text = "ResNet\n| a | b |\n| --- | :--- |\n| 1 | -0.5 |\n| 2 |  |\n\n| c |\n| --- |\n| x |\nend"
    assert gpu.tables(text) == [[{"a": "1", "b": "-0.5"}, {"a": "2", "b": ""}], [{"c": "x"}]]


def test_a_command_that_fails_or_takes_too_long_loses_no_other(monkeypatch, tmp_path, capsys):
    (tmp_path / "works.py").write_text(r"print('| a |\n| --- |\n| 1 |')")
    (tmp_path / "fails.py").write_text("raise ValueError")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(gpu, "COMMANDS", ("fails", "works"))
    monkeypatch.setattr(gpu, "_PROVENANCE", "print('{}')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu", f"--out={out}"])
    gpu.main()
    failed, worked = json.loads(out.read_text())["results"]
    assert failed["error"] == "exit status 1"
    assert "ValueError" in failed["text"]
    assert worked["tables"] == [[{"a": "1"}]]
    assert "error" not in worked
    assert capsys.readouterr().out.count("python -m") == 2
    assert gpu.result("hangs", 0.1)["error"].startswith("ended")
    assert gpu.result("works", 0.0)["error"].startswith("not started")


def _parse_and_stop(self, *arguments, parse=argparse.ArgumentParser.parse_args):
    parse(self, *arguments)
    raise StopIteration


@pytest.mark.parametrize("command", gpu.COMMANDS)
def test_every_command_is_a_benchmark_with_valid_flags(command, monkeypatch):
    name, *flags = command.split()
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", _parse_and_stop)
    monkeypatch.setattr(sys, "argv", [name, *flags])
    with pytest.raises(StopIteration):
        importlib.import_module(name).main()

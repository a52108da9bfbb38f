"""Compiled programs on disk: loaded by later processes, of this kind of machine alone."""

import subprocess
import sys

import jax
import pytest

from heteroscedastic.runs import compilation_cache

_PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from heteroscedastic.runs import compilation_cache

compilation_cache._MIN_COMPILE_SECONDS = 0.0
compilation_cache.enable(sys.argv[1])
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
value = jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.arange(12.0).reshape(3, 4)).sum()
print(events.count("/jax/compilation_cache/cache_hits"), float(value).hex())
"""


@pytest.fixture
def settings():
    """The settings of JAX that a test changes; no directory is set at first."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_second_process_loads_what_the_first_compiled(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)

    def run(directory):
        command = [sys.executable, "-c", _PROGRAM, directory]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        hits, value = output.split()
        return int(hits), value

    (first, value), (second, same) = run(str(tmp_path)), run(str(tmp_path))
    assert first == 0 < second
    assert value == same
    assert run("")[0] == 0  # no cache


def test_a_directory_that_the_user_has_set_stays(settings, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.enable(str(tmp_path / "other"))
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
    assert not (tmp_path / "other").exists()


def test_the_default_is_in_the_users_cache_and_only_the_user_may_write(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compilation_cache.enable()
    directory = compilation_cache.default_directory()
    assert jax.config.jax_compilation_cache_dir == str(directory)
    assert directory.is_relative_to(tmp_path)
    assert directory.stat().st_mode & 0o077 == 0


def test_a_directory_may_be_in_the_users_home_or_in_a_bucket(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    compilation_cache.enable("~/programs")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "programs")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.chdir(tmp_path)
    compilation_cache.enable("gs://bucket/programs")
    assert jax.config.jax_compilation_cache_dir == "gs://bucket/programs"
    assert not (tmp_path / "gs:").exists()


def test_another_processor_has_another_directory(monkeypatch):
    here = compilation_cache.default_directory()
    assert compilation_cache._cpu()
    monkeypatch.setattr(compilation_cache, "_cpu", lambda: "flags: fpu")
    assert compilation_cache.default_directory() != here


def test_without_a_directory_a_command_compiles_and_warns(settings, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="not saved.*file"):
        compilation_cache.enable(str(tmp_path / "file" / "below"))
    assert jax.config.jax_compilation_cache_dir is None

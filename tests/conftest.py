"""Shapes in signatures are checked on every call of every test."""

import pytest
from jaxtyping import install_import_hook

install_import_hook("heteroscedastic", "typechecking.checked")


@pytest.fixture(autouse=True, scope="module")
def _forget_what_was_compiled():
    """Programs of a module are of no use to the next, and fill the memory of a small machine."""
    yield
    import jax

    jax.clear_caches()

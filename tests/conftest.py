"""Shapes in signatures are checked on every call of every test."""

from jaxtyping import install_import_hook

install_import_hook("heteroscedastic", "typechecking.checked")

"""Shapes in signatures are checked on every call of every test."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from jaxtyping import install_import_hook

install_import_hook("heteroscedastic", "typechecking.checked")

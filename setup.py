"""The packages of a distribution; pyproject.toml has everything else.

The configs stand beside the package in a checkout, and in the package of a wheel.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["heteroscedastic*"]), "heteroscedastic.configs"],
    package_dir={"heteroscedastic.configs": "configs"},
)

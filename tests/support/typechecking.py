"""The type checker of tests: an int is valid for a float, as in PEP 484."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

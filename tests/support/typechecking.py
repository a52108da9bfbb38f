"""The checker of annotations in tests: an int will do for a float, as PEP 484 says."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))

"""One page about finished runs."""

"""A report page about finished runs."""

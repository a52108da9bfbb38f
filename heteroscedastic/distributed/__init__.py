"""Several hosts and devices."""

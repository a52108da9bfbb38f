"""Labels and predictions that are wrong."""

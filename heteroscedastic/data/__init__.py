"""Data sets, and the pipelines that make batches of them."""

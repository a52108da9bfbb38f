"""Experiments: one folder per paper, with the rows of its tables, its numbers and its claims."""

"""Data sets on disk."""

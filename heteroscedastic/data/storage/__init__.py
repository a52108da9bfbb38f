"""Data sets as they are stored."""

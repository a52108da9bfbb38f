"""Analysis of finished runs; nothing here trains."""

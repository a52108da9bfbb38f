"""Reading finished runs; nothing here trains."""

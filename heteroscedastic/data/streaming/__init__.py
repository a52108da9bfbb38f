"""The streaming pipeline, for data that does not fit into memory."""

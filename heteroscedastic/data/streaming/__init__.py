"""The pipeline for data that does not fit into memory: tf.data."""

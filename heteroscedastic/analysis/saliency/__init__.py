"""Which places of an image a prediction, or its noise, depends on."""

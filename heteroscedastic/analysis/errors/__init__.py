"""Wrong labels and wrong predictions."""

"""The covariance between classes that a run has learned."""

"""The covariance that a run learned."""

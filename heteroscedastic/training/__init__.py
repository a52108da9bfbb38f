"""Training as pure functions: state, step, optimizer, evaluation."""

"""How far stated probabilities agree with observed frequencies."""

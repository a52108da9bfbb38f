"""What the confidence of runs is worth."""

"""One folder a paper: its rows, its numbers, its claim."""

"""Commands that show a data set."""

"""Commands that inspect a data set."""

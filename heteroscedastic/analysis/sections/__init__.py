"""Parts of a report: (Compared) -> Section each."""

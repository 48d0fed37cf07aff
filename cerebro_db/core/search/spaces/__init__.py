"""The spaces that searches look in: their dimensions, reading them, and their points."""

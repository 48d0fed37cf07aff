"""The search methods, one per file, and what several of them have in common."""

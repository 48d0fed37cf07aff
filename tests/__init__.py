"""A regular package, so that no package `tests` in an environment hides it."""

"""The model tables of a run."""

"""Values passed along the edges of a graph: ``cerebro.propagate``."""

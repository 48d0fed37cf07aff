"""`make bench`: cerebro_db against what its users would run instead. docs/benchmarks.md says how to read it."""

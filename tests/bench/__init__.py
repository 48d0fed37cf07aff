"""`make bench`: cerebro_db compared with the tools that its users would run instead.  See docs/benchmarks.md."""

"""Models that are larger than the memory of a trainer: cut into shards of layers, which are in memory one at a time."""

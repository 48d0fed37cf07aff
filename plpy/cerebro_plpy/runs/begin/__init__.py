"""A new run is put on record, with the states that its models start from."""

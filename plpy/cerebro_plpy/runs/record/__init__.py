"""A run as it is on record: its models, their states, its log."""

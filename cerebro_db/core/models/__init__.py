"""Trained models: their state, the columns of their tables, values of metrics, calibrations, members."""

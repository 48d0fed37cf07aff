"""Packed tables: which columns become which variables, packing them, and reading what was packed.

runs/, predicting/, judging/, lifecycle/ and api.py use it.
"""

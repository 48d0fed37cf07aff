"""Packed tables: which columns become which variables, packing them, and reading what was packed.

runs/, predicting/, judging/, verbs/ and api.py use it.
"""

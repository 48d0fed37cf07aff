"""Packed tables: which columns become which variables, packing them, and reading what was packed.

models/, runs/, predicting/, judging/, verbs/ and api.py use it.
"""

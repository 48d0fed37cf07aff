"""Packed tables: which columns become which variables, packing them, and reading what was packed.

runs/, serving/ and api.py use it.
"""

"""A training run from request to model tables: its log, its driver, its ends.

verbs/, doctor/ and api.py may use it.
"""

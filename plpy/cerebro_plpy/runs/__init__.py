"""A training run from request to model tables: its log, its driver, its ends.

api.py and doctor/ may use it.  serving/ uses some of its checks.
"""

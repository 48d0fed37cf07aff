"""A training run from request to model tables: its log, its driver, its ends.

api.py and doctor/ may use it.  predicting/, judging/ and lifecycle/ use some of its checks.
"""

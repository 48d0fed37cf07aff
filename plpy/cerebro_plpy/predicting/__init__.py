"""Trained models applied to rows: predictions of a query, of a table, and of one row.

judging/, verbs/, doctor/ and api.py may use it.
"""

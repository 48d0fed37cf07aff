"""Trained models applied to rows: evaluate and predict.

Only api.py and doctor/ may use it.
"""

"""Boosted trees: rows in bins, the trees that grow from them, and what they are to lessen.

NumPy alone.  The layers that hold the trees are in cerebro_db/core/architecture/trees.py.
"""

"""How good trained models are: on rows of a query, on packed rows, and on the rows of today.

verbs/ and api.py may use it.
"""

"""How good trained models are on the rows of a query or on packed rows, and how far rows have drifted.

verbs/ and api.py may use it.
"""

"""What becomes of trained models: ensembles, versions in the registry, training again, and dropping.

Only api.py may use it.
"""

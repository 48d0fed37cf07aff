"""Registered models: versions of a model by a name that users share.

A version is a set of model tables in the schema ``cerebro_registry``, and an alias is a name for a version.  What is
there, and who may do what, follows from the history in ``cerebro.registry_event``.
"""

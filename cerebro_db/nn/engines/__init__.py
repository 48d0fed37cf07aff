"""The frameworks that can train a model: one module each, behind the interface in ``base``.

The trainer and its programs use ``base``; only ``base`` imports the module of an engine, by its name.
"""

"""Search policies, one per file: what becomes of a model after an epoch.  Pure functions of the run's history.

core/scheduling and runs/ of cerebro_plpy use it.
"""

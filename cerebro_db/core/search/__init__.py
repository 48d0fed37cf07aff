"""What all search methods share: their contract, the run's history, decisions, budgets and requests.

core/scheduling and runs/ of cerebro_plpy use it.
"""

"""Compile and fit parameters: their grammar, the names that they may contain, and the grids that generate them.

definitions/, runs/ and predicting/ of cerebro_plpy use it, and the trainer.
"""

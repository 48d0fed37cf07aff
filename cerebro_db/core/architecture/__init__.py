"""Keras architectures as JSON: reading, translation from Keras 2, the allow-list, mixed precision.

definitions/, runs/ and predicting/ of cerebro_plpy use it, the client, and the trainer.
"""

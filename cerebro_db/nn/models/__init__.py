"""Keras models from configurations: how they are built, and how their columns and numbers are adapted.

The engines and the modules of the trainer use it.
"""

"""Functions that need several of the folders below: train, resume, retrain, ensemble, register, calibrate, drop.

Each checks what the caller wrote, makes typed values of it, and calls the folders below.  Only api.py may use it.
"""

"""The doors of what needs several rooms: train, resume, retrain, ensemble, register, calibrate, drop.

Each turns what the caller wrote into typed values once, and tells the rooms below what to do.  Only api.py may use it.
"""

"""Models as tables hold them: which tables a model has, reading it, its weights and its calibration."""

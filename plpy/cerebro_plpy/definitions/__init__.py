"""What users define before a run: architectures, model selection tables and custom functions.

Everything above may use it.
"""

"""What users define by name: architectures, model selection tables, custom functions, and names of registered models.

Everything above may use it.
"""

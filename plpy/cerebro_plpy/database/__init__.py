"""The caller's session: statements through plpy, the tables that exist, and how a cancel is noticed.

Everything above may use it.
"""

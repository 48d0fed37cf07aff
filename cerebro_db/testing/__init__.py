"""Contracts for packages that extend cerebro_db by entry points (docs/extending.md).

A contract is a class of tests. The tests of a package have a subclass of it. The built-in engines, search methods and
trackers are tested by the same code.
"""

"""The contracts of what packages of others add by entry points, for the tests of these packages (docs/extending.md).

A package has a subclass of the contract in a file of its tests and runs pytest. Our own are tested by the same code.
"""

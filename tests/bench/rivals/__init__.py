"""The rivals: scripts of their own processes that share no code with the product.

Each is called with one argument, a folder: ``work.json`` and the arrays are read there, ``result.json`` is
written there. A rival is as its best user would write it; where that takes a choice, a comment says which.
"""

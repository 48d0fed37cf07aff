"""The rows of a segment: mapped files, their slabs, and rows as PostgreSQL's arrays.

The engines and the modules of the trainer use it.
"""

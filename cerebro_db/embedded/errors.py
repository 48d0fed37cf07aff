"""The error that the embedded cluster raises."""

from __future__ import annotations


class ClusterError(Exception):
    """One line that says what is wrong and what to do about it."""

"""How messages write numbers."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """``1 row``, ``1,437 rows``"""
    return f"{number:,} {what}{'' if number == 1 else 's'}"

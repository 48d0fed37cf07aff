"""Prints docs/reference/protocol.md."""

from __future__ import annotations

from .page import page

print(page(), end="")

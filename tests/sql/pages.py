"""The examples of the pages: the blocks of code in the order of a page, and their statements."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A block that cannot run has the reason in a comment before it.
BLOCK = re.compile(r"(<!-- does not run in a test: .+? -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str, *, every: bool = False) -> list[str]:
    """The blocks of a page in a language that run as printed; ``every``: the others, too."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [code for reason, tongue, code in found if tongue == language and (every or not reason)]


def statements(block: str) -> list[str]:
    """Those of a block: each ends with a semicolon at the end of a line, or before a comment."""
    return [one.strip() for one in re.split(r";[ ]*(?:--[^\n]*)?\n", block) if one.strip()]

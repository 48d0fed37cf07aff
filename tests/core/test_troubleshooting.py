"""Each message that docs/operate.md quotes is in the code, with the same words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operate.md").read_text().partition("\n## Messages\n")[2].partition("\n## ")[0]
STATUSES = {"interrupted", "created", "running"}  # of runs, which the page lists, too
ROWS = re.findall(r"^\| (`[^|]+) \|", PAGE, re.MULTILINE)  # their first column
QUOTED = [message for row in ROWS for message in re.findall(r"`([^`]+)`", row) if message not in STATUSES]
# Messages that a row quotes beside the first one.
QUOTED += [
    "it numbers the rows",
    "its numbers are different in every row, so they identify rows",
    "its numbers are different in every row, and its name is that of a key",
    "have a value that training has not seen",
    "are NaN or infinite",
]


def python_texts(source: str) -> Iterator[str]:
    """The texts of a module as its user reads them, with … for what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [part for side in (node.left, node.right) for part in [*python_texts(ast.unparse(side))][:1]]
            yield "…".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def sql_texts(source: str) -> Iterator[str]:
    without_comments = re.sub(r"--[^\n]*", "", source)
    for text in re.findall(r"'((?:[^']|'')*)'", without_comments):
        yield text.replace("''", "'").replace("%", "…")


MODULES = [file for top in ("plpy", "cerebro_db") for file in (ROOT / top).rglob("*.py")]
TEXTS = [
    *(text for file in MODULES for text in python_texts(file.read_text())),
    *(text for file in (ROOT / "sql").rglob("*.sql") for text in sql_texts(file.read_text())),
]


def is_in_the_code(message: str) -> bool:
    """Every fixed part of the message stands in one text, in this order."""
    pattern = re.compile(".*".join(map(re.escape, filter(None, message.split("…")))), re.DOTALL)
    return any(pattern.search(text) for text in TEXTS)


def test_the_page_has_messages() -> None:
    assert len(QUOTED) > 40 and len(set(QUOTED)) == len(QUOTED)
    assert all(message in PAGE for message in QUOTED)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    assert is_in_the_code(message)


def test_the_check_notices_other_words() -> None:
    assert not is_in_the_code("the trainer was murdered, most likely because memory ran out")
    assert not is_in_the_code("you have … runs under way, and could have … at once")

"""Keras' and TensorFlow's errors, cut down to the sentence that says what is wrong."""

from __future__ import annotations

import re
import traceback

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NODE = re.compile(r"\s*\[\[\{\{node .*|\{\{function_node [^}]*\}\}\s*|\s*\[Op:\w+\].*")
LONGEST = 400
TAIL_LINES = 12


def one_line(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error)
    bold = re.search(r"\x1b\[1m(.*?)\x1b\[0m", text, re.S)  # Keras sets the sentence itself in bold
    text = ANSI.sub("", bold.group(1) if bold else text)
    text = text.rpartition("Exception encountered: ")[2]  # deserialization wraps its errors, innermost last
    if text.startswith("Graph execution error"):
        text = text.rpartition("\n\n")[2]  # what comes before is where the node was defined
    lines = [NODE.sub("", line).strip() for line in text.splitlines()]
    line = next((line for line in lines if line), type(error).__name__)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def tail(error: BaseException) -> str:
    """The end of the traceback, for whoever has to find out more."""
    return "\n".join("".join(traceback.format_exception(error)).rstrip().splitlines()[-TAIL_LINES:])

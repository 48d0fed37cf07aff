"""Errors of Keras and of the frameworks, cut down to the sentence that says what is wrong."""

from __future__ import annotations

import errno
import re
import traceback

from cerebro_db.core.errors import (
    MAKE_ROOM,
    NO_ROOM,
    CerebroError,
    DiskFull,
    InvalidArgument,
    OutOfMemory,
    TrainerFailed,
)

ANSI = re.compile(r"\x1b\[[0-9;]*m")
NODE = re.compile(r"\s*\[\[\{\{node .*|\{\{function_node [^}]*\}\}\s*|\s*\[Op:\w+\].*")
GATHER = re.compile(r"\{\{node (?:[^}]*/)?([^/}]+)/GatherV2")
LONGEST = 400
TAIL_LINES = 12


def as_error(error: Exception) -> CerebroError:
    """The error that the other side of the pipe is told."""
    if isinstance(error, CerebroError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory("the trainer ran out of memory", detail=tail(error))
    if isinstance(error, KeyError):
        return InvalidArgument(f"the configuration or the layout lacks {error}", detail=tail(error))
    if isinstance(error, OSError):
        if error.errno in NO_ROOM:
            return DiskFull(str(error), detail=tail(error), hint=MAKE_ROOM)
        kind = OutOfMemory if error.errno == errno.ENOMEM else TrainerFailed
        return kind(str(error), detail=tail(error))
    return TrainerFailed(one_line(error), detail=tail(error))


def one_line(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error)
    bold = re.search(r"\x1b\[1m(.*?)\x1b\[0m", text, re.S)  # Keras sets the sentence itself in bold
    text = ANSI.sub("", bold.group(1) if bold else text)
    text = text.rpartition("Exception encountered: ")[2]  # deserialization wraps its errors, innermost last
    gather = GATHER.search(text)
    if text.startswith("Graph execution error"):
        text = text.rpartition("\n\n")[2]  # the text before names the place where the node was defined
    lines = [NODE.sub("", line).strip() for line in text.splitlines()]
    line = next((line for line in lines if line), type(error).__name__)
    if gather and "is not in [0," in line:
        line = f"the layer {gather.group(1)} (Embedding) has no such row: {line}"
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def tail(error: BaseException) -> str:
    """The end of the traceback."""
    return "\n".join("".join(traceback.format_exception(error)).rstrip().splitlines()[-TAIL_LINES:])

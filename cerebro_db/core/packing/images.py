"""Columns of bytes: the pixels of images, or the files of images, which have to be decoded first."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

MOST_BEGINNING = 12  # bytes of a file that tell its format
FORMATS = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"II*\0": "TIFF", b"MM\0*": "TIFF"}
DECODE = (
    "Files of images must be decoded and brought to one size before they are packed. The command cerebro images makes"
    " such a table; docs/prepare.md describes it."
)


def format_of(beginning: bytes) -> str | None:
    """The format of a file of an image, by its first bytes; None if it is none that is known."""
    if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP":
        return "WebP"
    if beginning[:2] == b"BM" and beginning[6:10] == bytes(4):
        return "BMP"
    return next((name for start, name in FORMATS.items() if beginning.startswith(start)), None)


def needs_shape(column: str) -> str:
    """A hint: how a column of bytes becomes an input."""
    name = json.dumps(column, ensure_ascii=False)
    return f"If it has the pixels of images: prepare => '{{{name}: {{\"shape\": [height, width, channels]}}}}'."


def comment(shape: Sequence[int]) -> str:
    """What the comment of a column of pixels says, so that nobody has to name the shape again."""
    return f"pixels of shape {json.dumps([*shape])}"


def shape_of(comment: str) -> list[int] | None:
    """The shape in such a comment; None if it is another one."""
    found = re.fullmatch(r"pixels of shape \[([1-9]\d{0,4}), ([1-9]\d{0,4}), ([134])\]", comment)
    return [int(one) for one in found.groups()] if found else None

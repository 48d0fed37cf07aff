"""``cerebro_internal._word_pieces``: the numbers of a text's pieces, on the server that has the row.

It is called for each row, so it takes the vocabulary as bytes, and remembers the last one: comparing them takes a tenth
of the time of dividing them into pieces.
"""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument
from cerebro_db.core.packing.features import MOST_LENGTH
from cerebro_db.core.word_pieces import PieceNumbers, what_is_wrong

_last: tuple[bytes, PieceNumbers] | None = None


def word_pieces(plpy: Any, value: str | None, length: int | None, vocabulary: bytes | None) -> list[int]:
    """Of a NULL those of an empty text."""
    global _last
    if _last is None or _last[0] != vocabulary or _last[1].length != length:
        if length is None or not 2 <= length <= MOST_LENGTH:
            plpy.error(f"length must be from 2 to {MOST_LENGTH:,}, not {length}", sqlstate=InvalidArgument.sqlstate)
        pieces = (vocabulary or b"").decode(errors="replace").split("\n")
        if why := what_is_wrong(pieces):
            plpy.error(f"vocabulary is no list of pieces of words: {why}", sqlstate=InvalidArgument.sqlstate)
        _last = vocabulary or b"", PieceNumbers(pieces, length or 0)
    return _last[1](value or "")

"""Texts as the numbers of pieces of words, as BERT's tokenizer for texts without capitals makes them.

The server uses this where a column becomes words with a vocabulary, and the client for models of its own.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

BEGIN, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
NEEDED = (BEGIN, END, UNKNOWN)
MOST_CHARACTERS = 1_000_000  # of a text that are read
LONGEST_WORD = 100  # characters; BERT does not know longer ones
_WORDS = re.compile(r"[一-鿿]|[^\W_一-鿿]+|[^\w\s]|_")  # each Chinese character is a word


class PieceNumbers:
    """``vocabulary``: the pieces in the order of their numbers.  ``length``: of each list; 0 fills up, the rest of a
    longer text is left out.
    """

    def __init__(self, vocabulary: Sequence[str], length: int) -> None:
        self.numbers = {piece: number for number, piece in enumerate(vocabulary)}
        self.length = length

    def __call__(self, text: str) -> list[int]:
        plain = "".join(
            one
            for one in unicodedata.normalize("NFD", text[:MOST_CHARACTERS].lower())
            if unicodedata.category(one) != "Mn"
        )
        found: list[str] = []
        for word in _WORDS.finditer(plain):
            if len(found) >= self.length - 2:
                break
            found += self._pieces(word.group())
        numbers = [self.numbers[one] for one in (BEGIN, *found[: self.length - 2], END)]
        return numbers + [0] * (self.length - len(numbers))

    def _pieces(self, word: str) -> list[str]:
        """The longest known piece at the beginning, then the longest one of the rest."""
        if len(word) > LONGEST_WORD:
            return [UNKNOWN]
        found: list[str] = []
        while word:
            mark = "##" if found else ""
            end = next((end for end in range(len(word), 0, -1) if mark + word[:end] in self.numbers), None)
            if end is None:
                return [UNKNOWN]
            found.append(mark + word[:end])
            word = word[end:]
        return found


def what_is_wrong(vocabulary: Sequence[str]) -> str | None:
    """Why a list of pieces is no vocabulary; None: it is one."""
    if missing := [one for one in NEEDED if one not in vocabulary]:
        return f"it lacks {', '.join(missing)}"
    if len({*vocabulary}) < len(vocabulary):
        return "a piece is in it twice"
    return None

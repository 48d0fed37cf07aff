"""Pieces of words and their numbers, as BERT's tokenizer makes them."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro_db.core import codec
from cerebro_db.core.codec import Misfit
from cerebro_db.core.errors import CerebroError, InvalidArgument
from cerebro_db.core.packing.columns import wishes
from cerebro_db.core.packing.features import Feature, WordsFeature
from cerebro_db.core.sql_types import SqlType
from cerebro_db.core.word_pieces import LONGEST_WORD, PieceNumbers

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "cafe", "'", "s", "!", "日", "本", "_"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Unaffable", [2, 4, 5, 6, 3, 0, 0, 0]),
        ("Café's!", [2, 7, 8, 9, 10, 3, 0, 0]),
        ("日本 _s", [2, 11, 12, 13, 9, 3, 0, 0]),
        ("unable? un", [2, 4, 6, 1, 4, 3, 0, 0]),
        ("unknown un", [2, 1, 4, 3, 0, 0, 0, 0]),
        ("", [2, 3, 0, 0, 0, 0, 0, 0]),
        ("s s s unaffable s s", [2, 9, 9, 9, 4, 5, 6, 3]),
        ("s" * (LONGEST_WORD + 1), [2, 1, 3, 0, 0, 0, 0, 0]),
    ],
)
def test_the_longest_known_pieces(text: str, numbers: list[int]) -> None:
    assert PieceNumbers(PIECES, 8)(text) == numbers


def test_what_is_no_vocabulary_is_refused_with_its_reason() -> None:
    def refused(**given: Any) -> str:
        with pytest.raises(InvalidArgument) as error:
            wishes({"body": {"as": "words", "length": 8, **given}}, {"body": ("text", "text")}, "prepare")
        return f"{error.value} {error.value.hint}"

    text = "\n".join(PIECES)
    assert "it lacks [CLS], [SEP]" in refused(vocabulary="[UNK]\na")
    assert "a piece is in it twice" in refused(vocabulary=text + "\nun")
    assert "it is no text" in refused(vocabulary=PIECES)
    assert "takes no ids" in refused(vocabulary=text, ids=9)
    assert "needs a length of 2" in refused(vocabulary=text, length=1)
    found = wishes({"body": {"as": "words", "length": 8, "vocabulary": text}}, {"body": ("text", "text")}, "prepare")
    assert found["body"].arguments["vocabulary"] == text


def test_a_document_that_was_tampered_with_is_refused() -> None:
    feature = WordsFeature("text", SqlType("text"), 8, len(PIECES), "\n".join(PIECES))
    document = codec.encode(feature)
    assert Feature.from_document(document) == feature
    for changed in ({"ids": 3}, {"vocabulary": "a\nb"}, {"length": 1}):
        with pytest.raises((Misfit, CerebroError)):
            Feature.from_document({**document, **changed})

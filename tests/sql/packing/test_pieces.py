"""Texts that become pieces of words, for a body that was trained on these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cerebro_db import client
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.core.word_pieces import PieceNumbers
from tests.core.test_word_pieces import PIECES
from tests.sql.lab import Lab

WISH = {"body": {"as": "words", "length": 6, "vocabulary": "\n".join(PIECES)}}
TEXTS = ["Unaffable!", "café's 日本", "nobody knows it", None, "s un s un s un s"]


@pytest.fixture(scope="module")
def notes(lab: Lab) -> Lab:
    lab("CREATE TABLE notes (id integer, body text, kind text)")
    for number in range(60):
        lab("INSERT INTO notes VALUES (%s, %s, %s)", number, TEXTS[number % 5], "ab"[number % 5 < 2])
    lab("SELECT pack('notes', 'packed', 'kind', 'body', prepare => %s)", json.dumps(WISH))
    lab('SELECT fit(\'packed\', \'m\', \'[{"architecture": "mlp", "units": 8, "learning_rate": 0.05}]\', epochs => 10)')
    return lab


def test_the_server_makes_the_numbers_of_the_client(notes: Lab) -> None:
    numbers = PieceNumbers(PIECES, 6)
    found = notes("SELECT body, cerebro_internal._word_pieces(body, 6, convert_to(%s, 'UTF8')) FROM notes",
                  "\n".join(PIECES))  # fmt: skip
    assert all(its == numbers(body or "") for body, its in found) and len(found) == 60
    shown = notes("SELECT parameters FROM prepared_columns('packed') WHERE column_name = 'body'")
    assert shown == [({"length": 6, "ids": len(PIECES)},)]


def test_a_text_becomes_an_answer_in_one_statement(notes: Lab) -> None:
    """Also a NULL, as an empty text, and rows that are added later."""
    rows = notes("SELECT key_value, class FROM predict('m', 'SELECT id, body FROM notes', 'id')")
    assert {(int(key) % 5 < 2, said) for key, said in rows} == {(True, "b"), (False, "a")}
    one = notes("SELECT class FROM predict('m', $$SELECT 'UNAFFABLE !' AS body$$)")
    assert one == [("b",)]
    notes("SELECT create_predictor('m', 'kind_of')")
    assert notes("SELECT kind_of(body => 'Unaffable!'), kind_of(body => 'who knows')") == [("b", "a")]
    notes("CREATE TABLE later AS SELECT * FROM notes WHERE id < 10")
    notes("SELECT append('packed', 'later')")
    assert len(notes("SELECT * FROM embed('m', 'later')")) == 10


def test_where_the_numbers_cannot_be_made(notes: Lab, tmp_path: Path) -> None:
    with Cerebro(notes.dsn) as cerebro, pytest.raises(client.ClientError, match="pieces of words") as refused:
        cerebro.export(f"{notes.schema}.m", tmp_path / "x.safetensors", scorer=True)
    assert refused.value is not None and list(tmp_path.iterdir()) == []


def test_words_of_a_column_that_is_no_text(notes: Lab) -> None:
    wish: dict[str, Any] = {"id": WISH["body"]}
    with pytest.raises(Exception, match="cannot become words"):
        notes("SELECT pack('notes', 'other', 'kind', 'id', prepare => %s)", json.dumps(wish))

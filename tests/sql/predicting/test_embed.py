"""``cerebro.embed``: the vectors of a trained model's layers, for rows that are prepared as in training."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import psycopg2
import pytest

from cerebro_db.client import Cerebro
from tests.sql.lab import Lab, run
from tests.sql.packing.test_pgvector import types as types  # a fixture

ROWS = 2500  # which are several chunks


@pytest.fixture(scope="module")
def shop(lab: Lab) -> Lab:
    lab(
        "CREATE TABLE toys AS SELECT i AS id, i %% 2 AS shop, sin(i) AS size,"
        " (ARRAY['a red wooden ball for cats', 'the red ball of wood for a cat', 'one blue car made of steel for dogs',"
        " 'a car of blue steel for a dog'])[1 + i %% 4] || ' no ' || i AS body,"
        " (ARRAY['ball', 'car'])[1 + i %% 4 / 2] AS kind FROM generate_series(1, %s) i",
        ROWS,
    )
    lab("SELECT fit('toys', 'm', %s, target => 'kind', inputs => 'body, size', epochs => 3)",
        '[{"architecture": "mlp", "units": 8, "learning_rate": 0.01}]')  # fmt: skip
    return lab


def vectors(lab: Lab, model: str, query: str, *more: Any) -> dict[str, np.ndarray]:
    named = "".join(", %s" for _ in more)
    return {key: np.array(its) for key, its in lab(f"SELECT * FROM embed('{model}', %s{named})", query, *more)}


def refused(lab: Lab, statement: str, *values: Any) -> str:
    with pytest.raises(psycopg2.Error) as error:
        lab(statement, *values)
    return str(error.value)


def test_texts_become_vectors_in_one_statement(shop: Lab) -> None:
    """Rows that mean the same are nearer to each other than others."""
    found = vectors(shop, "m", "SELECT id, body, size FROM toys")
    assert found.keys() == {str(i) for i in range(1, ROWS + 1)}
    assert len({one.shape for one in found.values()}) == 1
    alike = [np.linalg.norm(found[str(i)] - found[str(i + 1)]) for i in range(4, 400, 4)]
    others = [np.linalg.norm(found[str(i)] - found[str(i + 2)]) for i in range(4, 400, 4)]
    assert np.mean(alike) < np.mean(others) / 2


def test_the_model_answers_by_its_vectors(shop: Lab) -> None:
    with Cerebro(shop.dsn) as cerebro:
        kernel, bias = (np.asarray(one) for one in cerebro.model(f"{shop.schema}.m").layers[-1].get_weights())
        query = f"SELECT id, body, size FROM {shop.schema}.toys WHERE id < 9"
        rows = sorted(cerebro.embed(f"{shop.schema}.m", query, key="id"))
    scores = np.array([one.vector for one in rows]) @ kernel + bias
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    said = shop("SELECT key_value, probability FROM predict('m', 'SELECT id, body, size FROM toys WHERE id < 9', 'id',"
                " calibrated => false) ORDER BY key_value::integer")  # fmt: skip
    assert [one.key_value for one in rows] == [key for key, _ in said]
    np.testing.assert_allclose(probabilities.max(1), [probability for _, probability in said], atol=1e-5)


def test_a_row_has_the_same_vector_among_few_and_many(shop: Lab) -> None:
    many = vectors(shop, "m", "toys", None, "id")
    few = vectors(shop, "m", "SELECT * FROM toys WHERE id IN (7, 2100)", None, "id")
    for key in ("7", "2100"):
        np.testing.assert_allclose(few[key], many[key], rtol=1e-5, atol=1e-6)


def test_it_writes_nothing_and_leaves_predictions_as_they_are(shop: Lab) -> None:
    query = "SELECT id, body, size FROM toys WHERE id < 50"
    with contextlib.closing(shop.connect()) as reader:
        run(reader, "BEGIN READ ONLY")
        before = sorted(run(reader, "SELECT * FROM predict('m', %s)", query))
        assert len(run(reader, "SELECT * FROM embed('m', %s)", query)) == 49
        assert sorted(run(reader, "SELECT * FROM predict('m', %s)", query)) == before
        assert run(reader, "SELECT * FROM embed('m', 'SELECT * FROM toys WHERE id < 0')") == []


def test_a_layer_by_its_name_and_what_gives_none(shop: Lab) -> None:
    query = "SELECT id, body, size FROM toys WHERE id < 4"
    said = refused(shop, "SELECT * FROM embed('m', %s, 'nowhere')", query)
    assert "cerebro.embed: the model has no layer nowhere" in said and "Layers that give a vector:" in said
    names = said.split("vector: ")[1].split(".")[0].split(", ")
    assert {len(its) for name in names for its in vectors(shop, "m", query, name).values()} >= {1, 2, 8}
    assert "does not have the inputs size, body" in refused(shop, "SELECT * FROM embed('m', 'SELECT 1 AS nothing')")


def fit(lab: Lab, table: str, models: str, architecture: str, **more: str) -> None:
    named = "".join(f", {name} => %s" for name in more)
    configurations = f'[{{"architecture": {architecture}}}]'
    lab(f"SELECT fit(%s, %s, %s, epochs => 1{named})", table, models, configurations, *more.values())


def test_models_without_a_single_vector(shop: Lab) -> None:
    fit(shop, "toys", "grown", '"trees"', target="kind", inputs="size")
    assert "consists of trees" in refused(shop, "SELECT * FROM embed('grown', 'toys')")
    fit(shop, "toys", "shops", '"mlp"', target="kind", inputs="size", group_by="shop")
    assert "cannot be compared with each other" in refused(shop, "SELECT * FROM embed('shops', 'toys')")


def test_windows(shop: Lab) -> None:
    """A window has the key of its last row."""
    shop("CREATE TABLE waves AS SELECT i AS id, i AS at, sin(i / 9.0) AS v FROM generate_series(1, 300) i")
    sequence = '{"order": "at", "length": 8, "horizon": 1}'
    fit(shop, "waves", "mw", '"lstm", "units": 6', target="v", inputs="v", sequence=sequence)
    found = vectors(shop, "mw", "SELECT id, at, v FROM waves", None, "id")
    assert sorted(map(int, found)) == list(range(8, 301))


def test_a_model_of_steps_has_no_single_vector(shop: Lab) -> None:
    shop("CREATE TABLE steps AS SELECT i AS id, i AS at, sin(i / 9.0) AS v, sin(i / 9.0) > 0 AS up"
         " FROM generate_series(1, 200) i")  # fmt: skip
    fit(shop, "steps", "ms", '"lstm", "units": 4', target="up", inputs="v",
        sequence='{"order": "at", "length": 8, "target": "each"}')  # fmt: skip
    said = refused(shop, "SELECT * FROM embed('ms', 'steps')")
    assert "predicts each step of a window" in said and '"target": "last"' in said


def test_a_registered_model_by_its_name(shop: Lab) -> None:
    shop("SELECT register('toy_vectors', 'm', alias => 'production')")
    query = "SELECT id, body, size FROM toys WHERE id < 9"
    own, registered = (vectors(shop, model, query, None, "id") for model in ("m", "toy_vectors@production"))
    assert own.keys() == registered.keys() and all(np.array_equal(own[key], registered[key]) for key in own)


def test_vectors_are_pgvectors(shop: Lab, types: dict[str, str]) -> None:
    shop(f"CREATE TABLE kept AS SELECT key_value::integer AS id, vector::{types['vector']} AS v"
         " FROM embed('m', 'toys', key => 'id')")  # fmt: skip
    width = shop.value("SELECT cardinality(v::real[]) FROM kept LIMIT 1")
    shop(f"ALTER TABLE kept ALTER v TYPE {types['vector']}({width})")
    operators = types["vector"].rpartition(".")[0]
    shop(f"CREATE INDEX ON kept USING hnsw (v {operators}.vector_l2_ops)")
    near = shop(f"SELECT t.kind FROM kept k JOIN toys t USING (id)"
                f" ORDER BY k.v OPERATOR({operators}.<->) (SELECT v FROM kept WHERE id = 8) LIMIT 10")  # fmt: skip
    assert near == [(shop.value("SELECT kind FROM toys WHERE id = 8"),)] * 10

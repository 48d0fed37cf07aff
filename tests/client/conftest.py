"""A small run on iris. It is trained once per session, for all tests that look at a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from small_run import NAME, SCHEMA, Trained, architecture, schema

from cerebro_db.client.cerebro import Cerebro


@pytest.fixture(scope="session")
def iris(server: str) -> Iterator[Any]:
    """A connection (autocommit) to a schema with iris packed into 2 segments, and 3 configurations."""
    with schema(server, SCHEMA) as connection:
        with connection.cursor() as cursor:
            _load(cursor)
        yield connection


def _load(cursor: Any) -> None:
    from sklearn.datasets import load_iris

    data = load_iris()
    cursor.execute("CREATE TABLE iris (id integer, attributes real[], kind text)")
    for number, (attributes, kind) in enumerate(zip(data.data.tolist(), data.target.tolist())):
        name = str(data.target_names[kind])
        cursor.execute("INSERT INTO iris VALUES (%s, %s, %s)", (number, attributes, name))
    cursor.execute("SELECT pack_plain('iris', 'packed', 'kind', 'attributes', segments => 2, seed => 1)")
    cursor.execute("SELECT pack_like('iris', 'validation', 'kind', 'attributes', 'packed')")
    cursor.execute("SELECT madlib.load_keras_model('arch', %s)", (architecture(),))
    cursor.execute(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], %s, ARRAY['batch_size=8'])",
        ([f"optimizer='Adam(lr={rate})',loss='categorical_crossentropy',metrics=['accuracy']"
          for rate in (0.1, 0.01, 0.001)],),
    )  # fmt: skip


@pytest.fixture(scope="session")
def trained(iris: Any, server: str) -> Iterator[Trained]:
    with Cerebro(iris) as cerebro:
        run = cerebro.fit("packed", "models", "mst", epochs=2, validation_table="validation",
                          evaluate_every=1, run_name=NAME, options={"seed": 1})  # fmt: skip
        yield Trained(cerebro, server, run.run)


@pytest.fixture
def fresh_output(iris: Any) -> Iterator[Callable[[], str]]:
    """Names for output tables, which are dropped afterwards."""
    names: list[str] = []

    def name() -> str:
        names.append(f"output_{len(names)}")
        return names[-1]

    yield name
    with iris.cursor() as cursor:
        for one in names:
            for ending in ("", "_info", "_summary", "_weights"):
                cursor.execute(f"DROP TABLE IF EXISTS {one}{ending}")

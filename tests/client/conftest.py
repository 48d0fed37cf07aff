"""A small run on iris. It is trained once per session, for all tests that look at a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest
from small_run import HOSTILE, NAME, SCHEMA, Trained, architecture, schema

from cerebro_db.client.cerebro import Cerebro


@pytest.fixture(scope="session")
def iris(server: str) -> Iterator[Any]:
    """A connection (autocommit) to a schema with iris packed into 2 segments.

    The selection table mst has three configurations, and ``alone`` has one, for tests to which that is enough.
    """
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
    for name, rates in (("mst", (0.1, 0.01, 0.001)), ("alone", (0.01,))):
        cursor.execute(
            "SELECT madlib.load_model_selection_table('arch', %s, ARRAY[1], %s, ARRAY['batch_size=8'])",
            (name, [f"optimizer='Adam(lr={rate})',loss='categorical_crossentropy',metrics=['accuracy']"
                    for rate in rates]),
        )  # fmt: skip


@pytest.fixture(scope="session")
def trained(iris: Any, server: str) -> Iterator[Trained]:
    with Cerebro(iris) as cerebro:
        run = cerebro.fit("packed", "models", "mst", epochs=2, validation_table="validation",
                          evaluate_every=1, run_name=NAME, options={"seed": 1})  # fmt: skip
        yield Trained(cerebro, server, run.run)


@pytest.fixture
def judged(iris: Any, trained: Trained) -> Iterator[str]:
    """The run of ``trained`` as if its call had made an ensemble and judged it: what is said of it."""
    says = "accuracy 0.953 (always '<b>setosa</b>': 0.333) on 30 rows"
    detail = {"task": "calibrate", "configuration": 4, "made_of": "the mean of configurations 1, 2 of models",
              "quality": {"says": says}}  # fmt: skip
    with iris.cursor() as cursor:
        cursor.execute(
            "INSERT INTO cerebro.event (run, event, detail) VALUES (%s, 'followed', %s)",
            (trained.run, json.dumps(detail)),
        )
        yield says
        cursor.execute("DELETE FROM cerebro.event WHERE run = %s AND event = 'followed'", (trained.run,))


@pytest.fixture(scope="session")
def grouped(iris: Any, trained: Trained) -> Iterator[int]:
    """A run of three configurations for each of three groups. A name of a group is markup."""
    cerebro = trained.cerebro
    with iris.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE iris_of_places AS SELECT id, attributes, kind,"
            " (ARRAY['Oslo', %s, 'Rome'])[id %% 3 + 1] AS place FROM iris", (HOSTILE.replace("\x1b", ""),)
        )  # fmt: skip
    listed = [{"learning_rate": 0.01, "units": 4}, {"learning_rate": 0.1, "units": 16}, {"learning_rate": 0.001}]
    run = cerebro.fit("iris_of_places", "iris_of_places_models", listed, target="kind", inputs="attributes",
                      group_by="place", epochs=3, segments=2, validation=0.3, objective="val_accuracy",
                      options={"seed": 1}).run  # fmt: skip
    yield run
    # Tests that came later may have killed the server, and this connection with it.
    with contextlib.suppress(psycopg2.Error), iris.cursor() as cursor:
        cursor.execute("DROP TABLE iris_of_places")
        for ending in ("", "_info", "_summary", "_groups"):
            cursor.execute(f"DROP TABLE IF EXISTS iris_of_places_models{ending}")


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

"""The ORM classes have the columns and types of the views, their keys are unique, and they cannot be changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from cerebro_db.client import orm
from cerebro_db.client.errors import ReadOnly

VIEWS = orm.View.__subclasses__()
TYPES = {
    "BIG_INTEGER": {"bigint"},
    "INTEGER": {"integer"},
    "TEXT": {"text", "name"},
    "DOUBLE": {"double precision"},
    "DATETIME": {"timestamp with time zone"},
    "ARRAY": {"ARRAY"},
    "BOOLEAN": {"boolean"},
    "JSONB": {"jsonb"},
}


def columns(server: str, view: str) -> dict[str, str]:
    connection = psycopg2.connect(server)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = 'cerebro' AND table_name = %s ORDER BY ordinal_position",
            (view,),
        )
        found = dict(cursor.fetchall())
    connection.close()
    return found


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__tablename__)
def test_the_columns_are_those_of_the_view(server: str, view: Any) -> None:
    there = columns(server, view.__tablename__)
    declared = {column.name: column.type.__visit_name__.upper() for column in view.__table__.columns}
    assert list(declared) == list(there)
    assert [name for name in there if there[name] not in TYPES[declared[name]]] == []


def test_every_view_of_runs_has_a_model(server: str) -> None:
    connection = psycopg2.connect(server)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT viewname FROM pg_views v WHERE schemaname = 'cerebro' AND EXISTS (SELECT FROM pg_attribute"
            " WHERE attrelid = to_regclass('cerebro.' || quote_ident(viewname)) AND attname = 'run')"
        )
        there = {name for (name,) in cursor.fetchall()}
    connection.close()
    assert {view.__tablename__ for view in VIEWS} == there


@pytest.fixture(scope="module")
def steered(trained: Any) -> Iterator[Any]:
    """The run with requests, an answer, and models of folds and of a group: written by hand and removed afterwards."""
    run, ask = trained.run, "INSERT INTO cerebro.request (run, request_id, action, detail, reason) VALUES"
    trained.cerebro.rows(
        f"{ask} (%s, 1, 'stop', '{{\"model\": 1}}', 'why'), (%s, 2, 'budget', '{{}}', NULL)", (run, run)
    )
    trained.cerebro.rows(
        "INSERT INTO cerebro.decision (run, model, epoch, decision, policy, request, reason)"
        " VALUES (%s, 1, 1, 'stop', 'request', 1, 'why')", (run,)
    )  # fmt: skip
    trained.cerebro.rows(
        "INSERT INTO cerebro.model (run, model, configuration, seed, initial, fold, fold_rows)"
        " SELECT run, 100 * model + f, configuration, 1, 'random', f, 10 FROM cerebro.model, generate_series(1, 2) f"
        " WHERE run = %s", (run,)
    )  # fmt: skip
    trained.cerebro.rows(
        "INSERT INTO cerebro.model (run, model, configuration, seed, initial, visits, group_number, group_value,"
        " group_rows) SELECT run, 1000 + model, configuration, 1, 'random', '{0}', 1, 'Rome', 10 FROM cerebro.model"
        " WHERE run = %s AND model = 1", (run,)
    )  # fmt: skip
    trained.cerebro.rows(
        "INSERT INTO cerebro.profile (run, engine, shapes, batch_size, parallel, threads, trainers, machine, visits,"
        " train_row) VALUES (%s, 'jax', 'x', 8, 'hopping', 1, 2, 'm', 4, 0.001)", (run,)
    )  # fmt: skip
    trained.cerebro.register("orm_test", "models")
    yield trained
    for one in trained.cerebro.registered_versions("orm_test"):
        if one.unregistered_at is None:
            trained.cerebro.unregister("orm_test", one.version)
    trained.cerebro.rows("DELETE FROM cerebro.profile WHERE run = %s AND shapes = 'x'", (run,))
    trained.cerebro.rows("DELETE FROM cerebro.request WHERE run = %s", (run,))
    trained.cerebro.rows("DELETE FROM cerebro.decision WHERE run = %s", (run,))
    trained.cerebro.rows("DELETE FROM cerebro.model WHERE run = %s AND (fold > 0 OR group_number > 0)", (run,))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__tablename__)
def test_the_keys_tell_the_rows_of_a_real_run_apart(steered: Any, view: Any) -> None:
    keys = [column.name for column in view.__table__.primary_key]
    rows = steered.cerebro.rows(f"SELECT {', '.join(keys)} FROM cerebro.{view.__tablename__}")
    assert rows
    assert max(Counter(rows).values()) == 1


def kind(column: Any) -> type:
    return dict if isinstance(column.type, JSONB) else column.type.python_type


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__tablename__)
def test_rows_come_with_the_declared_python_types(steered: Any, view: Any) -> None:
    with Session(steered.cerebro.engine) as session:
        row = session.scalars(select(view).where(view.run == steered.run)).first()
        for column in view.__table__.columns:
            value = getattr(row, column.name)
            assert value is None or isinstance(value, kind(column)), column.name
        assert set(row.as_dict()) == {column.name for column in view.__table__.columns}
        assert type(row).__name__ in repr(row)


def test_a_change_is_refused_in_words(trained: Any) -> None:
    with Session(trained.cerebro.engine) as session:
        run = session.scalars(select(orm.Run).where(orm.Run.run == trained.run)).one()
        run.run_name = "mine"
        with pytest.raises(ReadOnly, match="Run is a row of the view cerebro.runs, which can only be read"):
            session.flush()
        session.rollback()
        session.delete(run)
        with pytest.raises(ReadOnly):
            session.flush()
        session.rollback()
        session.add(orm.RunTime(run=1, position=1, activity="idling", owner="me"))
        with pytest.raises(ReadOnly, match="RunTime"):
            session.commit()

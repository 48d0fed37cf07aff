"""The fixture for tests of whole runs: a schema of their own on a real server, made once for each module."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import parse_dsn

from tests.conftest import GIVEN, KILLABLE
from tests.sql.lab import Lab, connect, run
from tests.sql.one_session import OneSession


@pytest.fixture(scope="module")
def lab(server: str, request: pytest.FixtureRequest) -> Iterator[Lab]:
    # The processes of a container are elsewhere.
    local = KILLABLE or (not GIVEN and parse_dsn(server).get("host", "").startswith("/"))
    ours = request.getfixturevalue("cluster").home if local else None
    schema = "lab_" + secrets.token_hex(5)
    with contextlib.closing(connect(server)) as connection:
        run(connection, f"CREATE SCHEMA {schema}")
        architectures = run(connection, "SELECT name FROM cerebro.architectures")
    lab = Lab(server, schema, ours)
    try:
        yield lab
    finally:
        lab.close()
        with contextlib.closing(connect(server)) as connection:
            run(connection, "SET client_min_messages = warning")
            end_runs(connection, schema)
            for (run_id,) in run(connection, "SELECT run FROM cerebro.run WHERE model_table LIKE %s", schema + ".%"):
                with contextlib.suppress(psycopg2.Error):
                    run(connection, "SELECT cerebro.forget(%s)", run_id)
            for (name,) in run(connection, "SELECT name FROM cerebro.architectures"):
                if (name,) not in architectures:  # another module may add one of this name
                    run(connection, "SELECT cerebro.drop_architecture(%s)", name)
            run(connection, f"DROP SCHEMA {schema} CASCADE")
            run(connection, "DELETE FROM cerebro.profile")  # the next module has measured nothing


def end_runs(connection: Any, schema: str) -> None:
    """A test that fails leaves its run behind, which would slow down all tests after it."""
    unended = run(connection, "SELECT run FROM cerebro.runs WHERE model_table LIKE %s AND NOT ended", schema + ".%")
    for question in ("SELECT cerebro.cancel(%s)", "SELECT cerebro.wait(%s, 60)"):
        for (run_id,) in unended:
            with contextlib.suppress(psycopg2.Error):
                run(connection, question, run_id)


@pytest.fixture(scope="module")
def madlib(lab: Lab) -> Lab:
    """The lab, in tests of the schema madlib."""
    return lab


@pytest.fixture(scope="module")
def one_session(server: str) -> Iterator[OneSession]:
    with contextlib.closing(OneSession(server)) as one:
        yield one


@pytest.fixture
def sql(db: Any) -> Callable[..., Any]:
    """A function that executes a statement and returns its rows, if any."""

    def execute(statement: str, *values: Any) -> Any:
        with db.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    execute.db = db  # type: ignore[attr-defined]
    return execute

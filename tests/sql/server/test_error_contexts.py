"""The context of our errors has no frames of our code, whatever reads it: psql, a driver, the server's log."""

from __future__ import annotations

from typing import Any

import psycopg2
import pytest

CALLS = [
    "SELECT cerebro.pack('nowhere', 'packed', 'y')",
    "SELECT cerebro.train('nowhere', 'model', 'y', budget => '1 s')",
    "SELECT cerebro.cancel(0)",
    "SELECT * FROM cerebro.predict('nowhere', 'SELECT 1')",
    "SELECT * FROM cerebro.drift('nowhere', 'SELECT 1')",
]


def context(db: Any, statement: str) -> list[str]:
    with db.cursor() as cursor, pytest.raises(psycopg2.Error) as error:
        cursor.execute(statement)
    assert error.value.pgcode and error.value.pgcode != "38000", error.value
    return error.value.diag.context.splitlines()


def function(db: Any, name: str, *lines: str) -> None:
    body = "\n".join(lines)
    with db.cursor() as cursor:
        cursor.execute(f"CREATE FUNCTION {name}() RETURNS text LANGUAGE plpython3u AS $f$\n{body}\n$f$")


@pytest.mark.parametrize("call", CALLS)
def test_an_error_has_no_frames_of_our_code(db: Any, call: str) -> None:
    function(db, "minor", "import sys", "return sys.version_info[1]")
    with db.cursor() as cursor:
        cursor.execute("SELECT minor()")
        old = int(cursor.fetchone()[0]) < 11  # there, the frame of the SQL function stays
    said = context(db, call)
    frames = [line for line in said if line.startswith("  PL/Python function")]
    assert len(frames) == old, said
    assert max(map(len, said)) < 100, said


def test_a_defect_keeps_its_frames(db: Any) -> None:
    context(db, CALLS[0])  # the session has our code now
    function(
        db,
        "defect",
        "from cerebro_plpy import api",
        "def inner():",
        "    raise KeyError('x')",
        "with api.QUIETLY: return inner()",
    )
    with db.cursor() as cursor, pytest.raises(psycopg2.Error, match="KeyError") as error:
        cursor.execute("SELECT defect()")
    assert "in inner" in error.value.diag.context

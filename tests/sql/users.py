"""Test users of one database.  Each has a login, a schema and a connection, which are removed after the test."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg2
from psycopg2 import errors, sql
from psycopg2.extensions import make_dsn, parse_dsn

from tests.conftest import connect

ARCHITECTURE = (
    '{"class_name": "Sequential", "config": {"name": "small", "layers": ['
    '{"class_name": "InputLayer", "config": {"batch_shape": [null, 2], "dtype": "float32", "name": "in"}},'
    '{"class_name": "Dense", "config": {"name": "out", "units": 2, "activation": "softmax"}}]}}'
)


class User:
    """A user with an open session.  ``name`` is the role, and also the first schema of the search_path."""

    def __init__(self, name: str, password: str, dsn: str) -> None:
        self.name = name
        self.dsn = make_dsn(**{**parse_dsn(dsn), "user": name, "password": password})
        self.connection: Any = None
        self.log_in()

    def log_in(self) -> None:
        """Open a session, and close the earlier session if there is one."""
        if self.connection is not None:
            self.connection.close()
        self.connection = connect(self.dsn)
        self.connection.cursor().execute(
            sql.SQL("SET search_path = {}, cerebro, madlib").format(sql.Identifier(self.name))
        )

    def another(self) -> User:
        """The same user with another session."""
        return User(self.name, parse_dsn(self.dsn)["password"], self.dsn)

    def __call__(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a statement.  A row with one column is given as its value."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            rows = cursor.fetchall() if cursor.description else []
        return [row[0] if len(row) == 1 else row for row in rows]

    @property
    def greenplum(self) -> bool:
        """Whether the server is Greenplum or a fork of it."""
        return self("SELECT current_setting('gp_role', true)") != [None]

    def refused(self, statement: str, *values: Any, why: Any = errors.InsufficientPrivilege) -> psycopg2.Error:
        """The error that the statement fails with, which must be of the class ``why``."""
        try:
            rows = self(statement, *values)
        except why as error:
            return error
        raise AssertionError(f"{self.name} was allowed: {statement} -> {rows}")


def worker_roles(sql: Any, user: str) -> list[str]:
    """The worker roles that a user has now: one for each worker session, and those of sessions that ended of late."""
    rows = sql("SELECT rolname FROM pg_roles WHERE rolname ~ ('^cerebro_w_' || %s::regrole::oid || '_')", user)
    return [row[0] if isinstance(row, tuple) else row for row in rows]


class Town:
    """The users of a test, and the session of a superuser."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.mark = secrets.token_hex(3)
        self.users: list[User] = []
        self.roles: list[str] = []
        self.root: Any = connect(dsn)

    def __call__(self, statement: str, *values: Any) -> list[Any]:
        return User.__call__(self, statement, *values)  # type: ignore[arg-type]

    @property
    def connection(self) -> Any:
        return self.root

    @property
    def greenplum(self) -> bool:
        return self("SELECT current_setting('gp_role', true)") != [None]

    @property
    def counts_expressions(self) -> bool:
        """Whether CREATE STATISTICS takes expressions."""
        return bool(self("SELECT current_setting('server_version_num')::integer >= 140000")[0])

    def user(self, name: str, *groups: str) -> User:
        role, password = f"{name}_{self.mark}", secrets.token_hex(8)
        self(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        self.roles.append(role)
        for group in groups:
            self(f"GRANT {group} TO {role}")
        self(f"CREATE SCHEMA {role}; ALTER SCHEMA {role} OWNER TO {role}")  # Greenplum refuses AUTHORIZATION here.
        made = User(role, password, self.dsn)
        self.users.append(made)
        return made

    def close(self) -> None:
        for user in self.users:
            user.connection.close()
        self("SET client_min_messages = warning")
        for role in self.roles:
            workers = worker_roles(self, role)
            for table in (
                "request",
                "heartbeat",
                "profile",
                "decision",
                "attempt",
                "evaluation",
                "hop",
                "event",
                "model",
                "configuration",
                "architecture",
                "run",
            ):
                self(f"DELETE FROM cerebro.{table} WHERE pg_get_userbyid(owner) = %s", role)
            for name in [*workers, role]:
                self("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", name)
                self(f"DROP OWNED BY {name} CASCADE")
                self(f"DROP ROLE {name}")
        self.root.close()


@contextlib.contextmanager
def town(dsn: str) -> Iterator[Town]:
    made = Town(dsn)
    try:
        yield made
    finally:
        made.close()


def equip(user: User, rows: int = 40, segments: int = 1) -> None:
    """Create a small packed table ``packed``, an architecture table ``arch`` and a selection table ``mst``."""
    user("CREATE TABLE points (id serial, x real[], y text)")
    user(
        "INSERT INTO points (x, y) SELECT ARRAY[sin(i), cos(i)]::real[], CASE WHEN sin(i) > 0 THEN 'up' ELSE 'down' END"
        " FROM generate_series(1, %s) i",
        rows,
    )
    user("SELECT cerebro.pack_plain('points', 'packed', 'y', 'x', segments => %s, seed => 1)", segments)
    user("SELECT madlib.load_keras_model('arch', %s::json)", ARCHITECTURE)
    user(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1],"
        " ARRAY[$$loss='categorical_crossentropy',optimizer='SGD(lr=0.1)',metrics=['accuracy']$$],"
        " ARRAY[$$batch_size=8,epochs=1$$])"
    )


def fit(
    user: User, output: str = "models", *, function: str = "madlib_fit_multiple_model", epochs: int = 1, **more: Any
) -> int:
    given = "".join(f", {name} => %s" for name in more)
    named = "epochs => " if function == "fit" else ""
    run = user(f"SELECT cerebro.{function}('packed', %s, 'mst', {named}%s{given})", output, epochs, *more.values())
    return int(run[0])

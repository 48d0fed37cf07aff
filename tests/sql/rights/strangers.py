"""A stranger who sets traps: relations, types and functions whose use runs the stranger's code as whoever uses them.

mallory has trained models, and writes the names of traps into what the tables of these models say about themselves.
The traps are twins of mallory's own tables in another schema.  No victim names them.  There is a schema for each form
that a trap can have, with all twins in that form.  The documents name one schema, and the schemas take that name in
turn: so the form of all twins changes in one moment, whatever a victim has locked or looked up.

The function that all traps call counts the calls of anybody but mallory, in a sequence, which no rollback takes back.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2

from tests import documents
from tests.documents import MARK
from tests.sql import users
from tests.sql.users import Town, User

PLAIN = "plain"  # the form in which nothing of the stranger's runs
ADDED = "added"  # the plain twins, which got statistics, indexes and policies while somebody may be reading them
FORMS = ("view", "planned", "partitioned")
ENDINGS = ("", "_info", "_summary", "_weights", "_groups")
TYPES = ("wish_domain", "wish_enum", "wish_row")
ONE = '{"architecture": "mlp", "units": 4}'
# A twin of a packed table has rows for validation, too; the twins of the tables that training makes have theirs.
TWINS = ("people", "points", "packed", "packed_summary", "arch", "mst", "mst_summary", "guesses", "guesses_info",
         "guesses_summary", "guesses_packed", "guesses_packed_summary", "guesses_packed_validation",
         "guesses_packed_validation_summary", "models", "models_info", "models_summary", "grouped", "grouped_info",
         "grouped_summary", "grouped_groups")  # fmt: skip
# What the stranger writes.
WRITTEN = ("guesses_summary", "guesses_info", "guesses_packed_summary", "guesses_packed_validation_summary",
           "packed_summary", "models_summary", "models_info", "mst_summary", "mst", "arch", "grouped_summary",
           "grouped_info", "grouped_groups")  # fmt: skip

# Called by an index, a statistic or a constant expression of the planner, too, so it is declared immutable.  A
# transaction that is read only cannot count in a sequence, but it can keep a lock.
RING = """
CREATE SEQUENCE rang CACHE 1;
CREATE TABLE heard (who name, session name, query text);
CREATE FUNCTION {mark}(i bigint DEFAULT 1) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF current_user <> '{own}' THEN
        IF pg_catalog.current_setting('transaction_read_only') = 'on' THEN
            RAISE WARNING '{mark} as %', current_user;
        ELSE
            PERFORM pg_catalog.nextval('{own}.rang');
        END IF;
    END IF;
    RETURN i;
END $$;
CREATE FUNCTION {mark}(record) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN RETURN {own}.{mark}(1::bigint)::text; END $$;
CREATE DOMAIN wish_domain AS text CHECK ({own}.{mark}() > 0);
CREATE TYPE wish_enum AS ENUM ('yes', 'no', 'up', 'down', 'c0', 'c1', 'c2');
CREATE TYPE wish_row AS (x text);
"""
CASTS = """
CREATE FUNCTION to_{type}(text) RETURNS {type} LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM {own}.{mark}(); RETURN {made}; END $$;
CREATE FUNCTION of_{type}({type}) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN PERFORM {own}.{mark}(); RETURN 'yes'; END $$;
CREATE CAST (text AS {type}) WITH FUNCTION to_{type}(text) AS ASSIGNMENT;
CREATE CAST ({type} AS text) WITH FUNCTION of_{type}({type}) AS IMPLICIT;
CREATE FUNCTION same_{type}({type}, text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN RETURN {own}.{mark}() > 0; END $$;
CREATE OPERATOR = (LEFTARG = {type}, RIGHTARG = text, FUNCTION = same_{type});
"""


@dataclass(frozen=True)
class Leaf:
    """A text in a document of the stranger's: a column of a table, and the way to it in a JSON value."""

    table: str
    column: str
    path: tuple[Any, ...]
    value: Any

    def __str__(self) -> str:
        return ".".join(map(str, (self.table, self.column, *self.path)))


@dataclass(frozen=True)
class Change:
    """What the stranger writes into one document or several: leaves with their new values."""

    name: str
    values: tuple[tuple[Leaf, Any], ...]


class Stranger:
    def __init__(self, root: Town) -> None:
        self.root = root
        self.session = session = root.user("mallory", "cerebro_user")
        self.own = own = session.name
        self.trap = f"{own}_trap"
        (database,) = root("SELECT current_database()")
        root(f"GRANT CREATE ON DATABASE {database} TO {own}")  # a schema gets another name
        users.equip(session)
        users.fit(session)
        session("CREATE TABLE people AS SELECT i AS id, (i % 7)::double precision AS a, 'c' || i % 3 AS b,"
                " CASE WHEN i % 2 = 0 THEN 'yes' ELSE 'no' END AS y FROM generate_series(1, 120) i")  # fmt: skip
        session(f"SELECT cerebro.fit('people', 'guesses', $$[{ONE}, {ONE}]$$, target => 'y', inputs => 'a, b',"
                " epochs => 1, segments => 1, validation => 0.2, packed_table => 'guesses_packed')")  # fmt: skip
        session("SELECT FROM cerebro.calibrate('guesses')")
        session(f"SELECT cerebro.fit('people', 'grouped', $$[{ONE}]$$, target => 'y',"
                " inputs => 'a', epochs => 1, segments => 1, validation => 0.2, group_by => 'b')")  # fmt: skip
        session("UPDATE arch SET model_weights = (SELECT model_weights FROM models)")
        session(RING.format(own=own, mark=MARK))
        for type, made in (("wish_enum", "'yes'"), ("wish_row", "ROW('yes')")):
            session(CASTS.format(type=type, own=own, mark=MARK, made=made))
        with contextlib.suppress(psycopg2.Error):  # PostgreSQL has no such extension before version 13
            session("CREATE EXTENSION dict_int")
            session("ALTER EXTENSION dict_int ADD TYPE wish_enum; ALTER EXTENSION dict_int ADD TYPE wish_row")
        for form in (PLAIN, *FORMS):
            self._set(form)
        # Of those that are found without being named.
        listed = [(f"{self.trap}.{table}", self._expression(table)) for table in TWINS if table.startswith("guesses")]
        self.added = "; ".join(f"{self._statistics(twin, expression)}"
                               f" CREATE INDEX {twin.partition('.')[2]}_ix ON {twin} ({expression})"
                               for twin, expression in listed)  # fmt: skip
        self.taken_away = "; ".join(f"DROP STATISTICS IF EXISTS {twin}_st; DROP INDEX {twin}_ix" for twin, _ in listed)
        self.at, self.written, self._types = PLAIN, None, {}  # type: ignore[var-annotated]
        session(f"ALTER SCHEMA {own}_{PLAIN} RENAME TO {self.trap}")
        for table in WRITTEN:
            session(f"CREATE TABLE kept_{table} AS TABLE {table}")
        (self.run,) = session("SELECT run FROM guesses_summary")
        self.name = f"m_{root.mark}"
        self.register()
        session("SELECT cerebro.share(%s, 'cerebro_user', 'read')", self.name)
        session(f"GRANT USAGE ON SCHEMA {own} TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA {own} TO PUBLIC;"
                " GRANT USAGE, SELECT, UPDATE ON SEQUENCE rang TO PUBLIC")  # fmt: skip
        self.random = random.Random(66)
        self.leaves = list(self._leaves())
        self._racing = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.swaps = 0
        self._racer: threading.Thread | None = None

    # -- the traps -----------------------------------------------------------------------------------------

    def _statistics(self, twin: str, expression: str) -> str:
        return f"CREATE STATISTICS {twin}_st ON {expression} FROM {twin};" if self.root.counts_expressions else ""

    def _set(self, form: str) -> None:
        """The schema with all twins in one form."""
        own, schema = self.own, f"{self.own}_{form}"
        self.session(f"CREATE SCHEMA {schema}; GRANT USAGE ON SCHEMA {schema} TO PUBLIC")
        for table in TWINS:
            twin, rang = f"{schema}.{table}", f"{own}.{MARK}()"
            expression = self._expression(table)
            if form == "view":
                self.session(f"CREATE VIEW {twin} AS SELECT * FROM {own}.{table} WHERE {rang} > 0")
            elif form == "partitioned":
                self.session(f"CREATE TABLE {twin} (LIKE {own}.{table}) PARTITION BY LIST ({expression});"
                             f" CREATE TABLE {twin}_1 PARTITION OF {twin} DEFAULT;"
                             f" INSERT INTO {twin} TABLE {own}.{table}")  # fmt: skip
            else:
                self.session(f"CREATE TABLE {twin} AS TABLE {own}.{table}")
            if form == "planned":  # PostgreSQL's planner evaluates these, also for a plain SELECT
                self.session(f"{self._statistics(twin, expression)}"
                             f" CREATE INDEX ON {twin} ({expression});"
                             f" CREATE INDEX ON {twin} ({expression}) WHERE {rang} > 0;"
                             f" ALTER TABLE {twin} ADD CHECK ({rang} > 0);"
                             f" CREATE TABLE {twin}_child (CHECK ({expression} > 0)) INHERITS ({twin});"
                             f" CREATE RULE trap AS ON INSERT TO {twin} DO ALSO SELECT {rang};"
                             f" ALTER TABLE {twin} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
                             f" CREATE POLICY trap ON {twin} USING ({rang} > 0); ANALYZE {twin}")  # fmt: skip
        self.session(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO PUBLIC")

    def _expression(self, table: str) -> str:
        column = self.session("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                              " ORDER BY attnum LIMIT 1", table)[0]  # fmt: skip
        return f"({self.own}.{MARK}() + pg_catalog.num_nulls({column}))"

    def become(self, form: str, session: User | None = None) -> None:
        """All twins have this form now."""
        with self._lock:
            run, real = session or self.session, {ADDED: PLAIN}
            if form == self.at:
                return
            if self.at == ADDED:
                run(self.taken_away)
            before, after = real.get(self.at, self.at), real.get(form, form)
            if before != after:
                run(f"ALTER SCHEMA {self.trap} RENAME TO {self.own}_{before};"
                    f" ALTER SCHEMA {self.own}_{after} RENAME TO {self.trap}")  # fmt: skip
            self.at = after
            if form == ADDED:
                run(self.added)
                self.at = form
            self.swaps += 1

    def register(self) -> None:
        """A version of the model as its documents are now; the one before is removed."""
        versions = self.session(
            "SELECT version FROM cerebro.registered_versions WHERE registered_model = %s", self.name
        )
        with contextlib.suppress(psycopg2.Error):  # the registry refuses some documents
            self.session("SELECT cerebro.register(%s, 'guesses', 1, 'production')", self.name)
            for version in versions:
                self.session("SELECT cerebro.unregister(%s, %s)", self.name, version)

    @contextlib.contextmanager
    def racing(self) -> Iterator[None]:
        """While the block runs, the twins change their form all the time."""
        if self._racer is None:
            self._racer = threading.Thread(target=self._race, daemon=True)
            self._racer.start()
        self._racing.set()
        try:
            yield
        finally:
            self._racing.clear()

    def _race(self) -> None:
        session = self.session.another()
        session("SET lock_timeout = '50ms'")
        forms = itertools.cycle(form for hostile in (*FORMS, ADDED) for form in (PLAIN, hostile))
        while not self._over.is_set():
            if self._racing.wait(0.2):
                with contextlib.suppress(psycopg2.Error):
                    self.become(next(forms), session)
                time.sleep(0.002)
        session.connection.close()

    def close(self) -> None:
        self._over.set()
        if self._racer is not None:
            self._racer.join()

    def calls(self) -> int:
        """How often anybody but the stranger has run the stranger's function."""
        (found,) = self.root(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self.own}.rang")
        return int(found)

    # -- the documents -------------------------------------------------------------------------------------

    def _leaves(self) -> Iterator[Leaf]:
        """Each text of each document, of tables with several rows in the first, and each NULL of a column of texts."""
        for table in WRITTEN:
            types = dict(
                self.session(
                    "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
                    " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped", table)
            )  # fmt: skip
            self._types.update(((table, column), type) for column, type in types.items())
            (row,) = self.session(f"SELECT pg_catalog.to_jsonb(t) FROM {table} t LIMIT 1")
            for column, type in types.items():
                value = row[column]
                if type in ("json", "jsonb") and value is not None:
                    for path in documents.paths(value):
                        at = value
                        for key in path:
                            at = at[key]
                        if isinstance(at, str):
                            yield Leaf(table, column, path, at)
                elif type in ("text", "character varying"):
                    yield Leaf(table, column, (), value)
                elif type in ("text[]", "character varying[]") and value:
                    yield Leaf(table, column, (0,), value[0])

    def twin_of(self, leaf: Leaf) -> str | None:
        """The trap in the place of the relation that a leaf names; None if it names none."""
        name = str(leaf.value).removeprefix(f"{self.own}.")
        if leaf.value is None:
            name = "guesses_packed_validation" if leaf.column.endswith("_table") else ""
        return f"{self.trap}.{name}" if name in TWINS else None

    def all_relations(self) -> Change:
        """Each name of a relation is that of its twin."""
        found = [(leaf, twin) for leaf in self.leaves if (twin := self.twin_of(leaf)) is not None]
        return Change("all names of tables", tuple(found))

    def arguments_too(self, name: str, value: Any, *without: str) -> Change:
        """As ``all_relations``; and the arguments of packing have one more."""
        leaves = [leaf for leaf in self.leaves if "arguments" in leaf.path]
        arguments = {}
        for leaf in leaves:
            place = leaf.path.index("arguments") + 1
            arguments[leaf.table, leaf.column, leaf.path[:place]] = Leaf(
                leaf.table, leaf.column, (*leaf.path[:place], name), None
            )
        assert arguments
        values = [(one, value) for one in arguments.values()]
        values += [(Leaf(one.table, one.column, (*one.path[:-1], gone), None), REMOVED)
                   for one in arguments.values() for gone in without]  # fmt: skip
        return Change(f"packing.arguments.{name}", (*self.all_relations().values, *values))

    def of_leaf(self, leaf: Leaf) -> list[Change]:
        """A leaf with each kind of name: a relation, types, a function, and SQL."""
        relation = self.twin_of(leaf) or f"{self.trap}.people"
        others = [f"{self.own}.{type}" for type in TYPES]
        functions = [MARK, f"{self.own}.{MARK}", f"{self.own}.{MARK}()"]
        return [Change(f"{leaf} = {value}", ((leaf, value),))
                for value in (relation, *others, *functions, *documents.SQL)]  # fmt: skip

    def write(self, change: Change) -> None:
        """All documents as they were but for this change."""
        if change is self.written:
            return
        self.written = change
        statements = ["BEGIN"]
        statements += [f"DELETE FROM {table}; INSERT INTO {table} TABLE kept_{table}" for table in WRITTEN]
        self.session("; ".join(statements))
        try:
            for leaf, value in change.values:
                self._write(leaf, value)
        finally:
            self.session("COMMIT")

    def _write(self, leaf: Leaf, value: Any) -> None:
        table, column = leaf.table, f'"{leaf.column}"'
        if not leaf.path:
            self.session(f"UPDATE {table} SET {column} = %s", value)
        elif len(leaf.path) == 1 and leaf.path[0] == 0 and "[]" in self._type(leaf):
            self.session(f"UPDATE {table} SET {column}[1] = %s", value)
        elif value is REMOVED:
            self.session(f"UPDATE {table} SET {column} = {column}::jsonb #- %s", list(map(str, leaf.path)))
        else:
            self.session(f"UPDATE {table} SET {column} = pg_catalog.jsonb_set({column}::jsonb, %s, %s)"
                         f"::{self._type(leaf)}", list(map(str, leaf.path)), json.dumps(value))  # fmt: skip

    def _type(self, leaf: Leaf) -> str:
        return self._types[leaf.table, leaf.column]


REMOVED = object()


@dataclass
class Victim:
    """Who uses the stranger's things: an ordinary user, or a superuser.  ``schema``: where the victim's tables are."""

    name: str
    sql: Any
    schema: str
    dsn: str

    def equip(self, stranger: Stranger) -> None:
        schema = self.schema
        self.sql(f"SET search_path = {schema}, {stranger.own}, cerebro, madlib; SET client_min_messages = warning;"
                 " SET statement_timeout = '60s'")  # fmt: skip
        self.sql("CREATE TABLE folk AS SELECT i AS id, (i % 7)::double precision AS a, 'c' || i % 3 AS b,"
                 " CASE WHEN i % 2 = 0 THEN 'yes' ELSE 'no' END AS y FROM generate_series(1, 40) i")  # fmt: skip
        self.sql("CREATE TABLE folk_2 AS TABLE folk")
        self.sql(f"CREATE TABLE vectors AS TABLE {stranger.own}.points")

    def copies(self, stranger: Stranger, tables: Sequence[str]) -> None:
        """Tables of the stranger's with all that stands beside them, copied as the victim's own."""
        for table in tables:
            for ending in ENDINGS:
                name = f"{stranger.own}.{table}{ending}"
                if self.sql("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", name) == [True]:
                    self.sql(f"CREATE TABLE IF NOT EXISTS {self.schema}.own_{table}{ending} AS TABLE {name}")

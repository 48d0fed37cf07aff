"""A stranger's tables, with documents that try to run SQL as whoever uses them: a plain user, and a superuser.

Nothing of the stranger's may run: a sequence counts the calls of the stranger's function, whatever is rolled back.
Each call either works or fails with an error of ours that names the document.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cerebro_db.core import errors
from tests import documents
from tests.documents import CALL, MARK, SQL
from tests.sql import users
from tests.sql.users import Town, User

OURS = {kind.sqlstate for kind in errors.kinds()}
RAW = ("KeyError", "TypeError", "ValueError", "OverflowError", "IndexError", "AttributeError", "RecursionError",
       "UnicodeEncodeError", "AssertionError", "spiexceptions", "syntax error")  # fmt: skip


class Stage:
    """mallory, who writes documents; bob and a superuser, who use them."""

    def __init__(self, root: Town, mallory: User, bob: User) -> None:
        self.root, self.mallory, self.bob = root, mallory, bob
        self.schema = mallory.name
        # Also where the victims find functions and types by their names only.
        self.victims: list[Any] = [bob, root]
        bob(f"SET search_path = {bob.name}, {self.schema}, cerebro, madlib")
        root(f"SET search_path = {self.schema}, cerebro, madlib; SET client_min_messages = warning")

    def calls(self) -> int:
        (found,) = self.root(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self.schema}.rang")
        return int(found)

    def layout(self, table: str) -> Any:
        return self.mallory(f"SELECT layout FROM {table}_summary")[0]

    def write(self, table: str, layout: Any) -> None:
        self.mallory(f"UPDATE {table}_summary SET layout = %s::jsonb", json.dumps(layout))

    def tried(self, victim: Any, statement: str) -> psycopg2.Error | None:
        """The error of a statement, which must be ours; None if it worked.  Nothing of mallory's has run."""
        before, error = self.calls(), None
        victim("BEGIN")
        try:
            victim(statement)
        except psycopg2.Error as caught:
            error = caught
        finally:
            victim("ROLLBACK")
        assert self.calls() == before, f"code of a stranger ran: {statement}"
        if error is not None:
            message = str(error.diag.message_primary)
            assert error.pgcode in OURS and not any(word in message for word in RAW), f"{statement}: {message}"
        return error


@pytest.fixture(scope="module")
def stage(server: str) -> Iterator[Stage]:
    with users.town(server) as root:
        mallory, bob = root.user("mallory", "cerebro_user"), root.user("bob", "cerebro_user")
        own = mallory.name
        users.equip(bob)
        users.equip(mallory)
        users.fit(mallory)
        mallory("CREATE TABLE people AS SELECT i AS id, (i % 7)::double precision AS a, 'c' || i % 3 AS b,"
                " CASE WHEN i % 2 = 0 THEN 'yes' ELSE 'no' END AS y FROM generate_series(1, 60) i")  # fmt: skip
        mallory("SELECT cerebro.pack('people', 'mixed', 'y', 'a, b', segments => 1, seed => 1)")
        mallory("SELECT madlib.load_keras_model('arch', cerebro.architecture('mlp', 'mixed'))")
        mallory(
            "SELECT madlib.load_model_selection_table('arch', 'chosen', ARRAY[2],"
            " ARRAY[$$optimizer='AdamW()', loss='categorical_crossentropy', metrics=['accuracy']$$],"
            " ARRAY[$$batch_size=8,epochs=1$$])"
        )
        mallory("SELECT cerebro.fit('mixed', 'guesses', 'chosen', epochs => 1)")
        # Not Greenplum's cache of 20 values for each session: each call counts.
        mallory(f"CREATE SEQUENCE rang CACHE 1; CREATE FUNCTION {MARK}() RETURNS integer LANGUAGE sql AS"
                f" $$ SELECT nextval('{own}.rang')::integer $$")  # fmt: skip
        for name in ("packed", "mixed", "models", "guesses"):
            mallory(f"CREATE TABLE {name}_summary_kept AS TABLE {name}_summary")
        mallory(
            f"GRANT USAGE ON SCHEMA {own} TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA {own} TO PUBLIC;"
            f" GRANT USAGE, SELECT, UPDATE ON SEQUENCE rang TO PUBLIC"
        )
        for victim in (bob, root):
            victim(f"SELECT {own}.{MARK}()")  # it can run: else nothing below would prove anything
        made = Stage(root, mallory, bob)
        assert made.calls() == 2
        bob("CREATE TABLE folk AS SELECT i AS id, 1.0::double precision AS a, 'c1'::text AS b, 'yes'::text AS y"
            " FROM generate_series(1, 5) i")  # fmt: skip
        root(f"GRANT SELECT ON ALL TABLES IN SCHEMA {bob.name} TO PUBLIC")
        yield made


@pytest.fixture(params=["a user", "a superuser"])
def victim(stage: Stage, request: pytest.FixtureRequest) -> Any:
    return stage.victims[request.param == "a superuser"]


@pytest.fixture
def kept(stage: Stage) -> Iterator[None]:
    """The summaries are as they were, after the test."""
    yield
    for name in ("packed", "mixed", "models", "guesses"):
        stage.mallory(
            f"DROP TABLE {name}_summary CASCADE; CREATE TABLE {name}_summary AS TABLE {name}_summary_kept;"
            f" GRANT SELECT ON {name}_summary TO PUBLIC"
        )


def statements(stage: Stage) -> dict[str, str]:
    """What uses a stranger's model or packed table, or a copy of them."""
    own, bobs = stage.schema, stage.bob.name
    return {
        "predict": f"SELECT * FROM cerebro.predict('{own}.guesses', 'SELECT * FROM {bobs}.folk')",
        "keras predict": f"SELECT madlib.madlib_keras_predict('{own}.models', '{bobs}.points', 'id', 'x',"
        f" '{bobs}.out', 'prob', false, 1)",
        "predictor": f"SELECT cerebro.create_predictor('{own}.guesses', '{bobs}.guess')",
        "judge": f"SELECT * FROM cerebro.confusion_matrix('{own}.guesses', 'SELECT * FROM {bobs}.folk')",
        "importance": f"SELECT * FROM cerebro.importance('{own}.guesses', 'SELECT * FROM {bobs}.folk')",
        "explain": f"SELECT * FROM cerebro.explain('{own}.guesses', 'TABLE {bobs}.folk',"
        f" background => 'TABLE {bobs}.folk')",
        "validation": f"SELECT cerebro.pack_like('{bobs}.points', '{bobs}.out', 'y', 'x', '{own}.packed')",
        "columns": f"SELECT * FROM cerebro.prepared_columns('{own}.guesses')",
        "columns of a packed table": f"SELECT * FROM cerebro.prepared_columns('{own}.packed')",
        "architecture": f"SELECT cerebro.architecture('mlp', '{own}.packed')",
        "fit": f"SELECT cerebro.madlib_fit_multiple_model('{own}.packed', '{bobs}.out', '{bobs}.mst', 1, options =>"
        """ '{"execution": "session"}')""",
    }


# -- the three attacks that were seen --------------------------------------------------------------------------

ONE_HOT_INPUT = {"kind": "one_hot", "labels": [], "type": SQL[1]}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("what", ["predict", "keras predict", "validation", "fit"])
def test_a_label_as_an_input_runs_nothing(stage: Stage, victim: Any, what: str) -> None:
    for table in ("packed", "models", "guesses"):
        layout = stage.layout(table)
        layout["inputs"][0]["preparation"] = ONE_HOT_INPUT
        stage.write(table, layout)
    error = stage.tried(victim, statements(stage)[what])
    assert error is not None and "type cannot be used" in str(error)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "what", ["predict", "keras predict", "predictor", "judge", "validation", "fit", "architecture"]
)
def test_the_type_of_an_output_runs_nothing(stage: Stage, victim: Any, what: str) -> None:
    for table in ("packed", "models", "guesses"):
        layout = stage.layout(table)
        layout["outputs"][0]["preparation"]["type"] = SQL[0]
        stage.write(table, layout)
    error = stage.tried(victim, statements(stage)[what])
    assert error is not None and "is not the name of an SQL type" in str(error)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("hostile", SQL)
def test_the_type_and_the_name_of_a_column_run_nothing(stage: Stage, victim: Any, hostile: str) -> None:
    layout = stage.layout("guesses")
    layout["inputs"][0]["columns"] = [f'a" int); SELECT {MARK}();--'[:63]]
    layout["inputs"][0]["preparation"]["features"][0]["type"] = hostile
    stage.write("guesses", layout)
    for what in ("predictor", "predict", "columns"):
        assert stage.tried(victim, statements(stage)[what]) is not None
    # With a type that is one, the name is a name.
    layout["inputs"][0]["preparation"]["features"][0]["type"] = "double precision"
    stage.write("guesses", layout)
    stage.tried(victim, statements(stage)["predictor"])
    stage.tried(victim, statements(stage)["predict"])


# -- names of tables -------------------------------------------------------------------------------------------


def test_a_selection_table_opens_no_table_of_another_user(stage: Stage, victim: Any) -> None:
    """Its summary names the table of the architectures.  Beside it, that table is part of what the call names."""
    own, bobs = stage.schema, stage.bob.name
    stage.mallory(f"CREATE VIEW viewed AS SELECT * FROM arch WHERE {MARK}() > 0; GRANT SELECT ON viewed TO PUBLIC")
    stage.bob(f"CREATE TABLE theirs AS TABLE mst; CREATE TABLE theirs_summary AS SELECT '{own}.viewed'::text AS"
              " model_arch_table, NULL::text AS object_table; CREATE TABLE beside AS TABLE mst;"
              " CREATE TABLE beside_summary AS SELECT 'arch'::text AS model_arch_table")  # fmt: skip
    stage.root(f"GRANT SELECT ON ALL TABLES IN SCHEMA {bobs} TO PUBLIC")
    fit = f"""SELECT cerebro.madlib_fit_multiple_model('{own}.packed', '{bobs}.out', '{{}}', 1,
              options => '{{{{"execution": "session"}}}}')"""
    try:
        error = stage.tried(victim, fit.format(f"{bobs}.theirs"))
        assert (
            error is not None and error.pgcode == "42501" and f"'{own}.viewed', which is another user's" in str(error)
        )
        for named in (f"{bobs}.beside", f"{own}.mst"):
            assert stage.tried(victim, fit.format(named)) is None
        # A view of the caller's in another place reads what is mallory's.
        stage.root(f"CREATE SCHEMA {bobs}_more; ALTER SCHEMA {bobs}_more OWNER TO {bobs}")
        stage.bob(
            f"CREATE VIEW {bobs}_more.own AS TABLE {own}.viewed; GRANT USAGE ON SCHEMA {bobs}_more TO PUBLIC;"
            f" UPDATE theirs_summary SET model_arch_table = '{bobs}_more.own'"
        )
        error = stage.tried(stage.bob, fit.format(f"{bobs}.theirs"))
        assert error is not None and error.pgcode == "42501" and "or a view" in str(error)
    finally:
        stage.root(f"DROP SCHEMA IF EXISTS {bobs}_more CASCADE")
        stage.mallory("DROP VIEW viewed")
        stage.bob("DROP TABLE theirs, theirs_summary, beside, beside_summary")


# -- types with code of their owner ----------------------------------------------------------------------------

TYPES = {
    "domain": f"CREATE DOMAIN wish AS text CHECK ({MARK}() > 0)",
    "enum": f"""
        CREATE TYPE wish AS ENUM ('yes', 'no', 'up', 'down');
        CREATE FUNCTION to_wish(text) RETURNS wish LANGUAGE sql AS $$ SELECT {MARK}(); SELECT 'yes'::wish $$;
        CREATE FUNCTION of_wish(wish) RETURNS text LANGUAGE sql AS $$ SELECT {MARK}(); SELECT 'yes'::text $$;
        CREATE CAST (text AS wish) WITH FUNCTION to_wish(text) AS ASSIGNMENT;
        CREATE CAST (wish AS text) WITH FUNCTION of_wish(wish) AS ASSIGNMENT""",
    "composite": f"""
        CREATE TYPE wish AS (x text);
        CREATE FUNCTION to_wish(text) RETURNS wish LANGUAGE sql AS $$ SELECT {MARK}(); SELECT ROW($1)::wish $$;
        CREATE FUNCTION of_wish(wish) RETURNS text LANGUAGE sql AS $$ SELECT {MARK}(); SELECT 'yes'::text $$;
        CREATE CAST (text AS wish) WITH FUNCTION to_wish(text) AS ASSIGNMENT;
        CREATE CAST (wish AS text) WITH FUNCTION of_wish(wish) AS ASSIGNMENT""",
}


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("sort", TYPES)
def test_a_type_of_a_stranger_counts_as_text(stage: Stage, victim: Any, sort: str) -> None:
    own = stage.schema
    stage.mallory(TYPES[sort])
    try:
        for table in ("packed", "models", "guesses"):
            layout = stage.layout(table)
            layout["outputs"][0]["preparation"]["type"] = f"{own}.wish"
            for variable in layout["inputs"]:
                for feature in variable["preparation"].get("features", []):
                    if feature["family"] == "text":
                        feature["type"] = f"{own}.wish"
            stage.write(table, layout)
        for what, statement in statements(stage).items():
            error = stage.tried(victim, statement)
            assert error is None or what in ("importance",), (what, error)
        # The labels' column of the summary has the type, too.
        for table, labels in (("packed", "y_labels"), ("models", "y_class_values"), ("guesses", "y_labels")):
            as_wish = "ROW(l)::{0}.wish" if sort == "composite" else "l::{0}.wish"
            if sort == "enum":
                stage.mallory(f"ALTER TABLE {table}_summary ALTER {labels} TYPE wish[] USING"
                              f" {labels}::varchar[]::wish[]")  # fmt: skip
            else:
                stage.mallory(f"ALTER TABLE {table}_summary ADD COLUMN z {own}.wish[]")
                stage.mallory(
                    f"UPDATE {table}_summary SET z = (SELECT array_agg({as_wish.format(own)}) FROM unnest({labels}) l)"
                )
                stage.mallory(f"ALTER TABLE {table}_summary DROP {labels}")
                stage.mallory(f"ALTER TABLE {table}_summary RENAME z TO {labels}")
        for statement in statements(stage).values():
            stage.tried(victim, statement)
    finally:
        stage.mallory(
            "DROP TABLE packed_summary, models_summary, guesses_summary;"
            + "".join(f" CREATE TABLE {n}_summary AS TABLE {n}_summary_kept;" for n in ("packed", "models", "guesses"))
            + (" DROP DOMAIN wish" if sort == "domain" else " DROP TYPE wish CASCADE")
        )
        for name in ("packed", "models", "guesses"):
            stage.mallory(f"GRANT SELECT ON {name}_summary TO PUBLIC")


@pytest.mark.usefixtures("kept")
@pytest.mark.throw_away  # an extension is made
def test_a_type_that_a_stranger_has_added_to_an_extension_counts_as_text(stage: Stage, victim: Any) -> None:
    """Whoever may create something in a database makes a trusted extension, and adds types to it."""
    own = stage.schema
    (database,) = stage.root("SELECT current_database()")
    stage.root(f"GRANT CREATE ON DATABASE {database} TO {own}")
    stage.mallory("CREATE EXTENSION dict_int")
    try:
        stage.mallory(f"{TYPES['enum']}; ALTER EXTENSION dict_int ADD TYPE wish")
        layout = stage.layout("guesses")
        for holder in (layout["outputs"][0]["preparation"], layout["inputs"][-1]["preparation"]["features"][0]):
            holder["type"] = f"{own}.wish"
        stage.write("guesses", layout)
        called = f"SELECT {stage.bob.name}.guess(a, 'yes') FROM {stage.bob.name}.folk"
        for statement in (f"{statements(stage)['predictor']}; {called}", statements(stage)["predict"]):
            assert stage.tried(victim, statement) is None
    finally:
        stage.mallory("DROP EXTENSION dict_int CASCADE")
        stage.root(f"REVOKE CREATE ON DATABASE {database} FROM {own}")


def of_labels(stage: Stage, kind: str) -> None:
    """The labels of the model have this type of mallory's."""
    stage.mallory(
        "CREATE TYPE wish AS ENUM ('yes', 'no'); CREATE FUNCTION to_wish(text) RETURNS wish LANGUAGE sql AS"
        f" $$ SELECT {MARK}(); SELECT CASE $1 WHEN 'yes' THEN 'yes'::wish ELSE 'no' END $$;"
        " CREATE CAST (text AS wish) WITH FUNCTION to_wish(text) AS ASSIGNMENT"
    )
    layout = stage.layout("guesses")
    layout["outputs"][0]["preparation"]["type"] = kind
    stage.write("guesses", layout)
    stage.mallory(f"ALTER TABLE guesses_summary ALTER y_labels TYPE {kind}[] USING y_labels::varchar[]::{kind}[]")


@pytest.mark.usefixtures("kept")
def test_what_a_session_reads_for_one_role_serves_no_other(stage: Stage, victim: Any) -> None:
    """As a connection pooler uses a session: mallory's types may serve mallory, and nobody else after her."""
    own, bob, root = stage.schema, stage.bob.name, stage.root
    statement = statements(stage)["judge"]
    of_labels(stage, f"{own}.wish")
    root(f"GRANT USAGE ON SCHEMA {bob} TO {own}")
    role = root("SELECT current_user::text")[0] if victim is root else bob
    try:
        for _ in range(3):
            before = stage.calls()
            root(f"SET SESSION AUTHORIZATION {own}")
            for _ in range(3):  # the first two calls find out that nothing changes
                assert root(statement)
            root("RESET SESSION AUTHORIZATION")
            assert stage.calls() > before, "the type counts as a text: this would prove nothing"
            before = stage.calls()
            root(f"SET SESSION AUTHORIZATION {role}")
            for _ in range(3):
                assert root(statement)
            root("RESET SESSION AUTHORIZATION")
            assert stage.calls() == before
    finally:
        root("RESET SESSION AUTHORIZATION")
        root(f"REVOKE USAGE ON SCHEMA {bob} FROM {own}")
        stage.mallory("DROP TYPE wish CASCADE")


@pytest.mark.usefixtures("kept")
def test_a_type_that_changes_hands_is_no_longer_used(stage: Stage) -> None:
    """Of the tables of the model nothing changes then."""
    own, bob, root = stage.schema, stage.bob.name, stage.root
    statement = statements(stage)["judge"]
    of_labels(stage, f"{own}.wish")
    # The owner of a schema can put another type in the place of this one, so it goes along.
    root(f"ALTER TYPE {own}.wish OWNER TO {bob}; ALTER SCHEMA {own} OWNER TO {bob}")
    try:
        before = stage.calls()
        for _ in range(3):
            assert stage.bob(statement)
        assert stage.calls() > before
        root(f"ALTER TYPE {own}.wish OWNER TO {own}")
        before = stage.calls()
        for _ in range(3):
            assert stage.bob(statement)
        assert stage.calls() == before
    finally:
        root(f"ALTER TYPE {own}.wish OWNER TO {own}; ALTER SCHEMA {own} OWNER TO {own}")
        stage.mallory("DROP TYPE wish CASCADE")


# -- every field -----------------------------------------------------------------------------------------------

VALUES = (*SQL[:4], None, 10**400, -1, 1e308, "x", "fold", [], {}, documents.deep(60))
VICTIMS = 1 if os.environ.get("CEREBRO_ALL_VALUES") else 2  # that share the changes


@pytest.mark.usefixtures("kept")
def test_no_field_of_a_layout_runs_anything_or_breaks_python(stage: Stage, victim: Any) -> None:
    """As the documents are after their leaves were replaced: each call works, or an error of ours names the table.

    A user tries every second change, and a superuser the others.
    """
    tried, first = 0, stage.victims.index(victim) % VICTIMS
    for table, named in (("guesses", ("predict", "predictor", "columns")), ("packed", ("validation", "architecture"))):
        layout = stage.layout(table)
        for _, changed in itertools.islice(documents.changes(layout, VALUES), first, None, VICTIMS):
            if documents.as_jsonb(changed) is None:
                continue
            stage.write(table, changed)
            for what in named:
                error = stage.tried(victim, statements(stage)[what])
                tried += 1
                if error is None or changed is None:
                    continue
                assert table in str(error) or "parameter" in str(error) or "input" in str(error), error
    assert tried > 1000 / VICTIMS


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("kind", ["text", "json", "integer", "text[]", "bytea"])
def test_a_layout_of_another_type_is_no_layout(stage: Stage, victim: Any, kind: str) -> None:
    deep = "[" * documents.DEEP + "]" * documents.DEEP
    values = {
        "text": [deep, "{", "NaN", "1" * 5000, '{"rows": 1e999}', '"\\ud800"', "[" * 100_000],
        "json": [deep, "1" * 5000, '"\\ud800"', '{"rows": 1e400}'],
        "integer": ["7"], "text[]": ["{a}"], "bytea": ["\\x00"],
    }[kind]  # fmt: skip
    for table in ("guesses", "packed"):
        stage.mallory(f"ALTER TABLE {table}_summary DROP layout; ALTER TABLE {table}_summary ADD layout {kind}")
        for value in values:
            stage.mallory(f"UPDATE {table}_summary SET layout = %s::{kind}", value)
            for what in ("predict",) if table == "guesses" else ("validation", "architecture", "fit"):
                error = stage.tried(victim, statements(stage)[what])
                refused = (
                    f"the layout of '{stage.schema}.{table}",
                    f"column 'layout' of '{stage.schema}.{table}_summary'",
                )
                assert any(words in str(error) for words in refused), error


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("column", ["source_table", "divide_by", "classes", "segments", "target", "inputs",
                                    "target_types", "y_labels", "dependent_varname"])  # fmt: skip
def test_no_column_of_a_summary_breaks_python(stage: Stage, victim: Any, column: str) -> None:
    kinds = {
        "text": [SQL[0], ""], "bytea": ["\\xff"], "integer": ["-1"], "double precision": ["NaN", "-1e308"],
        "text[]": ['{"a",NULL}', "{}", "{a,a}"], "numeric": ["1" + "0" * 400], "integer[]": ["{-5}", "{{1,2},{3,4}}"],
        "json": ["{}"], "timestamptz": ["infinity"],
    }  # fmt: skip
    for kind, values in kinds.items():
        stage.mallory(f"ALTER TABLE packed_summary DROP IF EXISTS {column}, ADD {column} {kind}")
        for value in values:
            stage.mallory(f"UPDATE packed_summary SET {column} = %s::{kind}", value)
            for what in ("validation", "fit"):
                stage.tried(victim, statements(stage)[what])


def test_no_parameter_on_record_runs_anything_or_breaks_python(stage: Stage, victim: Any) -> None:
    """Those of the table _info: a model is trained and evaluated with them."""
    (sound,) = stage.mallory("SELECT parameters FROM guesses_info")
    assert {"loss", "optimizer", "batch_size", "passes"} <= sound.keys()
    write, predict = "UPDATE guesses_info SET parameters = %s::{}", statements(stage)["predict"]
    refused = 0
    try:
        for _, changed in documents.changes(sound, VALUES):
            text = documents.as_jsonb(changed)
            if text is not None:
                stage.mallory(write.format("jsonb"), text)
                error = stage.tried(victim, predict)
                refused += error is not None
                named = f"parameters of configuration 1 of '{stage.schema}.guesses'"
                assert error is None or named in str(error), error
        assert refused > 50
        deep = "[" * documents.DEEP + "]" * documents.DEEP
        for kind, values in {
            "text": [deep, "{", "NaN", "1" * 5000, '{"learning_rate": 1e999}', '"\\ud800"', "x" * 10_000_001],
            "json": [deep, "1" * 5000, '{"learning_rate": 1e400}'], "integer": ["7"], "text[]": ["{a}"],
        }.items():  # fmt: skip
            stage.mallory(f"ALTER TABLE guesses_info DROP parameters; ALTER TABLE guesses_info ADD parameters {kind}")
            for value in values:
                stage.mallory(write.format(kind), value)
                error = stage.tried(victim, predict)
                assert error is not None and "parameters" in str(error), (kind, value[:40], error)
    finally:
        stage.mallory("ALTER TABLE guesses_info DROP parameters; ALTER TABLE guesses_info ADD parameters jsonb")
        stage.mallory(write.format("jsonb"), json.dumps(sound))


# -- after the victim has copied the tables --------------------------------------------------------------------


@pytest.mark.usefixtures("kept")
def test_copies_of_a_strangers_tables_are_no_better(stage: Stage) -> None:
    bob, own = stage.bob, stage.schema
    layout = stage.layout("guesses")
    layout["outputs"][0]["preparation"]["type"] = SQL[0]
    stage.write("guesses", layout)
    for ending in ("", "_info", "_summary"):
        bob(f"CREATE TABLE mine{ending} AS TABLE {own}.guesses{ending}")
    error = stage.tried(bob, f"SELECT * FROM cerebro.predict('{bob.name}.mine', 'SELECT * FROM folk')")
    assert error is not None and "is not the name of an SQL type" in str(error)
    assert CALL in SQL[0]


# -- a query is one statement ----------------------------------------------------------------------------------

ROWS, RING = "SELECT * FROM folk", f"SELECT {MARK}()"
SEVERAL = (
    f"SELECT 1) x; {RING}; SELECT * FROM ({ROWS}",
    f"{ROWS}) AS q; {RING}; SELECT * FROM ({ROWS}",
    f"{ROWS}) AS q LIMIT 0; DO $$ BEGIN PERFORM {MARK}(); END $$; {ROWS} --",
    f"{ROWS}; {RING}",
    f"SELECT 1, 'x') AS rule LIMIT 0; COMMIT; {RING}; SELECT * FROM (SELECT 1, 'x'",
)
VERBS = {
    **{name: f"SELECT * FROM cerebro.{name}('guesses', %s)" for name in (
        "predict", "evaluate", "confusion_matrix", "class_metrics", "roc_curve", "precision_recall", "calibration",
        "importance", "explain", "drift", "calibrate", "mistakes")},
    "configurations": "SELECT cerebro.fit('mixed', 'never', %s, epochs => 1)",
    "stop_when": "SELECT cerebro.fit('mixed', 'never', '[{{\"learning_rate\": 0.1}}]', epochs => 1, stop_when => %s)",
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_no_second_statement_of_a_query_runs(stage: Stage, verb: str) -> None:
    """As its own user, because others have the same rights only in their own queries."""
    user = stage.mallory
    if not user("SELECT to_regclass('folk') IS NOT NULL")[0]:
        user("CREATE TABLE folk AS SELECT * FROM people LIMIT 5")
    if verb == "predict":
        assert user(VERBS[verb], f"{ROWS} WHERE b <> ';'"), "a semicolon in a text is none"
    before = stage.calls()
    for query in SEVERAL:
        for _ in range(2):  # a session that predicts again takes a shorter way
            with pytest.raises(psycopg2.Error):
                user(VERBS[verb], query)
        assert stage.calls() == before, query
    if verb not in ("configurations", "stop_when"):
        with pytest.raises(psycopg2.Error, match="query has several statements"):
            user(VERBS[verb], SEVERAL[1])


# -- tables beside those of others -----------------------------------------------------------------------------


def test_what_a_stranger_puts_beside_a_table_is_not_read(stage: Stage, victim: Any) -> None:
    """In a schema where both may create tables; the victim names its own packed rows and model."""
    own, shared = stage.schema, f"{stage.schema}_shared"
    stage.root(f"CREATE SCHEMA {shared}; GRANT ALL ON SCHEMA {shared} TO PUBLIC")
    try:
        victim(f"SELECT cerebro.pack_plain('{stage.bob.name}.points', '{shared}.rows', 'y', 'x', segments => 1)")
        victim(f"SELECT cerebro.fit('{shared}.rows', '{shared}.made', '[{{\"learning_rate\": 0.1}}]', epochs => 1)")
        for table, of in (("rows_validation", "packed"), ("rows_validation_summary", "packed_summary"),
                          ("made_weights", "models"), ("made_groups", "models")):  # fmt: skip
            stage.mallory(f"CREATE VIEW {shared}.{table} AS SELECT t.* FROM {own}.{of} t WHERE {own}.{MARK}() > 0;"
                          f" GRANT SELECT ON {shared}.{table} TO PUBLIC")  # fmt: skip
        for statement in (
            f"SELECT cerebro.fit('{shared}.rows', '{shared}.again', '[{{\"learning_rate\": 0.1}}]', epochs => 1)",
            f"SELECT * FROM cerebro.predict('{shared}.made', 'SELECT * FROM {stage.bob.name}.points')",
            f"SELECT cerebro.append('{shared}.rows', '{stage.bob.name}.points')",
            f"SELECT cerebro.drop_model('{shared}.made')",
        ):
            stage.tried(victim, statement)
        before = stage.calls()
        victim(f"SELECT count(*) FROM {shared}.rows_validation_summary")
        assert stage.calls() > before, "the traps would not have rung"
    finally:
        stage.root(f"DROP SCHEMA {shared} CASCADE")

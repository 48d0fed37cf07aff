"""A user who may read some columns of a table uses the functions that read no others.

Each function is tried with the columns that it needs, with all but one of them, and with none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from cerebro_db.core.records import dataclass
from tests.sql.users import Town, User, town

NETWORK = (
    '{"class_name": "Sequential", "config": {"name": "small", "layers": ['
    '{"class_name": "InputLayer", "config": {"batch_shape": [null, 2], "dtype": "float32", "name": "in"}},'
    '{"class_name": "Dense", "config": {"name": "out", "units": 2, "activation": "softmax"}}]}}'
)
ROWS = 60


@dataclass(frozen=True)
class Case:
    """A call that reads a table of another user."""

    call: str  # {t}: the table; {o}: a name for the output
    table: str
    columns: tuple[str, ...]  # those that it reads
    others: tuple[str, ...] = ()  # tables that it reads, too, and that the user may read


PACKED = ("__dist_key__", "buffer_id", "x", "y")
CASES = {
    "predict": Case("madlib_keras_predict('mine', {t}, 'id', 'x', {o}, 'prob', mst_key => 1)",
                    "points", ("id", "x")),
    "predict, many rows": Case("madlib_keras_predict('mine', {t}, 'id', 'x', {o}, 'prob', mst_key => 1)",
                               "many", ("id", "x")),
    "predict, byom": Case("_madlib_keras_predict_byom('bring', 1, {t}, 'id', 'x', {o}, 'prob', false, NULL, 1, 1)",
                          "points", ("id", "x")),
    "evaluate": Case("madlib_keras_evaluate('mine', {t}, {o}, NULL, 1)", "packed", PACKED, ("packed_summary",)),
    "pack_plain": Case("pack_plain({t}, {o}, 'y', 'x')", "points", ("x", "y")),
    "pack_like": Case("pack_like({t}, {o}, 'y', 'x', 'own_packed')",
                                       "points", ("x", "y")),
    "append": Case("append('own_packed', {t})", "points", ("x", "y")),
    "pack": Case("pack({t}, {o}, 'y', inputs => 'a, b', validation => 0.3)", "points", ("a", "b", "y")),
    "pack, stratified": Case("pack({t}, {o}, 'y', inputs => 'a', validation => 0.3, stratify => true)",
                             "points", ("a", "y")),
    "pack by time": Case("pack({t}, {o}, 'y', inputs => 'a', split_at => 'at')", "points", ("a", "at", "y")),
    "pack by group": Case("pack({t}, {o}, 'y', inputs => 'a', split_by => 'b')", "points", ("a", "b", "y")),
    "pack with folds": Case("pack({t}, {o}, 'y', inputs => 'a', folds => 2)", "points", ("a", "y")),
    "pack with weights": Case("pack({t}, {o}, 'y', inputs => 'a', weights => 'w')", "points", ("a", "w", "y")),
    "pack windows": Case("pack({t}, {o}, 'y', inputs => 'a',"
                         " sequence => '{{\"by\": \"b\", \"order\": \"at\", \"length\": 2}}')",
                         "points", ("a", "at", "b", "y")),
    "pack, validation table": Case("pack('own', {o}, 'y', inputs => 'a', validation_table => {t})",
                                   "points", ("a", "y")),
    "train": Case("train({t}, {o}, 'y', inputs => 'a', max_configurations => 1, epochs => 1, segments => 1)",
                  "points", ("a", "y")),
    "train_test_split": Case("_train_test_split({t}, {o}, 0.5, NULL, 'y', 'a', false, false)", "points", ("a", "y")),
    "fit": Case("madlib_fit_multiple_model({t}, {o}, 'mst', 1)", "packed", PACKED, ("packed_summary",)),
    "validation of fit": Case("madlib_fit_multiple_model('own_packed', {o}, 'mst', 1, validation_table => {t})",
                              "packed", PACKED, ("packed_summary",)),
    "architectures": Case("load_model_selection_table({t}, {o}, ARRAY[1], ARRAY[$$loss='categorical_crossentropy',"
                          "optimizer='SGD'$$], ARRAY[$$batch_size=8,epochs=1$$])", "arch", ("model_id",)),
    "a model": Case("madlib_keras_predict({t}, 'own', 'id', 'x', {o}, 'prob', mst_key => 1)",
                    "models", ("mst_key", "model_arch", "model_weights"), ("models_info", "models_summary")),
    "a model's info": Case("madlib_keras_predict({t}, 'own', 'id', 'x', {o}, 'prob', mst_key => 1)", "models_info",
                           ("mst_key", "compile_params", "fit_params", "loss_type", "metrics_type", "functions"),
                           ("models", "models_summary")),
    "a model's summary": Case("madlib_keras_predict({t}, 'own', 'id', 'x', {o}, 'prob', mst_key => 1)",
                              "models_summary", ("layout", "y_class_values"), ("models", "models_info")),
}  # fmt: skip


@dataclass
class Two:
    """The owner of the tables, and who may read some columns."""

    owner: User
    user: User
    calls: int = 0

    def grant(self, table: str, columns: tuple[str, ...] | None) -> None:
        """Grant columns of a table, or all of it, and nothing else of it."""
        self.owner(f"REVOKE ALL ON {table} FROM {self.user.name}")
        every = self.owner(
            "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            f"{self.owner.name}.{table}",
        )[0]
        self.owner(f"REVOKE ALL ({every}) ON {table} FROM {self.user.name}")
        if columns is None:
            self.owner(f"GRANT SELECT ON {table} TO {self.user.name}")
        elif columns:
            self.owner(f"GRANT SELECT ({', '.join(columns)}) ON {table} TO {self.user.name}")

    def statement(self, case: Case) -> str:
        self.calls += 1
        named = case.table.removesuffix("_info").removesuffix("_summary") if "model" in case.table else case.table
        call = case.call.format(t=f"'{self.owner.name}.{named}'", o=f"'made_{self.calls}'")
        schema = "madlib" if re.match("madlib_keras|load_|generate_", call) else "cerebro"
        schema = "cerebro_internal" if call.startswith("_") else schema
        return f"SELECT {schema}.{call}"


@pytest.fixture(scope="module")
def two(server: str) -> Iterator[Two]:
    with town(server) as made:
        owner, user = tables_of(made), made.user("reader", "cerebro_user")
        owner(f"GRANT USAGE ON SCHEMA {owner.name} TO {user.name}")
        own_tables(user)
        yield Two(owner, user)


def points(user: User, name: str, rows: int, key: str = "PRIMARY KEY") -> None:
    user(f"CREATE TABLE {name} (id int {key}, x real[], a real, b int, w real, at timestamp, secret text, y text)")
    user(
        f"INSERT INTO {name} SELECT i, ARRAY[sin(i), cos(i)]::real[], sin(i), i %% 5, 1 + i %% 3,"
        " timestamp '2024-01-01' + i * interval '1 hour', 'secret', CASE WHEN sin(i) > 0 THEN 'up' ELSE 'down' END"
        " FROM generate_series(1, %s) i",
        rows,
    )


def trained(user: User, packed: str, models: str) -> None:
    user(f"SELECT madlib.load_keras_model('arch', '{NETWORK}'::json)")
    user(
        "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1],"
        " ARRAY[$$loss='categorical_crossentropy',optimizer='SGD(lr=0.1)',metrics=['accuracy']$$],"
        " ARRAY[$$batch_size=8,epochs=1$$])"
    )
    user(f"SELECT cerebro.madlib_fit_multiple_model('{packed}', '{models}', 'mst', 1)")


def tables_of(made: Town) -> User:
    owner = made.user("owner", "cerebro_user")
    points(owner, "points", ROWS)
    points(owner, "many", 60_000)
    owner("ANALYZE many")
    owner("SELECT cerebro.pack_plain('points', 'packed', 'y', 'x', segments => 1, seed => 1)")
    trained(owner, "packed", "models")
    return owner


def own_tables(user: User) -> None:
    points(user, "own", ROWS)
    user("SELECT cerebro.pack_plain('own', 'own_packed', 'y', 'x', segments => 1, seed => 1)")
    trained(user, "own_packed", "mine")
    user("CREATE TABLE bring AS SELECT 1 AS model_id, model_arch, model_weights FROM mine")


def refusal(two: Two, case: Case) -> tuple[str, str]:
    """Message and hint, without the quotes of names."""
    told = two.user.refused(two.statement(case)).diag
    return told.message_primary.replace('"', ""), (told.message_hint or "").replace('"', "")


@pytest.mark.parametrize("name", CASES)
def test_the_columns_that_a_function_reads_are_enough(two: Two, name: str) -> None:
    case = CASES[name]
    table = f"{two.owner.name}.{case.table}"
    for other in case.others:
        two.grant(other, None)
    two.grant(case.table, case.columns)
    two.user(two.statement(case))
    for lacking in case.columns:
        two.grant(case.table, tuple(one for one in case.columns if one != lacking))
        text, hint = refusal(two, case)
        if len(case.columns) > 1:
            assert f"permission denied to read the column {lacking} of '{table}'" in text, text
            assert hint == f"The owner can say: GRANT SELECT ({lacking}) ON {table} TO {two.user.name};"
        else:
            assert "permission denied to read" in text and case.table in text, text
    two.grant(case.table, ())
    text, hint = refusal(two, case)
    assert "permission denied to read" in text and "The owner can say: GRANT SELECT" in hint, text
    assert table in f"{text} {hint}"
    two.grant(case.table, None)
    two.user(two.statement(case))


def test_what_is_not_granted_is_no_input_silently(two: Two) -> None:
    """Without a list, all columns are inputs; one that may not be read is not left out without a word."""
    two.grant("points", ("a", "b", "y"))
    error = two.user.refused(two.statement(Case("pack({t}, {o}, 'y')", "points", ())))
    assert "id, x, w, at, secret" in error.diag.message_primary


def test_policies_and_views_hold_as_before(two: Two) -> None:
    two.owner("CREATE TABLE guarded AS SELECT * FROM points")
    two.owner("ALTER TABLE guarded ENABLE ROW LEVEL SECURITY")
    two.owner(f"CREATE POLICY few ON guarded FOR SELECT TO {two.user.name} USING (b = 1)")
    two.grant("guarded", ("id", "x"))
    two.user(f"SELECT madlib.madlib_keras_predict('mine', '{two.owner.name}.guarded', 'id', 'x', 'few', 'prob',"
             " mst_key => 1)")  # fmt: skip
    assert two.user("SELECT count(DISTINCT id) FROM few") == [ROWS // 5]
    two.owner("CREATE VIEW seen AS SELECT id, x, secret FROM points")
    two.grant("points", ())
    two.grant("seen", ("id", "x"))
    two.user(f"SELECT madlib.madlib_keras_predict('mine', '{two.owner.name}.seen', 'id', 'x', 'viewed', 'prob',"
             " mst_key => 1)")  # fmt: skip
    assert two.user("SELECT count(DISTINCT id) FROM viewed") == [ROWS]


@pytest.mark.parametrize("function", ["confusion_matrix", "predict"])
def test_a_query_needs_its_columns_only(two: Two, function: str) -> None:
    two.grant("points", ("id", "x", "y"))
    query = f"SELECT id, x, y FROM {two.owner.name}.points"
    assert two.user(f"SELECT count(*) FROM cerebro.{function}('mine', %s) AS found", query)[0] > 0
    two.grant("points", ("id", "x"))
    error: Any = two.user.refused(f"SELECT count(*) FROM cerebro.{function}('mine', %s) AS found", query)
    assert "points" in str(error)


def test_a_table_in_the_place_of_a_query_has_the_columns_that_may_be_read(two: Two) -> None:
    call = f"SELECT count(*) FROM cerebro.predict('mine', '{two.owner.name}.points', 'id')"
    two.grant("points", ("id", "x"))
    assert two.user(call) == [ROWS]
    two.grant("points", ("id", "a"))
    with pytest.raises(psycopg2.Error, match="does not have the input x"):
        two.user(call)
    two.grant("points", ())
    with pytest.raises(errors.InsufficientPrivilege):
        two.user(call)

"""Architecture tables and model selection tables: MADlib's columns and messages, and the checks at creation."""

from __future__ import annotations

import contextlib
import json
import threading

import psycopg2
import pytest
from psycopg2 import errors

KERAS2 = {
    "class_name": "Sequential",
    "config": [
        {
            "class_name": "Dense",
            "config": {"name": "dense_1", "units": 10, "activation": "relu", "batch_input_shape": [None, 4]},
        },
        {"class_name": "Dense", "config": {"name": "dense_2", "units": 3, "activation": "softmax"}},
    ],
    "keras_version": "2.2.4",
    "backend": "tensorflow",
}
LAMBDA = {
    "class_name": "Sequential",
    "config": [{"class_name": "Lambda", "config": {"name": "l", "function": ["4wEA", None, None]}}],
}


@pytest.fixture
def db(one_session):
    with one_session.schema() as connection:
        yield connection


def load(sql, table="arch", architecture=KERAS2, **more):
    wanted = [more.get(name) for name in ("model_weights", "name", "description")]
    sql("SELECT madlib.load_keras_model(%s, %s, %s, %s, %s)", table, json.dumps(architecture), *wanted)


def told(sql):
    """The server's messages since the last call."""
    found = [notice.strip() for notice in sql.db.notices]
    sql.db.notices.clear()
    return found


# -- architectures -------------------------------------------------------------------------------------


def test_the_table_is_made_on_first_use_with_madlibs_columns(sql):
    told(sql)
    load(sql)
    assert told(sql) == [
        "INFO:  Keras Model Arch: Created new keras model architecture table arch.",
        "INFO:  Keras Model Arch: Added model id 1 to arch table",
    ]
    load(sql, model_weights=b"\0" * 8, name="small", description="it's \\ small")
    assert told(sql) == ["INFO:  Keras Model Arch: Added model id 2 to arch table"]
    found = sql(
        "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = 'arch'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert found == [
        ("model_id", "integer"),
        ("model_arch", "json"),
        ("model_weights", "bytea"),
        ("name", "text"),
        ("description", "text"),
        ("__internal_madlib_id__", "text"),
    ]
    rows = sql("SELECT model_id, model_arch::text, model_weights, name, description FROM arch ORDER BY model_id")
    assert rows[0] == (1, json.dumps(KERAS2), None, None, None)  # exactly the given text, here of Keras 2
    assert (rows[1][0], bytes(rows[1][2]), *rows[1][3:]) == (2, b"\0" * 8, "small", "it's \\ small")
    assert sql("SELECT count(DISTINCT __internal_madlib_id__) FROM arch") == [(2,)]


def test_ids_go_on_after_rows_that_were_put_in_by_hand(sql):
    load(sql)
    sql("INSERT INTO arch (model_id, model_arch) SELECT 41, model_arch FROM arch")
    load(sql)
    assert sql("SELECT array_agg(model_id ORDER BY model_id) FROM arch") == [([1, 41, 42],)]


@pytest.mark.parametrize("exists", [True, False])
def test_sessions_at_once_do_not_take_the_same_id(sql, server, exists):
    if exists:
        load(sql)
    schema = sql("SELECT current_schema()")[0][0]
    problems = []

    def add():
        with contextlib.closing(psycopg2.connect(server)) as other:
            other.autocommit = True
            try:
                with other.cursor() as cursor:
                    for _ in range(5):
                        cursor.execute("SELECT madlib.load_keras_model(%s, %s)", (f"{schema}.arch", json.dumps(KERAS2)))
            except psycopg2.Error as error:
                problems.append(error)

    sessions = [threading.Thread(target=add) for _ in range(4)]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    assert not problems
    assert sql("SELECT array_agg(model_id ORDER BY model_id) FROM arch") == [(list(range(1, 21 + exists)),)]


@pytest.mark.parametrize("name", ['"special-char?"', '"My ""Table"""', '"größe"'])
def test_hostile_names(sql, name):
    load(sql, table=name)
    assert sql(f"SELECT count(*) FROM {name}") == [(1,)]
    sql("SELECT madlib.delete_keras_model(%s, 1)", name)
    assert sql("SELECT to_regclass(%s)", name) == [(None,)]


def test_an_architecture_that_could_run_code_is_not_added(sql):
    with pytest.raises(errors.InsufficientPrivilege, match="Lambda"):
        sql("SELECT cerebro.add_architecture('code', %s)", json.dumps(LAMBDA))
    assert sql("SELECT name FROM cerebro.architectures WHERE name = 'code'") == []


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ("NULL, '{}'", "42602", "keras_model_arch_table must not be NULL or empty"),
        ("'arch', '{'", "22P02", "invalid input syntax for type json"),
        ("'pg_catalog.pg_class', '{}'", None, None),
    ],
)
def test_wrong_arguments(sql, arguments, sqlstate, message):
    with pytest.raises(psycopg2.Error) as error:
        sql(f"SELECT madlib.load_keras_model({arguments})")
    assert sqlstate is None or (error.value.pgcode == sqlstate and message in str(error.value))
    assert error.value.pgcode not in ("XX000", "38000")
    assert sql("SELECT to_regclass('arch')") == [(None,)]


def test_a_table_of_another_kind_is_named(sql):
    sql("CREATE TABLE arch (model_id int, model_arch json)")
    with pytest.raises(errors.UndefinedColumn, match="Invalid keras model architecture table arch, missing columns: "):
        load(sql)


def test_deleting(sql):
    load(sql)
    load(sql)
    told(sql)
    sql("SELECT madlib.delete_keras_model('arch', 1)")
    assert told(sql) == ["INFO:  Keras Model Arch: Model id 1 has been deleted from arch."]
    for number in ("1", "NULL"):
        with pytest.raises(errors.UndefinedObject, match=f"Keras Model Arch error: Model id {number} not found"):
            sql(f"SELECT madlib.delete_keras_model('arch', {number})")
    sql("SELECT madlib.delete_keras_model('arch', 2)")
    assert sql("SELECT to_regclass('arch')") == [(None,)]  # as MADlib: the table goes with its last architecture
    with pytest.raises(errors.UndefinedTable, match="Keras Model Arch error: Input table 'nix' does not exist"):
        sql("SELECT madlib.delete_keras_model('nix', 2)")
    load(sql)
    assert sql("SELECT model_id FROM arch") == [(1,)]


# -- model selection tables ----------------------------------------------------------------------------

ADAM = "optimizer='Adam(lr=0.1)',loss='categorical_crossentropy',metrics=['accuracy']"
SGD = "loss='mse', optimizer='SGD()'"
FIT = ["batch_size=8,epochs=1", "batch_size=16,epochs=2"]


@pytest.fixture
def arch(sql):
    load(sql)
    load(sql)


def select(sql, compile_params=(ADAM, SGD), fit_params=FIT, ids=(2, 1), arch="arch", *, table="mst", object_table=None):
    sql(
        "SELECT madlib.load_model_selection_table(%s, %s, %s::int[], %s::text[], %s::text[], %s)",
        *(arch, table, ids and list(ids), compile_params and list(compile_params), fit_params, object_table),
    )


def test_all_combinations_in_order(sql, arch):
    select(sql)
    assert sql("SELECT * FROM mst ORDER BY mst_key") == [
        (number + 1, *row) for number, row in enumerate((i, c, f) for i in (1, 2) for c in (ADAM, SGD) for f in FIT)
    ]
    assert sql("SELECT * FROM mst_summary") == [("arch", None)]
    found = sql(
        "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute "
        "WHERE attrelid = 'mst'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert found == [
        ("mst_key", "integer"),
        ("model_id", "integer"),
        ("compile_params", "character varying"),
        ("fit_params", "character varying"),
    ]
    sql("INSERT INTO mst (model_id, compile_params, fit_params) VALUES (1, 'by', 'hand')")
    assert sql("SELECT max(mst_key) FROM mst") == [(9,)]
    with pytest.raises(errors.UniqueViolation):
        sql("INSERT INTO mst (model_id, compile_params, fit_params) VALUES (1, 'by', 'hand')")


def test_what_means_the_same_is_one_configuration_spelled_as_last_given(sql, arch):
    same = "metrics = ['accuracy'] , loss='categorical_crossentropy', optimizer='Adam(lr=0.1)'"
    select(sql, [ADAM, same], ["epochs=1, batch_size=8", "batch_size=8,epochs=1"], [1, 1])
    assert sql("SELECT * FROM mst") == [(1, 1, same, "batch_size=8,epochs=1")]


@pytest.mark.parametrize(
    ("change", "sqlstate", "message"),
    [
        ({"arch": "nix"}, "42P01", "load_model_selection_table error: Input table 'nix' does not exist."),
        ({"arch": None}, "42602", "NULL/empty input table name!"),
        ({"table": None}, "42602", "NULL/empty output table name!"),
        ({"table": "arch"}, "42P07", "Output table 'arch' already exists."),
        (
            {"ids": [1, 3]},
            "42704",
            "One or more model_id of (1,3) not found in table arch",
        ),
        ({"ids": None}, "22023", "model_id_list cannot be empty, NULL or hold a NULL"),
        ({"compile_params": None}, "22023", "compile_params_list cannot be NULL"),
        ({"fit_params": None}, "22023", "fit_params_list cannot be NULL"),
        ({"object_table": "functions"}, "0A000", "custom functions are in cerebro.custom_function"),
        ({"compile_params": ["loss='mse'"]}, "22023", "Compile param check failed for: loss='mse' \n optimizer is a"),
        ({"compile_params": [ADAM, ""]}, "22023", "Compile parameters cannot be empty or NULL."),
        ({"fit_params": ["batch_size=0"]}, "22023", "Fit param check failed for: batch_size=0 \n "),
        ({"fit_params": ["callbacks=[]"]}, "0A000", "Fit param check failed for: callbacks=[]"),
    ],
)
def test_wrong_selections_are_named_and_nothing_is_made(sql, arch, change, sqlstate, message):
    with pytest.raises(psycopg2.Error) as error:
        select(sql, **change)
    assert error.value.pgcode == sqlstate and message in error.value.diag.message_primary
    assert sql("SELECT to_regclass('mst'), to_regclass('mst_summary')") == [(None, None)]


# -- searches ------------------------------------------------------------------------------------------

COMPILE_GRID = """{'loss': ['categorical_crossentropy'],
                   'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.01]}],
                   'metrics': ['accuracy']}"""
FIT_GRID = "{'batch_size': [4, 8], 'epochs': [1]}"
SPACE = "{'loss': ['mse'], 'optimizer': ['Adam'], 'lr': [0.0001, 0.1, 'log']}"


def generate(sql, compile_grid=COMPILE_GRID, fit_grid=FIT_GRID, *more, ids=(1, 2), arch="arch", table="mst"):
    places = "".join(", %s" for _ in more)
    sql(
        f"SELECT madlib.generate_model_configs(%s, %s, %s::int[], %s, %s{places})",
        *(arch, table, ids and list(ids), compile_grid, fit_grid, *more),
    )


def test_a_grid_makes_all_combinations(sql, arch):
    told(sql)
    generate(sql)
    assert told(sql) == ["NOTICE:  16 configurations added, 16 in all"]
    assert sql("SELECT count(*), min(mst_key), max(mst_key) FROM mst") == [(16, 1, 16)]
    assert sql("SELECT compile_params, fit_params FROM mst WHERE mst_key = 1") == [
        (
            "optimizer='Adam(lr=0.001)',loss='categorical_crossentropy',metrics=['accuracy']",
            "batch_size=4,epochs=1",
        )
    ]


def test_more_is_added_once_and_the_summary_stays_one_row(sql, arch):
    generate(sql, ids=[1])
    generate(sql, ids=[1, 2])
    generate(sql, ids=[1, 2])
    assert sql("SELECT count(*), max(mst_key) FROM mst") == [(16, 16)]
    assert sql("SELECT * FROM mst_summary") == [("arch", None)]
    load(sql, table="other")
    with pytest.raises(errors.InvalidParameterValue, match="Inconsistent model arch table. Use 'arch' if appending"):
        generate(sql, arch="other", ids=[1])
    schema = sql("SELECT current_schema()")[0][0]
    generate(sql, arch=f"{schema}.arch")  # the same table with its schema


def test_a_random_search_obeys_its_seed(sql, arch):
    for table in ("one", "two"):
        generate(sql, SPACE, FIT_GRID, "random", 10, 0, table=table)
    assert sql("SELECT * FROM one ORDER BY 1") == sql("SELECT * FROM two ORDER BY 1")
    assert sql("SELECT count(*) FROM one") == [(10,)]
    generate(sql, SPACE, FIT_GRID, "rand", 5, table="one")
    assert sql("SELECT count(*), count(DISTINCT mst_key) FROM one") == [(15, 15)]


def test_rows_put_in_by_hand_are_kept_and_gone_on_from(sql, arch):
    sql("CREATE TABLE mst (mst_key serial, model_id int, compile_params varchar, fit_params varchar)")
    sql("CREATE TABLE mst_summary (model_arch_table varchar); INSERT INTO mst_summary VALUES ('arch')")
    sql("INSERT INTO mst (model_id, compile_params, fit_params) VALUES (1, %s, %s)", ADAM, "epochs=1")
    generate(sql, ids=[1])
    assert sql("SELECT count(*), count(DISTINCT mst_key) FROM mst") == [(9, 9)]
    assert sql("SELECT * FROM mst_summary") == [("arch",)]


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ((COMPILE_GRID, FIT_GRID, "bayes"), "22023", "DL: 'search_type' must be either 'grid' or 'random'"),
        ((COMPILE_GRID, FIT_GRID, "grid", 3), "22023", "DL: 'num_configs' and 'random_state' must be NULL for grid"),
        ((COMPILE_GRID, FIT_GRID, "random"), "22023", "DL: 'num_configs' cannot be NULL and needs to be a natural"),
        ((SPACE, FIT_GRID), "22023", "DL: Cannot search from a distribution with grid search"),
        (("{'loss': 'mse'}", FIT_GRID), "22023", "DL: compile param values must be specified in a list"),
        (("{'loss': [", FIT_GRID), "22P02", "Invalid syntax in 'compile_params_dict'"),
        (("{'loss': [__import__('os')]}", FIT_GRID), "22P02", "Invalid syntax in 'compile_params_dict'"),
        (("{'loss': ['nix']}", FIT_GRID), "22023", "Compile param check failed for: "),
        ((COMPILE_GRID, "{'batch_size': [0]}"), "22023", "Fit param check failed for: batch_size=0"),
        ((None, FIT_GRID), "22023", "Compile parameters cannot be empty or NULL."),
        (
            (COMPILE_GRID, FIT_GRID, "grid", None, None, "functions"),
            "0A000",
            "custom functions are in cerebro.custom_function",
        ),
    ],
)
def test_wrong_searches_are_named_and_nothing_is_made(sql, arch, arguments, sqlstate, message):
    with pytest.raises(psycopg2.Error) as error:
        generate(sql, *arguments)
    assert error.value.pgcode == sqlstate and message in error.value.diag.message_primary
    assert sql("SELECT to_regclass('mst'), to_regclass('mst_summary')") == [(None, None)]


def test_sessions_at_once_add_each_configuration_once(sql, arch, server):
    generate(sql, ids=[1], compile_grid="{'loss': ['mae'], 'optimizer': ['SGD']}")
    schema = sql("SELECT current_schema()")[0][0]
    problems = []

    def add():
        with contextlib.closing(psycopg2.connect(server, options=f"-csearch_path={schema}")) as other:
            other.autocommit = True
            try:
                with other.cursor() as cursor:
                    cursor.execute(
                        "SELECT madlib.generate_model_configs('arch', 'mst', '{1,2}', %s, %s)",
                        (COMPILE_GRID, FIT_GRID),
                    )
            except psycopg2.Error as error:
                problems.append(error)

    sessions = [threading.Thread(target=add) for _ in range(3)]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    assert not problems
    assert sql("SELECT count(*), count(DISTINCT mst_key) FROM mst") == [(18, 18)]

"""Tables as MADlib leaves them: some are used as they are, others after one call."""

from __future__ import annotations

import re

import pytest
from psycopg2 import errors

from tests.madlib_tables import TABLES
from tests.sql.lab import Lab
from tests.sql.madlib.madlib_lab import iris_data

MODEL = """{"class_name": "Sequential", "keras_version": "2.1.6", "backend": "tensorflow", "config": [
  {"class_name": "Dense", "config": {"name": "dense_1", "batch_input_shape": [null, 4], "dtype": "float32",
   "units": 10, "activation": "relu"}},
  {"class_name": "Dense", "config": {"name": "dense_2", "units": 3, "activation": "softmax"}}]}"""
PARAMS = "loss='categorical_crossentropy',optimizer='Adam(lr=0.02)',metrics=['accuracy']"


def as_madlib_leaves(lab: Lab, made_by: str, argument: str, table: str, new: str, *, without: str = "") -> None:
    """Copy the columns that MADlib's table has."""
    (documented,) = [one for one in TABLES if (one.made_by, one.name) == (made_by, argument)]
    meant = {"<input>": "attributes", "<output>": "class_text"}
    names = [re.sub(r"<[^>]+>", lambda found: meant[found[0]], name) for name, _ in documented.types]
    lab(f"CREATE TABLE {new} AS SELECT {', '.join(name for name in names if name != without)} FROM {table}")


@pytest.fixture(scope="module")
def theirs(madlib: Lab) -> Lab:
    """Packed tables and models as MADlib leaves them, beside those that they are copies of."""
    iris_data(madlib)
    madlib("CREATE TABLE iris_test AS SELECT * FROM iris_data WHERE id % 5 = 0")
    madlib("SELECT madlib.training_preprocessor_dl('iris_data', 'ours', 'class_text', 'attributes', 40, 2.0)")
    madlib("SELECT madlib.validation_preprocessor_dl('iris_test', 'ours_val', 'class_text', 'attributes', 'ours')")
    for table, new in (("ours", "packed"), ("ours_val", "packed_val")):
        as_madlib_leaves(madlib, "training_preprocessor_dl", "output_table", table, new, without="__dist_key__")
        as_madlib_leaves(
            madlib, "training_preprocessor_dl", "output_table_summary", f"{table}_summary", f"{new}_summary"
        )
    # MADlib 2 has no key, and adds a row to the summary of a selection table with every call.
    madlib("CREATE TABLE arch (model_id integer, model_arch json, model_weights bytea, name text, description text,"
           " __internal_madlib_id__ text)")  # fmt: skip
    madlib("INSERT INTO arch VALUES (1, %s, NULL, 'Sophie', NULL, 'abc')", MODEL)
    madlib("CREATE TABLE mst (mst_key serial, model_id integer, compile_params varchar, fit_params varchar,"
           " UNIQUE (model_id, compile_params, fit_params))")  # fmt: skip
    madlib("INSERT INTO mst (model_id, compile_params, fit_params) VALUES (1, %s, 'batch_size=8,epochs=1'),"
           " (1, %s, 'batch_size=16,epochs=1')", PARAMS, PARAMS)  # fmt: skip
    madlib("CREATE TABLE mst_summary AS SELECT 'arch'::varchar AS model_arch_table, NULL::varchar AS object_table"
           " FROM generate_series(1, 2)")  # fmt: skip
    madlib("SELECT madlib.madlib_keras_fit_multiple_model('ours', 'our_models', 'mst', 4, FALSE, 'ours_val')")
    madlib(f"SELECT madlib.madlib_keras_fit('ours', 'our_model', 'arch', 1, $${PARAMS}$$, 'batch_size=8', 4)")
    multiple, single = "madlib_keras_fit_multiple_model", "madlib_keras_fit"
    for ending in ("", "_info", "_summary"):
        as_madlib_leaves(madlib, multiple, f"model_output_table{ending}", f"our_models{ending}", f"models{ending}")
    for ending in ("", "_summary"):
        as_madlib_leaves(madlib, single, f"model{ending}", f"our_model{ending}", f"model{ending}")
    return madlib


def test_packed_tables_and_models_of_madlibs(theirs: Lab) -> None:
    with pytest.raises(errors.Error, match="'packed' is not a packed table"):
        theirs("SELECT madlib.madlib_keras_fit_multiple_model('packed', 'never', 'mst', 1)")
    with pytest.raises(errors.Error, match="Missing summary and/or info"):
        theirs("SELECT madlib.madlib_keras_evaluate('models', 'ours_val', 'never', FALSE, 1)")
    before = theirs("SELECT * FROM packed_val_summary")
    buffers = theirs.value("SELECT count(*) FROM packed")  # each segment has some of its own
    said = theirs.value("SELECT cerebro.convert_madlib_table('packed')")
    assert f"150 rows in {buffers} buffers" in said and "MADlib's table is packed_madlib" in said
    theirs("SELECT cerebro.convert_madlib_table('packed_val')")
    assert theirs("SELECT * FROM packed_val_madlib_summary") == before
    assert theirs("SELECT count(*) FROM packed_madlib") == [(buffers,)]
    for new, table in (("packed", "ours"), ("packed_val", "ours_val")):
        layouts = theirs(f"SELECT a.layout, b.layout FROM {new}_summary a, {table}_summary b")[0]
        assert layouts[0] == layouts[1], "the same bytes on the same segments"
    assert [name for name, _ in theirs.columns("packed")] == [name for name, _ in theirs.columns("ours")]

    said = theirs.value("SELECT cerebro.convert_madlib_table('models', 'packed')")
    assert "2 models of models can be evaluated" in said
    assert "1 model of model" in theirs.value("SELECT cerebro.convert_madlib_table('model', 'packed')")
    for ours, converted, key in (("our_models", "models", 2), ("our_model", "model", "NULL")):
        theirs(f"SELECT madlib.madlib_keras_evaluate('{ours}', 'ours_val', '{ours}_judged', FALSE, {key})")
        theirs(f"SELECT madlib.madlib_keras_evaluate('{converted}', 'packed_val', '{converted}_judged', FALSE, {key})")
        assert theirs(f"SELECT * FROM {ours}_judged") == theirs(f"SELECT * FROM {converted}_judged")
        for model in (ours, converted):
            rows = f"'iris_test', 'id', 'attributes', '{model}_said'"
            theirs(f"SELECT madlib.madlib_keras_predict('{model}', {rows}, 'prob', FALSE, {key})")
        said = "SELECT * FROM {} ORDER BY id, class_value"
        assert theirs(said.format(f"{ours}_said")) == theirs(said.format(f"{converted}_said"))

    # They are trained on, from their weights.
    losses = "SELECT mst_key, training_loss_final FROM models_info"
    before = dict(theirs(losses))
    theirs(
        "SELECT madlib.madlib_keras_fit_multiple_model('packed', 'models', 'mst', 2, FALSE, 'packed_val', NULL, TRUE)"
    )
    assert all(loss < before[key] + 0.05 for key, loss in theirs(losses)) and len(before) == 2
    started = theirs.value("SELECT training_loss_final FROM model_summary")
    theirs(f"SELECT madlib.madlib_keras_fit('packed', 'model', 'arch', 1, $${PARAMS}$$, 'batch_size=8', 2, FALSE, NULL,"
           " NULL, TRUE)")  # fmt: skip
    assert theirs.value("SELECT training_loss_final FROM model_summary") < started + 0.05


def test_what_is_not_converted(theirs: Lab) -> None:
    for table, packed, why in (
        ("ours", "NULL", "it is a table of cerebro_db already"),
        ("arch", "NULL", "it has no summary"),
        ("mst", "NULL", "mst_summary"),
        ("nowhere", "NULL", "there is no table"),
    ):
        with pytest.raises(errors.Error, match=why):
            theirs(f"SELECT cerebro.convert_madlib_table('{table}', {packed})")
    theirs("CREATE TABLE broken AS SELECT * FROM packed_madlib; CREATE TABLE broken_summary AS"
           " SELECT * FROM packed_madlib_summary; UPDATE broken SET class_text = substring(class_text FROM 3)"
           " WHERE buffer_id = 2")  # fmt: skip
    with pytest.raises(errors.Error, match="buffer 2 of .*broken_madlib' is damaged: column 'class_text'"):
        theirs("SELECT cerebro.convert_madlib_table('broken')")
    buffers = theirs.value("SELECT count(*) FROM packed_madlib")
    assert theirs("SELECT to_regclass('broken_madlib'), count(*) FROM broken") == [(None, buffers)]
    columns = "'class_text' AS dependent_varname, 'attributes' AS independent_varname, 1.0 AS normalizing_const"
    theirs(f"CREATE TABLE older AS SELECT * FROM packed_madlib; CREATE TABLE older_summary AS SELECT {columns},"
           " 5 AS buffer_size")  # fmt: skip
    with pytest.raises(errors.Error, match="older version of the input preprocessor"):
        theirs("SELECT cerebro.convert_madlib_table('older')")
    columns = "ARRAY['class_text'] AS dependent_varname, ARRAY['a', 'b'] AS independent_varname"
    theirs("CREATE TABLE lost AS SELECT * FROM our_models; CREATE TABLE lost_summary AS"
           f" SELECT 'nowhere'::text AS source_table, {columns}")  # fmt: skip
    with pytest.raises(errors.Error, match="Name the packed table that the models were trained on"):
        theirs("SELECT cerebro.convert_madlib_table('lost')")
    with pytest.raises(errors.Error, match="have 2 variables as independent_varname"):
        theirs("SELECT cerebro.convert_madlib_table('lost', 'ours')")

"""What the functions of the schema madlib do in MADlib's way, where those of the schema cerebro have another."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from psycopg2 import errors

from tests.sql.lab import Lab, flower_model
from tests.sql.users import ARCHITECTURE, town


def bytes_of(lab: Lab, table: str, column: str, kind: str) -> list[Any]:
    """The packed numbers of a table, in the order of its buffers."""
    rows = lab(f"SELECT madlib.convert_bytea_to_{kind}_array({column}) FROM {table} ORDER BY buffer_id")
    return [number for (numbers,) in rows for number in numbers]


@pytest.fixture(scope="module")
def things(madlib: Lab) -> Lab:
    rows = [
        (i, [i, 2 * i], f"k{i % 4}" if i % 4 else None, i % 3 / 2, [0.25 + i, 7.0], [int(i % 3 == c) for c in range(3)])
        for i in range(17)
    ]  # fmt: skip
    columns = {"id": "int", "x": "int[]", "label": "varchar", "half": "float8", "target": "float8[]", "hot": "int[]"}
    madlib.table("things", columns, rows)
    madlib("CREATE VIEW known AS SELECT * FROM things WHERE label IS NOT NULL")
    return madlib


def test_null_is_a_class_and_comes_first(things: Lab) -> None:
    things("SELECT madlib.training_preprocessor_dl('things', 'nulls', 'label', 'x', NULL, 10, ARRAY[6])")
    assert things("SELECT label_class_values, num_classes, normalizing_const FROM nulls_summary") == [
        ([None, "k1", "k2", "k3", None, None], [6], 10.0)
    ]
    shapes = "SELECT sum(x_shape[1]), max(x_shape[2]), sum(label_shape[1]), max(label_shape[2]) FROM nulls"
    assert things(shapes) == [(17, 2, 17, 6)]
    hot = bytes_of(things, "nulls", "label", "smallint")
    assert [sum(hot[place::6]) for place in range(6)] == [5, 4, 4, 4, 0, 0]
    inputs = bytes_of(things, "nulls", "x", "real")  # integers are float32, too, and divided when they are packed
    ids = [round(value * 10) for value in inputs[::2]]
    assert sorted(ids) == list(range(17)) != ids, "the rows are shuffled"
    assert max(inputs) == pytest.approx(3.2)
    for row, i in enumerate(ids):
        assert hot[6 * row : 6 * row + 6].index(1) == i % 4

    things("SELECT madlib.validation_preprocessor_dl('things', 'nulls_val', 'label', 'x', 'nulls')")
    assert things("SELECT label_class_values, num_classes FROM nulls_val_summary") == things(
        "SELECT label_class_values, num_classes FROM nulls_summary"
    )
    found = bytes_of(things, "nulls_val", "label", "smallint")
    assert [sum(found[place::6]) for place in range(6)] == [5, 4, 4, 4, 0, 0]
    things("SELECT madlib.training_preprocessor_dl('known', 'known_packed', 'label', 'x')")
    with pytest.raises(errors.DataException, match=r"should be a subset of class values in known_packed \(\['k1'"):
        things("SELECT madlib.validation_preprocessor_dl('things', 'x', 'label', 'x', 'known_packed')")
    things.told()
    things("SELECT cerebro.pack_plain('things', 'labelled', 'label', 'x')")  # the natural way
    assert things.value("SELECT (layout->>'rows')::integer FROM labelled_summary") == 12
    assert "5 rows of things are left out, because the target label is NULL" in "".join(things.told())


def test_numbers_are_classes_and_arrays_are_integers(things: Lab) -> None:
    things("SELECT madlib.training_preprocessor_dl('things', 'halves', 'half', 'x')")
    assert things("SELECT half_class_values, pg_typeof(half_class_values)::text, num_classes FROM halves_summary") == [
        ([0.0, 0.5, 1.0], "double precision[]", [3])
    ]
    things("SELECT madlib.validation_preprocessor_dl('things', 'halves_val', 'half', 'x', 'halves')")
    assert bytes_of(things, "halves_val", "half", "smallint").count(1) == 17
    things("SELECT madlib.training_preprocessor_dl('things', 'rounded', 'target', 'x')")
    assert things(
        "SELECT target_class_values, pg_typeof(target_class_values)::text, num_classes FROM rounded_summary"
    ) == [(None, "double precision[]", [])]
    found = bytes_of(things, "rounded", "target", "smallint")
    assert sorted(found[::2]) == list(range(17)) and set(found[1::2]) == {7}


def test_vectors_validate_labels(things: Lab) -> None:
    things("CREATE VIEW named AS SELECT id, x, chr(97 + id % 3) AS label FROM things")
    things("SELECT madlib.training_preprocessor_dl('named', 'named_packed', 'label', 'x')")
    things("SELECT madlib.validation_preprocessor_dl('things', 'hot_val', 'hot', 'x', 'named_packed')")
    assert things("SELECT sum(hot_shape[1]), max(hot_shape[2]) FROM hot_val") == [(17, 3)]
    with pytest.raises(errors.DataException, match="has shape"):
        things("SELECT madlib.validation_preprocessor_dl('things', 'x', 'x', 'hot', 'named_packed')")


@pytest.mark.throw_away
def test_buffers_are_full_on_postgresql(things: Lab) -> None:
    things("SELECT madlib.training_preprocessor_dl('things', 'fives', 'half', 'x', 5)")
    assert things("SELECT half_shape[1] FROM fives ORDER BY buffer_id") == [(5,), (5,), (5,), (2,)]
    assert things.value("SELECT buffer_size FROM fives_summary") == 5


def test_any_json_is_stored_and_checked_when_it_is_used(things: Lab) -> None:
    lambda_layer = {"class_name": "Sequential", "config": {"layers": [{"class_name": "Lambda", "config": {}}]}}
    things("SELECT madlib.load_keras_model('any_arch', '{\"a\": 1}', 'abcde'::bytea)")
    things("SELECT madlib.load_keras_model('any_arch', %s, NULL, 'special-char?')", json.dumps(lambda_layer))
    assert things("SELECT model_id, octet_length(model_weights), name FROM any_arch ORDER BY 1") == [
        (1, 5, None), (2, None, "special-char?"),
    ]  # fmt: skip
    things("SELECT madlib.training_preprocessor_dl('known', 'used', 'label', 'x')")
    for model, why in ((1, "model_id 1"), (2, "Lambda")):
        things(f"SELECT madlib.load_model_selection_table('any_arch', 'm{model}', ARRAY[{model}],"
               " ARRAY[$$loss='mse',optimizer='Adam()'$$], ARRAY['batch_size=4'])")  # fmt: skip
        with pytest.raises(Exception, match=why):
            things(f"SELECT madlib.madlib_keras_fit_multiple_model('used', 'never', 'm{model}', 1)")
    things("SELECT madlib.delete_keras_model('any_arch', 1)")
    with pytest.raises(errors.UndefinedObject, match="Model id 1 not found"):
        things("SELECT madlib.delete_keras_model('any_arch', 1)")
    things("SELECT madlib.delete_keras_model('any_arch', 2)")
    assert things("SELECT to_regclass('any_arch')") == [(None,)]
    with pytest.raises(errors.UndefinedTable):
        things("SELECT madlib.delete_keras_model('any_arch', 2)")


GRID = "$${'loss': ['mse'], 'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.1, 0.2]}]}$$"


def test_a_lost_summary_is_made_again(madlib: Lab) -> None:
    madlib("SELECT madlib.load_keras_model('arch_s', %s)", json.dumps(flower_model()))
    generate = f"generate_model_configs('arch_s', 'mst_s', ARRAY[1], {GRID}, $${{'batch_size': [%s]}}$$)"
    madlib(f"SELECT madlib.{generate}", 8)
    madlib("DROP TABLE mst_s_summary")
    madlib(f"SELECT madlib.{generate}", 16)
    assert madlib("SELECT mst_key FROM mst_s ORDER BY 1") == [(1,), (2,), (3,), (4,)]
    assert madlib("SELECT * FROM mst_s_summary") == [("arch_s", None)]


def test_a_selection_table_finds_its_architectures_under_any_search_path(madlib: Lab) -> None:
    """MADlib stores the name as it was written; a name without a schema means the table beside it."""
    madlib("SELECT madlib.load_keras_model('arch_beside', %s)", json.dumps(flower_model()))
    load = "SELECT madlib.load_model_selection_table('{}', '{}', ARRAY[1], ARRAY[%s], ARRAY[NULL]::text[])"
    madlib(load.format("arch_beside", "mst_beside"), "loss='mse',optimizer='Adam()'")
    assert madlib("SELECT fit_params FROM mst_beside") == [(None,)], "NULL stays NULL"
    here = madlib.schema
    madlib("SET search_path = cerebro, madlib")
    try:
        grid = f"'{here}.arch_beside', '{here}.mst_beside', ARRAY[1], {GRID}, $${{'batch_size': [8]}}$$"
        madlib(f"SELECT madlib.generate_model_configs({grid})")
        assert madlib.value(f"SELECT count(*) FROM {here}.mst_beside") == 3
    finally:
        madlib(f"SET search_path = {here}, public, cerebro, madlib")


@pytest.mark.parametrize(
    ("written", "another", "recorded"),
    [
        ("arch_a", False, "arch_a"),
        (" Arch_A ", False, "Arch_A"),
        ("{here}.arch_a", False, "{here}.arch_a"),
        ("arch_a", True, '"{here}"."arch_a"'),  # the name alone would mean the table beside the selection table
        ("{here}.arch_a", True, "{here}.arch_a"),
        ("beside.arch_a", True, "beside.arch_a"),
    ],
)
def test_architectures_in_another_schema_than_the_selection_table(
    madlib: Lab, written: str, another: bool, recorded: str
) -> None:
    madlib("DROP TABLE IF EXISTS arch_a; DROP SCHEMA IF EXISTS beside CASCADE; CREATE SCHEMA beside")
    loads = ["arch_a", *(["beside.arch_a"] if another else [])]
    for table in loads:
        madlib("SELECT madlib.load_keras_model(%s, %s)", table, json.dumps(flower_model()))
    written, recorded = (text.format(here=madlib.schema) for text in (written, recorded))
    try:
        grid = f"%s, 'beside.mst_a', ARRAY[1], {GRID}, $${{'batch_size': [%s]}}$$"
        madlib(f"SELECT madlib.generate_model_configs({grid})", written, 8)
        assert madlib("SELECT * FROM beside.mst_a_summary") == [(recorded, None)]
        madlib(f"SELECT madlib.generate_model_configs({grid})", written, 16)  # the same architectures are found again
        assert madlib.value("SELECT count(*) FROM beside.mst_a") == 4
        if another and written != "beside.arch_a":
            with pytest.raises(errors.InvalidParameterValue, match="Inconsistent model arch table"):
                madlib(f"SELECT madlib.generate_model_configs({grid})", "beside.arch_a", 32)
    finally:
        madlib("DROP SCHEMA beside CASCADE")


def test_the_tables_of_a_fit_say_what_was_written(things: Lab) -> None:
    model = flower_model(classes=4)
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.load_keras_model('Arch_W', %s)", json.dumps(model))
    things("SELECT madlib.training_preprocessor_dl('things', 'written', 'label', 'x')")
    things(
        "SELECT madlib.load_model_selection_table('arch_w', 'mst_w', ARRAY[1], ARRAY[%s], ARRAY['batch_size=4'])",
        "loss='categorical_crossentropy',optimizer='Adam()',metrics=['ce']",
    )
    things("SELECT madlib.madlib_keras_fit_multiple_model(' Written', 'Out_W', 'MST_W', 1, NULL, 'written')")
    assert things("SELECT source_table, validation_table, model, model_info, model_arch_table, model_selection_table,"
                  " object_table, label_class_values, pg_typeof(label_class_values)::text FROM out_w_summary") == [
        ("Written", "written", "Out_W", "Out_W_info", "arch_w", "MST_W", None, [None, "k1", "k2", "k3"],
         "character varying[]")
    ]  # fmt: skip
    assert things("SELECT loss_type, metrics_type FROM out_w_info") == [("categorical_crossentropy", ["ce"])]
    things("SELECT madlib.madlib_keras_predict('out_w', 'things', 'id', 'x', 'said', 'prob', FALSE, 1)")
    assert things("SELECT count(*), count(class_value), count(DISTINCT class_value) FROM said") == [(68, 51, 3)]
    things("SELECT madlib.madlib_keras_evaluate('out_w', 'written', 'judged', FALSE, 1)")
    # The validation table is the training table here, and both are evaluated after the last iteration.
    ((final, trained, metric),) = things("SELECT validation_loss_final, training_loss_final, training_metrics_final"
                                         " FROM out_w_info")  # fmt: skip
    assert things.value("SELECT loss FROM judged") == pytest.approx(final, abs=1e-5) == pytest.approx(trained, abs=1e-5)
    assert things("SELECT metric, metrics_type, loss_type FROM judged") == [
        (pytest.approx(metric, abs=1e-5), ["ce"], "categorical_crossentropy")
    ]
    run = things.value("SELECT run FROM out_w_summary")
    measured = "SELECT dataset, value FROM cerebro.metrics WHERE run = %s AND metric = 'loss' AND epoch = 1"
    found = dict(things(measured, run))
    assert found["training, after"] == pytest.approx(trained, abs=1e-6) != pytest.approx(found["training"], abs=1e-4)


SQUARED = "def squared_error(y_true, y_pred):\n    return ops.sum((y_true - y_pred) ** 2, axis=-1)"


def test_tables_of_custom_functions(madlib: Lab) -> None:
    load = "SELECT madlib.load_custom_function(%s, %s, %s{})"
    # On Greenplum, numbers of a serial column have gaps.
    place = "(row_number() OVER (ORDER BY id))::int"
    listed = f"SELECT {place}, name, description, convert_from(object, 'UTF8') FROM madlib.objects ORDER BY id"
    try:
        madlib(load.format(", 'squared error'"), "objects", SQUARED.encode(), "squared_error")
        madlib("SELECT madlib.load_top_k_accuracy_function('objects', 2)")
        assert madlib(listed) == [
            (1, "squared_error", "squared error", SQUARED),
            (2, "top_2_accuracy", "returns top_2_accuracy", "# top_2_accuracy is built in."),
        ]
        assert dict(madlib.columns("madlib.objects")) == {
            "id": "integer", "name": "text", "description": "text", "object": "bytea",
        }  # fmt: skip
        for table, code, name, why in (
            ("objects", SQUARED, "squared_error", "Function 'squared_error' already exists in madlib.objects"),
            ("objects", SQUARED, "other", "must be one function"),
            ("objects", "import os", "other", "must be one function"),
            ("a.b.c", SQUARED, "other", "3 parts"),
            ("public.objects", SQUARED, "other", "Custom function table has to be in the madlib schema"),
        ):
            with pytest.raises(errors.Error, match=why):
                madlib(load.format(""), table, code.encode(), name)
        with pytest.raises(errors.FeatureNotSupported, match="executes it"):
            madlib(load.format(""), "objects", b"\x80\x04\x95", "pickled")
        with pytest.raises(errors.Error, match="already exists"):
            madlib("SELECT madlib.load_top_k_accuracy_function('objects', 2)")
        assert len(madlib(listed)) == 2
        madlib("SELECT madlib.load_custom_function('objects_2',"
               " madlib.top_k_categorical_acc_pickled(4, 'top_4_accuracy'), 'top_4_accuracy')")  # fmt: skip
        madlib("SELECT madlib.load_top_k_accuracy_function('objects_2', 5)")
        assert madlib("SELECT id, name, convert_from(object, 'UTF8') FROM madlib.objects_2 ORDER BY id") == [
            (1, "top_4_accuracy", "# top_4_accuracy is built in."),
            (2, "top_5_accuracy", "# top_5_accuracy is built in."),
        ]

        # One function as a loss and as a metric.
        madlib.iris(1)
        model = madlib.architecture(flower_model(), table="arch_o")
        params = "optimizer='Adam(lr=0.02)', loss='squared_error', metrics=['{}']"
        madlib("SELECT madlib.load_model_selection_table('arch_o', 'mst_o', ARRAY[%s], ARRAY[%s, %s],"
               " ARRAY['batch_size=16'], 'objects')",
               model, params.format("squared_error"), params.format("top_2_accuracy"))  # fmt: skip
        madlib("SELECT madlib.madlib_keras_fit_multiple_model('train', 'out_o', 'mst_o', 2)")
        assert madlib("SELECT object_table FROM out_o_summary") == [("madlib.objects",)]
        assert madlib("SELECT metrics_type, loss_type, functions FROM out_o_info ORDER BY mst_key") == [
            (["squared_error"], "squared_error", ["squared_error@1"]),
            (["top_2_accuracy"], "squared_error", ["squared_error@1"]),
        ]
        madlib("SELECT madlib.madlib_keras_evaluate('out_o', 'train', 'judged_o', FALSE, 2)")
        assert madlib("SELECT metrics_type, loss_type FROM judged_o") == [(["top_2_accuracy"], "squared_error")]
        same, top = madlib("SELECT training_loss_final, training_metrics_final FROM out_o_info ORDER BY mst_key")
        assert same[0] == pytest.approx(same[1], rel=1e-3) and 0.3 < top[1] <= 1
        madlib("SELECT madlib.madlib_keras_fit('train', 'single_o', 'arch_o', %s, %s, 'batch_size=16', 1, FALSE, NULL,"
               " NULL, FALSE, NULL, NULL, 'objects')", model, params.format("squared_error"))  # fmt: skip
        assert madlib("SELECT object_table, loss_type FROM single_o_summary") == [("madlib.objects", "squared_error")]
        with pytest.raises(errors.FeatureNotSupported, match="nothing"):
            madlib("SELECT madlib.load_model_selection_table('arch_o', 'x', ARRAY[1], ARRAY[''], ARRAY[''], 'nothing')")

        for objects, loss, why in (
            ("NULL", "focal", "custom function 'focal' used in compile params but input object table missing!"),
            ("'objects'", "focal", "custom function 'focal' used in compile params is not defined in object table"),
            ("NULL", "sparse_categorical_crossentropy", "function sparse_categorical_crossentropy is not supported"),
        ):
            text = f"(?s)Compile param check failed for: .*{re.escape(why)}"
            with pytest.raises(errors.InvalidParameterValue, match=text):
                madlib(f"SELECT madlib.load_model_selection_table('arch_o', 'x', ARRAY[{model}],"
                       f" ARRAY[$$optimizer='Adam()',loss='{loss}'$$], ARRAY[''], {objects})")  # fmt: skip
        for objects, why in (("NULL", "Object table not specified for function ['focal'] in compile_params"),
                             ("'objects'", "Custom function ['focal'] not defined in object table")):  # fmt: skip
            with pytest.raises(errors.InvalidParameterValue, match=re.escape(why)):
                madlib(f"SELECT madlib.madlib_keras_fit('train', 'x', 'arch_o', {model}, $$optimizer=Adam(),"
                       f"loss='focal'$$, '', 1, object_table => {objects})")  # fmt: skip

        unused, number = madlib("SELECT max(id) + 1, max(id) FROM madlib.objects")[0]
        with pytest.raises(errors.UndefinedObject, match=f"Object id {unused} not found"):
            madlib("SELECT madlib.delete_custom_function('objects', %s)", unused)
        madlib("SELECT madlib.delete_custom_function('objects', %s)", number)
        madlib("SELECT madlib.delete_custom_function('objects', 'squared_error')")
        assert madlib("SELECT to_regclass('madlib.objects')") == [(None,)]
        assert madlib("SELECT name FROM cerebro.custom_functions") == []
        with pytest.raises(errors.UndefinedTable):
            madlib("SELECT madlib.delete_custom_function('objects', 1)")
    finally:
        madlib("DROP TABLE IF EXISTS madlib.objects, madlib.objects_2; DELETE FROM cerebro.custom_function")


BOARD = """batch_size=4,callbacks=[TensorBoard(log_dir="/tmp/logs/fit")]"""


def test_a_top_k_accuracy_is_for_everybody(server: str) -> None:
    """It is built in. Nobody gets tables in the schema madlib for it, and MADlib's script goes on all the same."""
    with town(server) as place:
        anna = place.user("anna", "cerebro_user")
        anna("SELECT madlib.load_keras_model('arch', %s::json)", ARCHITECTURE)
        anna.connection.notices.clear()
        anna("SELECT madlib.load_top_k_accuracy_function(%s, 3)", f"of_{anna.name}")
        assert "top_3_accuracy is built in" in " ".join(anna.connection.notices)
        assert place("SELECT to_regclass(%s) IS NULL", f"madlib.of_{anna.name}") == [True]
        anna(
            "SELECT madlib.load_model_selection_table('arch', 'mst', ARRAY[1], ARRAY[%s], ARRAY['batch_size=8'], %s)",
            "loss='categorical_crossentropy', optimizer='sgd', metrics=['top_3_accuracy']", f"of_{anna.name}",
        )  # fmt: skip
        assert anna("SELECT count(*) FROM mst") == [1]
        listed = f"listed_{place.mark}"
        place("SELECT madlib.load_top_k_accuracy_function(%s, 2)", listed)
        try:
            anna("SELECT madlib.load_top_k_accuracy_function(%s, 4)", listed)
            assert place(f"SELECT name FROM madlib.{listed}") == ["top_2_accuracy"], "another's table"
            place(f"GRANT INSERT, UPDATE, SELECT ON madlib.{listed} TO {anna.name}")
            place(f"GRANT USAGE ON SEQUENCE madlib.{listed}_id_seq TO {anna.name}")
            anna("SELECT madlib.load_top_k_accuracy_function(%s, 4)", listed)
            assert place(f"SELECT name FROM madlib.{listed} ORDER BY id") == ["top_2_accuracy", "top_4_accuracy"]
        finally:
            place(f"DROP TABLE madlib.{listed}")
        with pytest.raises(errors.InsufficientPrivilege):
            anna("SELECT madlib.load_custom_function(%s, %s, 'squared_error')", listed, SQUARED.encode())


def test_a_callback_is_accepted_with_a_notice(things: Lab) -> None:
    model = flower_model()
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.load_keras_model('arch_b', %s)", json.dumps(model))
    things("SELECT madlib.training_preprocessor_dl('known', 'board', 'label', 'x')")
    load = "SELECT madlib.load_model_selection_table('arch_b', 'mst_b', ARRAY[1], ARRAY[%s], ARRAY[%s])"
    params = "optimizer='Adam()', loss='categorical_crossentropy'"
    things(load, params, BOARD)
    with pytest.raises(errors.FeatureNotSupported, match="callbacks"):
        things("SELECT cerebro.fit('board', 'never_b', 'mst_b', epochs => 1)")
    things.told()
    things("SELECT madlib.madlib_keras_fit_multiple_model('board', 'out_b', 'mst_b', 1)")
    assert any("cerebro.learning_curve" in line for line in things.told())
    assert things("SELECT fit_params FROM out_b_info") == [(BOARD,)]
    things("SELECT madlib.madlib_keras_predict('out_b', 'things', 'id', 'x', 'said_b', mst_key => 1)")
    things("SELECT madlib.madlib_keras_fit('board', 'one_b', 'arch_b', 1, %s, %s, 1)", params, BOARD)
    assert any("cerebro.learning_curve" in line for line in things.told())

    # The functions that MADlib does not have take the table of one model, too.
    things("SELECT madlib.madlib_keras_predict('one_b', 'things', 'id', 'x', 'told_b', 'response')")
    things("SELECT cerebro.create_predictor('one_b', 'label_of')")
    first = "(SELECT x FROM things WHERE id = 1)", "(SELECT class_value FROM told_b WHERE id = 1)"
    assert things(f"SELECT label_of({first[0]}) = {first[1]}") == [(True,)]


def test_callbacks_in_a_grid(things: Lab) -> None:
    """They are the text of a list, as MADlib takes them."""
    model = flower_model()
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.load_keras_model('arch_g', %s)", json.dumps(model))
    grid = """$${'batch_size': [4, 8], 'callbacks': ['[TensorBoard(log_dir="/tmp/logs")]']}$$"""
    generate = "SELECT madlib.generate_model_configs('arch_g', '{}', ARRAY[1], %s, {})"
    compiled = "{'loss': ['categorical_crossentropy'], 'optimizer_params_list': [{'optimizer': ['Adam']}]}"
    things(generate.format("mst_g", grid), compiled)
    assert things("SELECT fit_params FROM mst_g ORDER BY mst_key") == [
        ('batch_size=4,callbacks=[TensorBoard(log_dir="/tmp/logs")]',),
        ('batch_size=8,callbacks=[TensorBoard(log_dir="/tmp/logs")]',),
    ]
    with pytest.raises(errors.FeatureNotSupported, match="only TensorBoard callbacks are accepted"):
        things(generate.format("x", grid.replace("TensorBoard", "EarlyStopping")), compiled)


def test_vectors_have_a_number_of_classes(things: Lab) -> None:
    model = flower_model()
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.load_keras_model('arch_v', %s)", json.dumps(model))
    things("SELECT madlib.training_preprocessor_dl('things', 'vectors', 'hot', 'x')")
    assert things.value("SELECT num_classes FROM vectors_summary") == []
    params = "$$optimizer='Adam()', loss='categorical_crossentropy'$$"
    things(f"SELECT madlib.load_model_selection_table('arch_v', 'mst_v', ARRAY[1], ARRAY[{params}], ARRAY[''])")
    # An empty name of a validation table means that there is none.
    things("SELECT madlib.madlib_keras_fit_multiple_model('vectors', 'out_v', 'mst_v', 1, FALSE, '')")
    things(f"SELECT madlib.madlib_keras_fit('vectors', 'one_v', 'arch_v', 1, {params}, NULL, 1, NULL, ' ')")
    for table in ("out_v", "one_v"):
        told = f"SELECT num_classes, hot_class_values, validation_table FROM {table}_summary"
        assert things(told) == [([3], None, None)]


def test_a_validation_table_may_have_other_names_and_vectors(things: Lab) -> None:
    """Its columns are those of the training table by their order; one of vectors stands for one of labels."""
    model = flower_model()
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.load_keras_model('arch_n', %s)", json.dumps(model))
    things("CREATE VIEW renamed AS SELECT id, x AS their_x, chr(97 + id % 3) AS their_label, hot AS their_hot"
           " FROM things")  # fmt: skip
    things("CREATE VIEW lettered AS SELECT id, x, chr(97 + id % 3) AS letter FROM things")
    things("SELECT madlib.training_preprocessor_dl('lettered', 'letters', 'letter', 'x')")
    things("SELECT madlib.validation_preprocessor_dl('renamed', 'letters_val', 'their_label', 'their_x', 'letters')")
    things("SELECT madlib.training_preprocessor_dl('renamed', 'letters_hot', 'their_hot', 'their_x')")
    params = "$$optimizer='Adam()', loss='categorical_crossentropy', metrics=['accuracy']$$"
    things(f"SELECT madlib.load_model_selection_table('arch_n', 'mst_n', ARRAY[1], ARRAY[{params}],"
           " ARRAY['batch_size=4'])")  # fmt: skip
    told = "SELECT validation_loss, training_loss, validation_metrics_final = training_metrics_final FROM {}"
    things(f"SELECT madlib.madlib_keras_fit('letters', 'one_n', 'arch_n', 1, {params}, 'batch_size=4', 2,"
           " FALSE, 'letters_val', 1)")  # fmt: skip
    things("SELECT madlib.madlib_keras_fit_multiple_model('letters', 'out_n', 'mst_n', 2, FALSE, 'letters_hot', 1)")
    for made in ("one_n_summary", "out_n_info"):  # the rows are those of the training table
        ((validated, trained, same),) = things(told.format(made))
        assert validated == pytest.approx(trained, abs=1e-5) and same


def test_errors_name_madlibs_functions(things: Lab) -> None:
    """With MADlib's texts, which scripts look for."""
    fit = "SELECT madlib.madlib_keras_fit_multiple_model({}, {}, {}, {})"
    for arguments, why in (
        (("'nowhere'", "'x'", "'y'", 1), "madlib_keras_fit_multiple error: Input table 'nowhere' does not exist."),
        (("NULL", "'x'", "'y'", 1), "madlib_keras_fit_multiple error: NULL/empty input table name!"),
        (("'things'", "'x'", "'y'", 1), "Input table 'things_summary' does not exist. Please ensure that the source"
         " table (things) has been preprocessed by the image preprocessor."),
        (("'things'", "'x'", "'y'", 0), "madlib_keras_fit_multiple error: num_iterations is 0"),
    ):  # fmt: skip
        with pytest.raises(errors.Error, match=re.escape(why)):
            things(fit.format(*arguments))
    things("SELECT madlib.training_preprocessor_dl('known', 'named_errors', 'label', 'x')")
    things("CREATE TABLE alone AS SELECT 1 AS mst_key, 1 AS model_id,"
           " $$optimizer='Adam()',loss='mse'$$ AS compile_params, '' AS fit_params")  # fmt: skip
    for table, why in (
        ("nowhere", "(nowhere) has been created by load_model_selection_table()"),
        ("alone", "Input table 'alone_summary' does not exist."),
    ):
        with pytest.raises(errors.Error, match=re.escape(why)):
            things(fit.format("'named_errors'", "'x'", f"'{table}'", 1))
    why = "Input table 'known_summary' does not exist. Please ensure that table 'known' has been preprocessed using"
    with pytest.raises(errors.UndefinedTable, match=why):
        things("SELECT madlib.validation_preprocessor_dl('known', 'x', 'label', 'x', 'known')")
    things("SELECT madlib.load_keras_model('arch_e', %s)", json.dumps(flower_model()))
    narrow = flower_model()
    narrow["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.load_keras_model('arch_e', %s, 'abcd'::bytea)", json.dumps(narrow))
    for number, why in (
        (1, "Input shape (4,) in the model architecture does not match the input shape (2,) of column x"),
        (2, "Number of elements in model weights(1) doesn't match model("),
    ):
        with pytest.raises(errors.Error, match=re.escape(why)):
            things(f"SELECT madlib.madlib_keras_fit('named_errors', 'x', 'arch_e', {number},"
                   " $$optimizer='Adam()', loss='categorical_crossentropy'$$, '', 1)")  # fmt: skip


def test_no_error_begins_with_cerebro(things: Lab) -> None:
    with pytest.raises(errors.Error) as caught:
        things("SELECT madlib.load_top_k_accuracy_function('a.b.c.d', 3)")
    assert str(caught.value).startswith("DL: ")


def test_what_cerebro_pack_has_prepared_is_validated_and_predicted(madlib: Lab) -> None:
    """Its codes of categories stay integers, and its inputs may be NULL."""
    rows = [(i, f"c{i % 3}" if i % 5 else None, float(i) if i % 4 else None, f"k{i % 2}") for i in range(30)]
    madlib.table("mixed", {"id": "int", "color": "text", "size": "float8", "label": "text"}, rows)
    madlib("SELECT cerebro.pack('mixed', 'mixed_packed', 'label', 'color, size', validation => 0)")
    madlib("SELECT madlib.validation_preprocessor_dl('mixed', 'mixed_val', 'label', NULL, 'mixed_packed')")
    madlib("SELECT madlib.load_keras_model('arch_p', cerebro.architecture('mlp', 'mixed_packed'))")
    params = madlib.compiled("mixed_packed")
    madlib("SELECT madlib.madlib_keras_fit('mixed_packed', 'one_p', 'arch_p', 1, %s, 'batch_size=8', 1, FALSE,"
           " 'mixed_val')", params)  # fmt: skip
    madlib("SELECT madlib.madlib_keras_predict('one_p', 'mixed', 'id', NULL, 'said_p', 'response')")
    assert madlib("SELECT count(*), bool_and(class_value IN ('k0', 'k1')) FROM said_p") == [(30, True)]


def test_temporary_tables_as_results(things: Lab) -> None:
    """The packed table is an ordinary one; everything else may be temporary."""
    model = flower_model()
    model["config"]["layers"][0]["config"]["batch_shape"] = [None, 2]
    things("SELECT madlib.training_preprocessor_dl('known', 'lasting', 'label', 'x')")
    things("SELECT madlib.load_keras_model('pg_temp.arch_t', %s)", json.dumps(model))
    things("SELECT madlib.load_model_selection_table('pg_temp.arch_t', 'pg_temp.mst_t', ARRAY[1],"
           " ARRAY[$$optimizer='Adam()', loss='categorical_crossentropy'$$], ARRAY['batch_size=4'])")  # fmt: skip
    things("SELECT madlib.madlib_keras_fit_multiple_model('lasting', 'pg_temp.out_t', 'pg_temp.mst_t', 1)")
    things("SELECT madlib.madlib_keras_evaluate('pg_temp.out_t', 'lasting', 'pg_temp.judged_t', FALSE, 1)")
    things("SELECT madlib.madlib_keras_predict('out_t', 'things', 'id', 'x', 'pg_temp.said_t', 'response', FALSE, 1)")
    things("SELECT madlib.madlib_keras_fit('lasting', 'pg_temp.one_t', 'pg_temp.arch_t', 1,"
           " $$optimizer='Adam()', loss='categorical_crossentropy'$$, 'batch_size=4', 1)")  # fmt: skip
    made = "SELECT relname::text FROM pg_class WHERE relpersistence = 't' AND relkind = 'r' AND relname LIKE '%\\_t%'"
    assert {name for (name,) in things(made)} >= {
        "arch_t", "mst_t", "mst_t_summary", "out_t", "out_t_info", "out_t_summary", "judged_t", "said_t", "one_t",
        "one_t_summary",
    }  # fmt: skip
    assert things("SELECT model, source_table FROM one_t_summary") == [("pg_temp.one_t", "lasting")]
    with pytest.raises(errors.DuplicateTable):
        things("SELECT madlib.madlib_keras_evaluate('out_t', 'lasting', 'pg_temp.judged_t', FALSE, 1)")
    with pytest.raises(errors.InvalidParameterValue, match="temporary table of the session that drives the run"):
        things("SELECT cerebro.fit('lasting', 'pg_temp.never', 'mst_t', epochs => 1, wait => false)")
    space = json.dumps({"optimizer": {"choice": ["Adam", "SGD"]}})
    with pytest.raises(errors.InvalidParameterValue, match="temporary table of the session that drives the run"):
        things("SELECT cerebro.search('lasting', 'pg_temp.never', %s, epochs => 1, method => 'grid',"
               " wait => FALSE)", space)  # fmt: skip

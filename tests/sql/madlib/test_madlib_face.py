"""The extension cerebro_db_madlib: it has the functions of its table, and MADlib's scripts run."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import pytest
from psycopg2 import errors

from cerebro_db.embedded.database import equip
from cerebro_db.embedded.extension import Sources
from cerebro_madlib.functions import FUNCTIONS, Function
from tests.conftest import connect
from tests.sql.lab import Lab, run
from tests.sql.madlib.madlib_lab import iris_data, kinds, psql, require_columns
from tests.sql.users import town

CATALOG = """
SELECT p.proname::text, p.proretset, pg_catalog.format_type(p.prorettype, NULL), p.prokind = 'a',
       p.oid::regprocedure::text,
       ARRAY(SELECT ARRAY[COALESCE(p.proargnames[number], ''), pg_catalog.format_type(type, NULL),
                          pg_catalog.pg_get_function_arg_default(p.oid, number::integer)]
               FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS input (type, number) ORDER BY number)
  FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'madlib'::regnamespace
"""


# -- the catalog -----------------------------------------------------------------------------------------------


def values(lab: Lab, arguments: list[tuple[str, str | None]]) -> list[Any]:
    """The defaults, evaluated; an argument without a default is not a text."""
    return [
        None if default is None else (lab.value(f"SELECT ({default})::{kind}::text"),) for kind, default in arguments
    ]


def test_every_function_is_as_the_table_says(madlib: Lab) -> None:
    found = {}
    for name, is_set, result, aggregate, shown, arguments in madlib(CATALOG):
        defaults = values(madlib, [(kind, default) for _, kind, default in arguments])
        found[(name, *(kind for _, kind, _ in arguments))] = (
            result,
            aggregate,
            [argument for argument, _, _ in arguments],
            defaults,
        )
        assert not is_set, shown
    wanted = {}
    for one in FUNCTIONS:
        types = kinds(madlib, [argument.type for argument in one.arguments])
        defaults = values(madlib, list(zip(types, (argument.default for argument in one.arguments))))
        wanted[(one.name, *types)] = (
            kinds(madlib, [one.result])[0],
            one.aggregate,
            [argument.name for argument in one.arguments],
            defaults,
        )
    assert found == wanted


def test_everybody_may_call_them_and_nobody_adds_to_them(madlib: Lab) -> None:
    closed = madlib(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'madlib'::regnamespace"
        " AND NOT has_function_privilege('public', oid, 'EXECUTE')"
    )
    assert closed == []
    assert madlib("SELECT has_schema_privilege('public', 'madlib', 'USAGE'),"
                  " has_schema_privilege('public', 'madlib', 'CREATE')") == [(True, False)]  # fmt: skip
    owners_rights = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'madlib'::regnamespace AND prosecdef"
    assert madlib.value(owners_rights) == 0
    with town(madlib.dsn) as root:
        nobody, ann = root.user("nobody"), root.user("ann", "cerebro_user")
        nobody.refused("SELECT madlib.madlib_keras_evaluate('a', 'b', 'c')")
        assert "2.1.0" in nobody("SELECT madlib.version()")[0]
        ann.refused("SELECT madlib.madlib_keras_evaluate('a', 'b', 'c')", why=errors.UndefinedTable)


def test_it_does_not_install_over_madlib(fresh_database: str) -> None:
    with contextlib.closing(connect(fresh_database)) as db:
        run(
            db,
            "DROP EXTENSION cerebro_db_madlib; CREATE TABLE madlib.migrationhistory (id serial, version text)",
        )
        with pytest.raises(errors.DuplicateSchema, match="contains an installation of Apache MADlib") as caught:
            run(db, "CREATE EXTENSION cerebro_db_madlib")
        assert "MADLIB_SCHEMA=madlib_dl" in caught.value.diag.message_hint
        run(
            db,
            "DROP TABLE madlib.migrationhistory; CREATE FUNCTION madlib.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        with pytest.raises(errors.DuplicateSchema, match="objects of others"):
            run(db, "CREATE EXTENSION cerebro_db_madlib")
        run(db, "DROP FUNCTION madlib.mine(); GRANT CREATE ON SCHEMA madlib TO PUBLIC")
        with pytest.raises(errors.DuplicateSchema, match="not superusers"):
            run(db, "CREATE EXTENSION cerebro_db_madlib")
        run(db, "REVOKE CREATE ON SCHEMA madlib FROM PUBLIC; CREATE EXTENSION cerebro_db_madlib")
        # Beside it: the pieces name no schema of their own.
        pieces = [*(Sources.find().root / "sql" / "madlib").rglob("[0-9]*.sql")]
        run(db, "CREATE SCHEMA madlib_dl")
        for piece in sorted(pieces, key=lambda piece: (piece.parent.name != "schema", piece.name)):
            run(db, piece.read_text().replace("@extschema@", "madlib_dl"))
        assert run(db, "SELECT madlib_dl.array_scalar_mult(ARRAY[1, 2], 3)") == [([3, 6],)]


def test_it_comes_along_when_the_extension_is_recreated(fresh_database: str) -> None:
    version = Sources.find().version
    there = "SELECT extname FROM pg_extension WHERE extname LIKE 'cerebro%' ORDER BY 1"
    with contextlib.closing(connect(fresh_database)) as db:
        assert equip(db, version, recreate=True) == "recreated"
        assert run(db, there) == [("cerebro_db",), ("cerebro_db_madlib",)]
        run(db, "SELECT madlib.load_top_k_accuracy_function('kept', 3)")
        assert equip(db, version) == "unchanged"
        assert equip(db, version, recreate=True) == "recreated"
        assert run(db, there) == [("cerebro_db",), ("cerebro_db_madlib",)]
        assert run(db, "SELECT name FROM madlib.kept") == [("top_3_accuracy",)]


def test_it_stays_away_from_a_schema_of_its_name(fresh_database: str) -> None:
    version = Sources.find().version
    with contextlib.closing(connect(fresh_database)) as db:
        run(
            db,
            "DROP EXTENSION cerebro_db CASCADE; CREATE FUNCTION madlib.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        )
        assert equip(db, version) == "created"
        assert run(db, "SELECT extname FROM pg_extension WHERE extname LIKE 'cerebro%'") == [("cerebro_db",)]
        assert equip(db, version) == "unchanged"
        run(db, "DROP FUNCTION madlib.mine()")
        assert equip(db, version, recreate=True) == "recreated"
        assert run(db, "SELECT madlib.version() IS NOT NULL") == [(True,)]


# -- a script ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iris(madlib: Lab) -> Lab:
    iris_data(madlib)
    psql(madlib, "iris_fit_multiple.sql")
    psql(madlib, "iris_fit.sql")
    return madlib


def shape(lab: Lab, table: str) -> list[tuple[str, str]]:
    return lab.columns(table)


@pytest.mark.parametrize(
    ("made_by", "name", "table"),
    [
        ("training_preprocessor_dl", "output_table", "iris_train_packed"),
        ("training_preprocessor_dl", "output_table_summary", "iris_train_packed_summary"),
        ("validation_preprocessor_dl", "output_table_summary", "iris_test_packed_summary"),
        ("load_keras_model", "keras_model_arch_table", "model_arch_library"),
        ("load_model_selection_table", "model_selection_table", "mst_table"),
        ("load_model_selection_table", "model_selection_table_summary", "mst_table_summary"),
        ("madlib_keras_fit_multiple_model", "model_output_table", "iris_multi_model"),
        ("madlib_keras_fit_multiple_model", "model_output_table_info", "iris_multi_model_info"),
        ("madlib_keras_fit_multiple_model", "model_output_table_summary", "iris_multi_model_summary"),
        ("madlib_keras_fit", "model", "iris_model"),
        ("madlib_keras_fit", "model_summary", "iris_model_summary"),
        ("madlib_keras_evaluate", "output_table", "iris_validate"),
        ("madlib_keras_predict", "output_table", "iris_predict_prob"),
        ("madlib_keras_predict_byom", "output_table", "iris_predict_byom"),
        ("hyperband_schedule", "schedule_table", "schedule"),
        ("gpu_configuration", "output_table", "gpus"),
    ],
)
def test_a_table_has_madlibs_columns(iris: Lab, made_by: str, name: str, table: str) -> None:
    if name == "schedule_table":
        iris("SELECT madlib.hyperband_schedule('schedule', 81)")
        assert iris("SELECT * FROM schedule ORDER BY s DESC, i LIMIT 3") == [(4, 0, 81, 1), (4, 1, 27, 3), (4, 2, 9, 9)]
    if made_by == "gpu_configuration":
        iris("SELECT madlib.gpu_configuration('gpus'); SELECT madlib.gpu_configuration('gpus_2', 'NVIDIA')")
        assert iris("SELECT (SELECT count(*) FROM gpus) = (SELECT count(*) FROM gpus_2)") == [(True,)]
        with pytest.raises(errors.InvalidParameterValue, match="one of tensorflow or nvidia"):
            iris("SELECT madlib.gpu_configuration('gpus_3', 'amd')")
    require_columns(iris, made_by, name, table)


def test_a_table_of_custom_functions_has_madlibs_columns(iris: Lab) -> None:
    """It is in the schema madlib, beside tables that are not the test's."""
    listed = f"listed_{secrets.token_hex(5)}"
    iris(f"SELECT madlib.load_top_k_accuracy_function('{listed}', 3)")
    try:
        require_columns(iris, "load_custom_function", "object_table", f"madlib.{listed}")
    finally:
        iris(f"DROP TABLE madlib.{listed}")


def test_the_script_has_learned_something(iris: Lab) -> None:
    assert iris("SELECT count(*) FROM iris_train") == [(120,)] and iris("SELECT count(*) FROM iris_test") == [(30,)]
    assert iris("SELECT count(*), min(array_length(metrics_elapsed_time, 1)) FROM iris_multi_model_info") == [(8, 2)]
    assert iris("SELECT name, warm_start, metrics_iters FROM iris_multi_model_summary") == [("Sophie L.", True, [2, 4])]
    assert iris.value("SELECT max(validation_metrics_final) FROM iris_multi_model_info") >= 0.9
    wrong = "SELECT count(*) FROM iris_predict p JOIN iris_test t USING (id) WHERE p.class_value <> t.class_text"
    assert iris.value(wrong) <= 10
    assert iris("SELECT count(*), count(DISTINCT id) FROM iris_predict") == [(30, 30)]
    assert "rank" not in dict(shape(iris, "iris_predict"))
    assert iris("SELECT count(*), max(rank) FROM iris_predict_prob") == [(90, 3)]
    assert iris("SELECT count(*), max(rank) FROM iris_predict_two") == [(60, 2)]
    assert iris("SELECT min(prob) > 0.5, count(*) BETWEEN 1 AND 30 FROM iris_predict_above") == [(True, True)]


def test_a_single_model(iris: Lab) -> None:
    assert iris("SELECT source_table, model, model_arch_table, model_id, validation_table, name, model_type, loss_type,"
                " metrics_type, metrics_iters, array_length(validation_loss, 1), normalizing_const, num_classes,"
                " compile_params FROM iris_model_summary") == [
        ("iris_train_packed", "iris_model", "model_arch_library", 1, "iris_test_packed", "Sophie L.", "madlib_keras",
         "categorical_crossentropy", ["acc"], [2, 3], 2, 1.0, [3],
         " loss='categorical_crossentropy', optimizer='Adam(lr=0.01)', metrics=['acc'] ")
    ]  # fmt: skip
    assert iris.value("SELECT training_metrics_final FROM iris_model_summary") >= 0.6
    wrong = "SELECT count(*) FROM iris_model_predict p JOIN iris_test t USING (id) WHERE p.class_value <> t.class_text"
    assert iris.value(wrong) <= 12 and iris.value("SELECT count(*) FROM iris_model_predict") == 30
    # The first layer, with 4 x 10 weights and 10 biases, did not learn; the second, with 10 x 3 and 3, did.
    frozen = "(SELECT substr(model_weights, 1, 200) FROM iris_model) = (SELECT substr(model_weights, 1, 200) FROM {0})"
    assert iris.value(f"SELECT {frozen.format('iris_model_transfer')}")
    assert iris.value("SELECT a.model_weights <> b.model_weights AND octet_length(a.model_weights) = 4 * 83"
                      " FROM iris_model a, iris_model_transfer b")  # fmt: skip
    started = iris.value("SELECT training_loss_final FROM iris_model_summary")
    assert iris.value("SELECT training_loss_final FROM iris_model_transfer_summary") == pytest.approx(started, abs=0.1)
    assert iris("SELECT to_regclass('iris_model_info'), to_regclass('iris_model_run')") == [(None, None)]


def test_training_metrics_are_those_of_an_evaluation_after_the_last_iteration(iris: Lab) -> None:
    figures = "training_loss_final, training_metrics_final, training_loss, training_metrics, metrics_iters"
    for model, key, figures_of in (
        ("iris_model", "NULL", f"SELECT {figures} FROM iris_model_summary"),
        (
            "iris_multi_model",
            1,
            f"SELECT {figures} FROM iris_multi_model_info, iris_multi_model_summary WHERE mst_key = 1",
        ),
    ):
        iris(f"SELECT madlib.madlib_keras_evaluate('{model}', 'iris_train_packed', '{model}_judged', FALSE, {key})")
        ((loss, metric, losses, metrics, iterations),) = iris(figures_of)
        assert [(loss, metric)] == [
            pytest.approx(row, abs=1e-5) for row in iris(f"SELECT loss, metric FROM {model}_judged")
        ]
        assert (losses[-1], metrics[-1]) == (loss, metric) and len(losses) == len(metrics) == len(iterations) == 2


def test_two_inputs_and_two_outputs(iris: Lab) -> None:
    """In one transaction, where rows that are not committed can be trained."""
    psql(iris, "multi_io.sql", "-1")
    assert iris("SELECT dependent_varname, independent_varname, num_classes, metrics_type, class_text_class_values,"
                " length_class_values FROM io_model_summary") == [
        (["class_text", "length"], ["sepal", "petal"], [3, 2], ["accuracy"],
         ["Iris-setosa", "Iris-versicolor", "Iris-virginica"], ["long", "short"])
    ]  # fmt: skip
    judged, told = iris("SELECT loss FROM io_judged"), iris("SELECT training_loss_final FROM io_model_summary")
    assert judged[0][0] == pytest.approx(told[0][0], abs=1e-5)
    assert iris("SELECT class_name, count(*) FROM io_said GROUP BY 1 ORDER BY 1") == [
        ("class_text", 30),
        ("length", 30),
    ]
    right = "SELECT count(*) FROM io_said s JOIN iris_io_test t USING (id) WHERE class_value = CASE class_name"
    assert iris.value(f"{right} WHEN 'length' THEN length ELSE class_text END") >= 42


def test_custom_functions(iris: Lab) -> None:
    try:
        psql(iris, "custom_functions.sql")
        # The functions are retired, and the models keep them.
        iris("SELECT madlib.madlib_keras_evaluate('custom_models', 'iris_test_packed', 'custom_later', FALSE, 1)")
    finally:
        iris("DROP TABLE IF EXISTS madlib.custom_function_table; DELETE FROM cerebro.custom_function")
    assert iris("SELECT object_table FROM mst_custom_summary") == [("madlib.custom_function_table",)]
    measured = "array_agg(DISTINCT metrics_type[1] ORDER BY metrics_type[1])"
    assert iris(f"SELECT loss_type, {measured}, count(*) FROM custom_models_info GROUP BY 1") == [
        ("squared_error", ["rmse", "top_2_accuracy"], 4)
    ]
    assert iris.value("SELECT max(training_loss_final) FROM custom_models_info") < 0.9
    assert iris("SELECT DISTINCT functions FROM custom_models_info ORDER BY 1") == [
        (["rmse@1", "squared_error@1"],), (["squared_error@1"],),
    ]  # fmt: skip
    assert iris("SELECT loss > 0, metric BETWEEN 0 AND 1, loss_type FROM custom_judged") == [
        (True, True, "squared_error")
    ]
    measured = "SELECT metrics_type, metric FROM {}"
    assert iris(measured.format("custom_judged")) == iris(measured.format("custom_later"))


FIT = "SELECT madlib.madlib_keras_fit({}, {}, 'model_arch_library', {}, {}, 'batch_size=8', {}{})"
GOOD = ("'iris_train_packed'", "'never'", "1", "$$loss='categorical_crossentropy',optimizer='Adam()'$$", "1", "")


@pytest.mark.parametrize(
    ("place", "value", "why"),
    [
        (0, "'nowhere'", "Input table 'nowhere' does not exist"),
        (0, "'iris_train'", "not a packed table"),
        (1, "'iris_model'", "Output table 'iris_model' already exists"),
        (1, "NULL", "NULL/empty output table name"),
        (2, "77", "no model arch found in table model_arch_library with id 77"),
        (2, "NULL", "no model arch found"),
        (3, "'loss=1'", "optimizer is a required parameter"),
        (3, "NULL", "Compile parameters cannot be empty or NULL"),
        (4, "0", "num_iterations is 0"),
        (4, "NULL", "num_iterations is NULL"),
        (5, ", FALSE, 'nowhere'", "Input table 'nowhere' does not exist"),
        (5, ", FALSE, NULL, 2", "metrics_compute_frequency is 2"),
        (5, ", FALSE, NULL, NULL, TRUE", "Input table 'never' does not exist"),
        (5, ", FALSE, NULL, NULL, NULL, NULL, NULL, 'objects'", "object_table"),
    ],
)
def test_a_single_model_that_cannot_be_trained(iris: Lab, place: int, value: str, why: str) -> None:
    given = [*GOOD[:place], value, *GOOD[place + 1 :]]
    with pytest.raises(errors.Error, match=why):
        iris(FIT.format(*given))
    assert iris("SELECT to_regclass('never'), to_regclass('never_summary')") == [(None, None)]


def test_what_is_no_single_model(iris: Lab) -> None:
    with pytest.raises(errors.Error, match="is not what madlib_keras_fit leaves"):
        iris(FIT.format(*GOOD[:1], "'iris_multi_model'", *GOOD[2:5], ", FALSE, NULL, NULL, TRUE"))
    for call in ("evaluate('iris_model', 'iris_test_packed', 'never', FALSE, 1)",
                 "predict('iris_model', 'iris_test', 'id', 'attributes', 'never', mst_key => 1)"):  # fmt: skip
        with pytest.raises(errors.Error, match="Single model should not pass mst_key"):
            iris(f"SELECT madlib.madlib_keras_{call}")
    with pytest.raises(errors.Error, match="Multi-model needs to pass mst_key"):
        iris("SELECT madlib.madlib_keras_evaluate('iris_multi_model', 'iris_test_packed', 'never')")
    assert iris.value("SELECT count(*) FROM iris_model") == 1


def test_configurations_are_listed_in_all_ways(iris: Lab) -> None:
    psql(iris, "model_selection.sql")
    tables = ("mst_grid", "mst_per_optimizer", "mst_random")
    assert [iris.value(f"SELECT count(*) FROM {table}") for table in tables] == [12, 20, 12]
    assert iris("SELECT mst_key, fit_params FROM mst_more ORDER BY 1") == [
        (1, "batch_size=4, epochs=1"),
        (2, "batch_size=8,epochs=1"),
    ]
    assert iris("SELECT metrics_type, status FROM iris_by_hand_info ORDER BY mst_key") == [
        (["accuracy"], "finished"),
        (["top_2_accuracy"], "finished"),
    ]


def test_images_are_packed(madlib: Lab) -> None:
    psql(madlib, "images.sql")
    (rows, bytes_, labels), classes = (
        madlib(
            "SELECT sum(rgb_shape[1])::int, sum(octet_length(rgb))::int, sum(octet_length(species))::int"
            " FROM image_packed"
        )[0],
        madlib("SELECT species_class_values, num_classes, normalizing_const FROM image_packed_10_summary"),
    )
    assert (rows, bytes_, labels) == (52, 52 * 12 * 4, 52 * 3 * 2)
    assert classes == [(["bird", "cat", "dog", None, None], [5], 255.0)]
    assert madlib("SELECT DISTINCT rgb_shape[2:4], species_shape[2] FROM image_val_packed") == [([2, 2, 3], 5)]
    assert madlib("SELECT count(*) FROM image_val_packed") == madlib("SELECT count(*) FROM image_packed_10")


BYOM = "SELECT madlib.madlib_keras_predict_byom('model_arch_library', %s, 'iris_test', 'id', 'attributes', '%s'%s)"
NAMES = "ARRAY['Iris-setosa', 'Iris-versicolor', 'Iris-virginica']"


def own(lab: Lab, table: str, more: str, model: int | None = None) -> None:
    lab(BYOM % (model or lab.value("SELECT max(model_id) FROM model_arch_library"), table, more))


def test_a_model_of_ones_own(iris: Lab) -> None:
    """The weights of a trained model, as those of an architecture, predict what the trained model predicts."""
    key = iris.value("SELECT mst_key FROM iris_multi_model_info ORDER BY training_loss_final LIMIT 1")
    model = "SELECT model_arch::text, model_weights FROM iris_multi_model WHERE mst_key = %s"
    ((architecture, weights),) = iris(model, key)
    load = "SELECT madlib.load_keras_model('model_arch_library', %s, %s)"
    iris(load, architecture, weights)
    predict = "SELECT madlib.madlib_keras_predict('iris_multi_model', 'iris_test', 'id', 'attributes', 'theirs',"
    iris(f"{predict} mst_key => {key})")
    own(iris, "iris_own_prob", f", 'prob', NULL, {NAMES}")
    different = (
        "SELECT count(*) FROM {} FULL JOIN theirs USING (id, class_value) WHERE {}.prob - theirs.prob IS NULL OR"
    )
    different += " abs({}.prob - theirs.prob) > 1e-6"
    assert iris.value(different.format(*["iris_own_prob"] * 3)) == 0
    assert iris("SELECT count(*), count(DISTINCT rank), min(class_name) FROM iris_own_prob") == [
        (90, 3, "dependent_var")
    ]
    # Numbers as pred_type, where MADlib fails; classes without names; a constant that the inputs were divided by.
    own(iris, "own_two", ", 2")
    assert iris("SELECT count(*), array_agg(DISTINCT class_value) <@ '{0,1,2}' FROM own_two") == [(60, True)]
    own(iris, "own_above", f", 0.5, FALSE, {NAMES}")
    assert iris("SELECT count(*) FROM own_above") == iris("SELECT count(*) FROM theirs WHERE prob > 0.5")
    iris("CREATE TABLE twice AS SELECT id, ARRAY(SELECT 2 * e FROM unnest(attributes) e)::int[] AS half,"
         " ARRAY(SELECT round(e) FROM unnest(attributes) e) AS whole FROM iris_test")  # fmt: skip
    newest = iris.value("SELECT max(model_id) FROM model_arch_library")
    for column, constant in (("half", 2), ("whole", "NULL")):
        which, more = f"{newest}, 'twice', 'id', '{column}'", f"'by_{column}', 'response', NULL, NULL, {constant}"
        iris(f"SELECT madlib.madlib_keras_predict_byom('model_arch_library', {which}, {more})")
    assert "rank" not in dict(shape(iris, "by_half")) and iris.value("SELECT count(*) FROM by_half") == 30

    for table, more, number, why in (
        ("x", ", 'prob', NULL, ARRAY['a', 'b']", None, "number of class values do not match"),
        ("x", ", 'prob', NULL, NULL, 0", None, "constant has to be greater than 0"),
        ("x", ", 0", None, "Invalid value for pred_type"),
        ("x", ", 'Prob'", None, "Invalid value for pred_type"),
        ("x", "", 99, "Invalid model architecture ID"),
        ("x", "", 2, "should not be NULL"),
        ("x", ", 'prob', NULL, NULL, NULL, 2", None, "dependent_count is 2"),
        ("own_two", "", None, "already exists"),
        ("own_two", ", 'prob', NULL, ARRAY['a', 'b']", None, "number of class values do not match"),  # the table last
    ):
        with pytest.raises(errors.Error, match=why):
            own(iris, table, more, number)
    iris(load, architecture, bytes(weights)[4:])
    with pytest.raises(errors.Error):
        own(iris, "x", "")
    assert iris("SELECT to_regclass('x')") == [(None,)]


# -- help and general functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [one for one in FUNCTIONS if one.result == "VARCHAR"], ids=lambda one: one.written())
def test_help(madlib: Lab, one: Function) -> None:
    text = madlib.value(f"SELECT madlib.{one.name}({chr(39) + 'usage' + chr(39) if one.signature else ''})")
    assert text.startswith(f"{one.name}: ") and ("Arguments:" in text or "shows the arguments" in text)


def test_rows_are_split(madlib: Lab) -> None:
    madlib('CREATE TABLE crowd AS SELECT i AS id, i % 2 AS sex, NULL::text AS "No One" FROM generate_series(1, 100) i')
    madlib("SELECT madlib.train_test_split('crowd', 'halves', 0.5, 0.2, 'sex')")
    assert madlib("SELECT split, sex, count(*), count(DISTINCT id) FROM halves GROUP BY 1, 2 ORDER BY 1, 2") == [
        (0, 0, 10, 10), (0, 1, 10, 10), (1, 0, 25, 25), (1, 1, 25, 25),
    ]  # fmt: skip
    assert [column for column, _ in shape(madlib, "halves")] == ["sex", "id", "No One", "split"]
    madlib("""SELECT madlib.train_test_split('crowd', 'again', 0.9, 0.9, '"No One"', 'id', TRUE, TRUE)""")
    assert madlib("SELECT count(*), count(DISTINCT id) < 90 FROM again_train") == [(90, True)]
    assert shape(madlib, "again_test") == shape(madlib, "again_train") == [("No One", "text"), ("id", "integer")]
    for arguments, why in (
        ("'crowd', 'x', 1.5", "train_proportion is 1.5"),
        ("'crowd', 'x', 0.6, 0.6", "at most 1"),
        ("'crowd', 'halves', 0.5", "already exists"),
        ("'crowd', 'again', 0.5, NULL, NULL, NULL, FALSE, TRUE", "'again_train' already exists"),
        ("'crowd', 'x', 0.5, NULL, 'nobody'", "nobody"),
        ("'none', 'x', 0.5", "does not exist"),
    ):
        with pytest.raises(Exception, match=why):
            madlib(f"SELECT madlib.train_test_split({arguments})")


def test_groups_are_divided_as_on_madlibs_page(madlib: Lab) -> None:
    """Groups of 12, 6 and 7 rows, of which the test table gets 6, 3 and 4."""
    madlib("CREATE TABLE grouped AS SELECT i AS id1, i AS id2, CASE WHEN i <= 18 THEN 1 ELSE 2 END AS gr1,"
           " CASE WHEN i <= 12 THEN 1 ELSE 2 END AS gr2 FROM generate_series(1, 25) i")  # fmt: skip
    counts = "SELECT split, gr1, gr2, count(*) FROM {} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    expected = [(0, 1, 1, 6), (0, 1, 2, 3), (0, 2, 2, 4), (1, 1, 1, 6), (1, 1, 2, 3), (1, 2, 2, 3)]
    madlib("SELECT madlib.train_test_split('grouped', 'out', 0.5, 0.5, 'gr1,gr2', 'id1,id2', FALSE, FALSE)")
    assert madlib(counts.format("out")) == expected
    assert [column for column, _ in shape(madlib, "out")] == ["gr1", "gr2", "id1", "id2", "split"]
    assert madlib.value("SELECT count(DISTINCT id1) FROM out") == 25
    madlib("SELECT madlib.train_test_split('grouped', 'drawn_twice', 0.5, NULL, 'gr1,gr2', 'id1,id2', TRUE, TRUE)")
    assert madlib("SELECT (SELECT count(*) FROM drawn_twice_train), (SELECT count(*) FROM drawn_twice_test)") == [
        (12, 13)
    ]
    madlib("SELECT madlib.train_test_split('grouped', 'all_in_all', 0.1, 0.2, NULL, 'id1')")  # shares that floats miss
    assert madlib("SELECT split, count(*) FROM all_in_all GROUP BY 1 ORDER BY 1") == [(0, 5), (1, 3)]


def test_arrays(madlib: Lab) -> None:
    assert madlib("SELECT madlib.array_scalar_mult(ARRAY[[1.5, 2], [3, 4]]::real[], 2::real)") == [([[3, 4], [6, 8]],)]
    assert madlib("SELECT madlib.array_square(ARRAY[[[1, 2]], [[3, NULL]]])") == [([[[1, 4]], [[9, None]]],)]
    assert madlib("SELECT madlib.array_square(array_remove(ARRAY[1], 1))") == [([],)]
    assert madlib(
        "SELECT madlib.agg_array_concat(a ORDER BY a) FROM (VALUES (ARRAY[1, 2]::real[]), ('{3}')) v (a)"
    ) == [([1, 2, 3],)]
    for kind, size in (("real", 24), ("smallint", 12)):
        array = f"ARRAY[[1, 2, 3], [4, 5, 6]]::{kind}[]"
        assert madlib.value(f"SELECT madlib.array_to_bytea({array}) = madlib.convert_array_to_bytea({array})")
        assert madlib.value(f"SELECT octet_length(madlib.array_to_bytea({array}))") == size
    back = "SELECT madlib.convert_bytea_to_real_array(madlib.array_to_bytea(ARRAY[0.5, 1]::real[]))"
    assert madlib.value(back) == [0.5, 1]
    # An array may have a map of NULLs, and no NULL.
    mapped = "(ARRAY[1, 2, 3, NULL]::smallint[])[1:3]"
    assert madlib.value(f"SELECT madlib.array_to_bytea({mapped}) = madlib.array_to_bytea(ARRAY[1, 2, 3]::smallint[])")
    empty = "array_remove(ARRAY[1.0]::float8[], 1.0::float8)"
    assert madlib.value(f"SELECT octet_length(madlib.array_to_bytea({empty}))") == 0
    with pytest.raises(errors.DatatypeMismatch, match="text"):
        madlib("SELECT madlib.array_to_bytea(ARRAY['a'])")
    with pytest.raises(errors.NullValueNotAllowed):
        madlib("SELECT madlib.array_to_bytea(ARRAY[1, NULL])")


def test_functions_for_test_scripts(madlib: Lab) -> None:
    for condition in ("1 = 1", "NULL", "(ARRAY[1])[0] = 2"):  # as in MADlib, whose tests begin to count at 0
        madlib(f"SELECT madlib.assert({condition}, 'never')")
    with pytest.raises(errors.RaiseException, match="Failed assertion: said"):
        madlib("SELECT madlib.assert(1 = 2, 'said')")
    missing = "$$SELECT madlib.madlib_keras_fit('nowhere', 'm', 'arch', 1, 'x', 'y', 1)$$"
    assert madlib(f"SELECT madlib.trap_error({missing}), madlib.trap_error('SELECT 1')") == [(1, 0)]
    assert madlib(f"SELECT madlib.test_error_msg({missing}, $$Input table 'nowhere' does not exist$$),"
                  f" madlib.test_error_msg({missing}, 'else'), madlib.test_error_msg('SELECT 1', '')") == [
        (True, False, False)
    ]  # fmt: skip
    no_source, no_output = (
        f"$$SELECT madlib.training_preprocessor_dl({names}, 'a', 'b')$$" for names in ("NULL, 'p'", "'pg_class', ' '")
    )
    for there, statement in ((True, no_source), (False, no_output)):
        assert madlib(f"SELECT madlib.test_input_table({statement}), madlib.test_output_table({statement})") == [
            (there, not there)
        ]
    assert madlib("SELECT madlib.is_ver_gp_640_700_or_pg_11()") == [(not madlib.greenplum,)]
    madlib("SELECT madlib.assert_guc_value('plan_cache_mode', 'auto')")
    with pytest.raises(errors.RaiseException, match="plan_cache_mode is auto, not other"):
        madlib("SELECT madlib.assert_guc_value('plan_cache_mode', 'other')")
    assert madlib("SELECT madlib.relative_error(1.1, 1) < 0.11, madlib.relative_error(2, 0)") == [(True, 2.0)]
    vectors = (
        "madlib.relative_error(ARRAY[3, 4.5]::float8[], ARRAY[3, 4]), madlib.relative_error(ARRAY[3, 4.0], '{0, 0}')"
    )
    assert madlib(f"SELECT {vectors}") == [(0.1, 5.0)]
    madlib("CREATE UNLOGGED TABLE quick (i int)")
    assert madlib("SELECT madlib.__to_char(1.5), madlib.is_table_unlogged('quick')") == [("1.5", True)]

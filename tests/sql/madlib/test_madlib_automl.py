"""madlib_keras_automl: Hyperband and hyperopt, their tables, and runs that are interrupted."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.sql.lab import Lab, eventually, run
from tests.sql.madlib.madlib_lab import iris_data, psql, require_columns

GRID = """$${'loss': ['categorical_crossentropy'], 'metrics': ['accuracy'],
    'optimizer_params_list': [{'optimizer': ['Adam', 'SGD'], 'lr': [0.001, 0.1, 'log']}]}$$"""
FIT = "$${'batch_size': [16]}$$"


@pytest.fixture(scope="module")
def iris(madlib: Lab) -> Lab:
    iris_data(madlib)
    psql(madlib, "iris_automl.sql")
    return madlib


def automl(more: str, output: str = "never", selection: str = "never_mst", **other: str) -> str:
    given = {
        "source": "'iris_train_packed'",
        "arch": "'model_arch_library'",
        "ids": "ARRAY[1]",
        "grid": GRID,
        "fit": FIT,
    }
    given.update(other)
    named = ", ".join((given["source"], f"'{output}'", given["arch"], f"'{selection}'", given["ids"]))
    return f"SELECT madlib.madlib_keras_automl({named}, {given['grid']}, {given['fit']}{more})"


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("model_output_table", "automl_output"),
        ("model_output_table_info", "automl_output_info"),
        ("model_output_table_summary", "automl_output_summary"),
        ("model_selection_table", "automl_mst_table"),
        ("model_selection_table_summary", "automl_mst_table_summary"),
    ],
)
def test_a_table_has_madlibs_columns(iris: Lab, name: str, table: str) -> None:
    require_columns(iris, "madlib_keras_automl", name, table)


def test_hyperband(iris: Lab) -> None:
    found = iris("SELECT s, i, count(*), min(metrics_iters), max(metrics_iters), min(status), max(status)"
                 " FROM automl_output_info GROUP BY 1, 2 ORDER BY 1 DESC, 2")  # fmt: skip
    # The frequency of 3 counts within each round: the last rounds, of 9 iterations, are measured three times.
    assert found == [
        (2, 0, 6, [1], [1], "stopped", "stopped"),
        (2, 1, 2, [1, 4], [1, 4], "stopped", "stopped"),
        (2, 2, 1, [1, 4, 7, 10, 13], [1, 4, 7, 10, 13], "finished", "finished"),
        # As in MADlib, counted from the first of its fits: 1 and 3 iterations come before those of the last bracket.
        (1, 0, 2, [4], [4], "stopped", "stopped"),
        (1, 1, 1, [4, 7, 10, 13], [4, 7, 10, 13], "stopped", "stopped"),
        (0, 0, 3, [7, 10, 13], [7, 10, 13], "stopped", "stopped"),
    ]
    arrays = ("metrics_elapsed_time", "training_metrics", "training_loss", "validation_metrics", "validation_loss")
    same = " AND ".join(f"array_length({one}, 1) = array_length(metrics_iters, 1)" for one in arrays)
    whole = " AND ".join(f"array_position({one}, NULL) IS NULL" for one in arrays)
    last = "validation_loss[array_length(validation_loss, 1)] = validation_loss_final"
    assert iris(f"SELECT bool_and({same}), bool_and({whole}), bool_and({last}) FROM automl_output_info") == [
        (True, True, True)
    ]
    # The best of a round went on: in a bracket, no model that stopped has a smaller loss then than one that went on.
    for first, epoch in ((0, 1), (1, 4)):
        worse = iris.value(
            "SELECT count(*) FROM automl_output_info a, automl_output_info b WHERE a.s = 2 AND b.s = 2 AND a.i = %s"
            " AND b.i > %s AND a.validation_loss[array_position(a.metrics_iters, %s)]"
            " < b.validation_loss[array_position(b.metrics_iters, %s)]", first, first, epoch, epoch,
        )  # fmt: skip
        assert worse == 0
    assert iris("SELECT source_table, validation_table, model, model_info, model_arch_table, model_selection_table,"
                " automl_method, automl_params, random_state, object_table, use_gpus, metrics_compute_frequency, name,"
                " description, num_classes, class_text_class_values FROM automl_output_summary") == [
        ("iris_train_packed", "iris_test_packed", "automl_output", "automl_output_info", "model_arch_library",
         "automl_mst_table", "hyperband", "R=9, eta=3, skip_last=0", "42", None, False, 3, "hyperband",
         "iris, by rounds", [3], ["Iris-setosa", "Iris-versicolor", "Iris-virginica"])
    ]  # fmt: skip
    key = "SELECT a.attname::text FROM pg_index JOIN pg_attribute a ON attrelid = indrelid AND attnum = ANY (indkey)"
    assert iris(f"{key} WHERE indisprimary AND indrelid = 'automl_output'::regclass") == [("mst_key",)]


def test_the_selection_table_has_the_best(iris: Lab) -> None:
    for output, selection, loss in (
        ("automl_output", "automl_mst_table", "validation_loss_final"),
        ("hyperopt_output", "hyperopt_mst_table", "training_loss_final"),
    ):
        best = iris(f"SELECT mst_key, model_id, compile_params, fit_params FROM {output}_info ORDER BY {loss} LIMIT 1")
        assert iris(f"SELECT * FROM {selection}") == best
        assert iris(f"SELECT * FROM {selection}_summary") == [("model_arch_library", None)]
    assert iris.value("SELECT count(*) FROM automl_predict p JOIN iris_test t USING (id)"
                      " WHERE p.class_value <> t.class_text") <= 6  # fmt: skip
    assert iris("SELECT count(*), max(rank) FROM hyperopt_predict") == [(90, 3)]
    evaluated = iris.value("SELECT loss FROM automl_validate")
    assert evaluated == pytest.approx(iris.value("SELECT min(validation_loss_final) FROM automl_output_info"), abs=1e-5)


def test_hyperopt(iris: Lab) -> None:
    assert iris("SELECT count(*), count(DISTINCT compile_params), min(metrics_iters), max(metrics_iters)"
                " FROM hyperopt_output_info") == [(12, 12, [2], [2])]  # fmt: skip
    assert not {"s", "i"} & set(dict(iris.columns("hyperopt_output_info")))
    assert iris("SELECT automl_method, automl_params, random_state, metrics_compute_frequency, validation_table"
                " FROM hyperopt_output_summary") == [
        ("hyperopt", "num_configs=12, num_iterations=2, algorithm=tpe", None, 2, None)
    ]  # fmt: skip
    chosen = iris("SELECT chosen FROM cerebro.leaderboard WHERE run = (SELECT run FROM hyperopt_output_summary)")
    assert all(point["optimizer"] in ("Adam", "SGD") for (point,) in chosen) and len(chosen) == 12


def test_a_finite_grid_is_tried_once(iris: Lab) -> None:
    """Fewer configurations than were asked for: all of them, and a notice."""
    iris.told()
    grid = "$${'loss': ['categorical_crossentropy'], 'optimizer': ['Adam', 'SGD'], 'lr': [0.1, 0.01]}$$"
    more = ", 'hyperopt', 'num_configs=9, num_iterations=1, algorithm={}', 7"
    iris(automl(more.format("rand"), "all_four", "one_of_four", grid=grid))
    assert any("the grids have only 4 configurations: all of them are trained" in line for line in iris.told())
    assert iris.value("SELECT count(*) FROM all_four") == 4
    with pytest.raises(errors.InvalidParameterValue, match="'R=9, eta=3, skip_last=0' trains 15 configurations"):
        iris(automl(", 'hyperband', 'R=9'", grid=grid))


def test_the_last_round_is_skipped(iris: Lab) -> None:
    """All configurations of the first round, and the parameters as they were written. Callbacks have no effect."""
    fit = """$${'batch_size': [16], 'callbacks': ['[TensorBoard(log_dir="/tmp/logs")]']}$$"""
    iris.told()
    iris(automl(", 'Hyperband', 'skip_last=1,R=5, eta=5'", "skipping", "skipping_mst", fit=fit))
    assert any("cerebro.learning_curve" in line for line in iris.told())
    assert iris("SELECT s, i, count(*), min(fit_params) FROM skipping_info GROUP BY 1, 2") == [
        (1, 0, 5, 'batch_size=16,callbacks=[TensorBoard(log_dir="/tmp/logs")]')
    ]
    told = "SELECT automl_method, automl_params, metrics_compute_frequency, model_info FROM {}_summary"
    assert iris(told.format("skipping")) == [("Hyperband", "skip_last=1,R=5, eta=5", 1, "skipping_info")]
    iris.told()
    more = ", 'hyperopt', 'num_configs=2,num_iterations=1,algorithm=tpe'"
    iris(automl(more, "boarded", "boarded_mst", fit=fit))
    assert any("cerebro.learning_curve" in line for line in iris.told())
    assert iris(told.format("boarded")) == [
        ("hyperopt", "num_configs=2,num_iterations=1,algorithm=tpe", 1, "boarded_info")
    ]


def test_the_selection_table_in_another_schema_names_the_architectures_that_were_used(iris: Lab) -> None:
    more = ", 'hyperopt', 'num_configs=2, num_iterations=1, algorithm=rand', 5"
    iris("DROP SCHEMA IF EXISTS aside CASCADE; CREATE SCHEMA aside")
    iris(automl(more, "aside_a", "aside.mst_a"))
    iris("CREATE TABLE aside.model_arch_library (model_id integer)")
    iris(automl(more, "aside_b", "aside.mst_b"))
    assert [iris.value(f"SELECT model_arch_table FROM aside.mst_{name}_summary") for name in "ab"] == [
        "model_arch_library",
        f'"{iris.schema}"."model_arch_library"',
    ]
    iris("DROP SCHEMA aside CASCADE")


def test_the_random_state_decides_the_configurations(iris: Lab) -> None:
    drawn = "SELECT compile_params, fit_params FROM {}_info ORDER BY mst_key"
    for output, state in (("first_of", 5), ("second_of", 5), ("third_of", 6)):
        more = f", 'hyperopt', 'num_configs=3, num_iterations=1, algorithm=rand', {state}"
        iris(automl(more, output, f"{output}_mst"))
    assert iris(drawn.format("first_of")) == iris(drawn.format("second_of")) != iris(drawn.format("third_of"))


@pytest.mark.parametrize(
    ("more", "other", "why"),
    [
        (", 'bayes'", {}, "must be 'hyperband' or 'hyperopt'"),
        (", 'hyperband', 'R=9, steps=1'", {}, "Only R, eta, and skip_last may be specified"),
        (", 'hyperopt', 'num_configs=0'", {}, "num_configs is 0"),
        (", 'hyperopt', 'num_iterations=3', NULL, NULL, FALSE, NULL, 4", {}, "out of iteration range"),
        (", 'hyperband', 'R=9', NULL, NULL, FALSE, NULL, -1", {}, "metrics_compute_frequency is -1"),
        ("", {"source": "'nowhere'"}, "Input table 'nowhere' does not exist"),
        ("", {"source": "'iris_train'"}, "not a packed table"),
        ("", {"arch": "'nowhere'"}, "Input table 'nowhere' does not exist"),
        ("", {"ids": "ARRAY[1, 77]"}, "One or more model_id of"),
        ("", {"ids": "NULL"}, "model_id_list cannot be empty"),
        ("", {"grid": "NULL"}, "Compile parameters cannot be empty or NULL"),
        ("", {"grid": "$${'loss': 'mse'}$$"}, "compile param values must be specified in a list"),
        ("", {"grid": "$${'loss': ['mse'], 'lr': [0.1, 0.2, 'log'], 'metrics': ['nosuch']}$$"}, "nosuch"),
        (", 'hyperopt'", {"grid": "$${'loss': ['mse'], 'rho': [0.9, 0.99, 'log_near_one']}$$"}, "linear, log"),
        ("", {"fit": "$${'size': [1]}$$"}, "size"),
        (", 'hyperband', NULL, NULL, 'nothing'", {}, "object_table"),
        (", 'hyperband', NULL, NULL, NULL, FALSE, 'nowhere'", {}, "Input table 'nowhere' does not exist"),
        ("", {"output": "automl_output"}, "Output table 'automl_output' already exists"),
        ("", {"selection": "automl_mst_table"}, "Output table 'automl_mst_table' already exists"),
        ("", {"selection": "never"}, "would both make"),
        ("", {"selection": "never_info"}, "would both make"),
    ],
)
def test_what_cannot_be_searched(iris: Lab, more: str, other: dict[str, str], why: str) -> None:
    with pytest.raises(psycopg2.Error, match=why):
        iris(automl(more, **other))
    assert iris("SELECT to_regclass('never'), to_regclass('never_mst'), to_regclass('never_info')") == [(None,) * 3]
    assert iris.value("SELECT count(*) FROM cerebro.runs WHERE model_table LIKE '%.never'") == 0


def test_an_architecture_with_parameters_is_refused(iris: Lab) -> None:
    layers = [{"class_name": "Dense", "config": {"units": "$width", "batch_input_shape": [None, 4]}}]
    model = {"class_name": "Sequential", "config": {"name": "open", "layers": layers}}
    iris("SELECT madlib.load_keras_model('open_arch', %s)", json.dumps(model))
    with pytest.raises(errors.InvalidParameterValue, match="has parameter width without a value"):
        iris(automl("", arch="'open_arch'"))


def interrupted(lab: Lab, statement: str, output: str, hops: int) -> int:
    """The number of a run that was cancelled after some hops."""
    said: list[Any] = []

    def call() -> None:
        connection = lab.connect()
        try:
            run(connection, statement)
        except psycopg2.Error as error:
            said.append(error)
        finally:
            connection.close()

    lab(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$"
    )
    lab("CREATE TRIGGER dawdle AFTER INSERT ON cerebro.hop FOR EACH ROW EXECUTE FUNCTION dawdle()")
    thread = threading.Thread(target=call)
    thread.start()
    began = (
        "SELECT max(run) FROM cerebro.hop JOIN cerebro.run USING (run) WHERE model_table LIKE %s HAVING count(*) >= %s"
    )
    found = eventually(lambda: lab(began, f"%.{output}", hops), 60)
    lab("SELECT cerebro.cancel(%s)", found[0][0])
    thread.join(60)
    lab("DROP TRIGGER dawdle ON cerebro.hop; DROP FUNCTION dawdle()")
    assert said, "the search ended before the cancel"
    return int(found[0][0])


def test_a_search_that_was_cancelled_is_resumed(iris: Lab) -> None:
    more = ", 'hyperband', 'R=9, eta=3', 3, NULL, FALSE, 'iris_test_packed', NULL, 'resumed', NULL"
    number = interrupted(iris, automl(more, "stopped_out", "stopped_mst"), "stopped_out", 12)
    assert iris.status(number) == "cancelled"
    assert iris("SELECT to_regclass('stopped_out'), to_regclass('stopped_mst')") == [(None, None)]
    iris("SELECT cerebro.resume(%s)", number)
    assert iris("SELECT s, i, count(*) FROM stopped_out_info GROUP BY 1, 2 ORDER BY 1 DESC, 2") == [
        (2, 0, 6), (2, 1, 2), (2, 2, 1), (1, 0, 2), (1, 1, 1), (0, 0, 3),
    ]  # fmt: skip
    require_columns(iris, "madlib_keras_automl", "model_output_table_summary", "stopped_out_summary")
    assert iris("SELECT model, model_selection_table, name FROM stopped_out_summary") == [
        ("stopped_out", "stopped_mst", "resumed")
    ]
    best = "SELECT mst_key FROM stopped_out_info ORDER BY validation_loss_final LIMIT 1"
    assert iris("SELECT mst_key FROM stopped_mst") == iris(best)

    # Its tables again, under another name; and the run, extended.
    iris("SELECT cerebro.materialize(%s, 'again_out')", number)
    assert iris("SELECT model, automl_method FROM again_out_summary") == [(f"{iris.schema}.again_out", "hyperband")]
    iris("SELECT cerebro.resume(%s, 15)", number)
    finished = "SELECT epoch, metrics_iters FROM stopped_out_info WHERE status = 'finished'"
    assert iris(finished) == [(15, [1, 4, 13, 15])]
    assert iris("SELECT count(*) FROM stopped_mst") == [(1,)]

    # A table of somebody else stays.
    iris("DROP TABLE stopped_mst; CREATE TABLE stopped_mst AS SELECT 'mine' AS text")
    iris.told()
    iris("SELECT cerebro.resume(%s, 16)", number)
    assert any(
        "it is not written to" in line and "stopped_mst, because that table exists" in line for line in iris.told()
    )
    assert iris("SELECT * FROM stopped_mst") == [("mine",)]

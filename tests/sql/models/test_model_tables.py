"""The model tables: plain ones of the natural functions, MADlib's of its functions, and readers that take both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, natural_fit, verb

FIT = "batch_size=16, epochs=1"
PARAMS = f"$$optimizer='Adam(lr=0.05)', {CROSS}$$"
SAME = {"seed": 1, "deterministic": True}
PAGE = Path(__file__).parents[3] / "docs" / "production.md"


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab("CREATE EXTENSION IF NOT EXISTS cerebro_db_madlib")
    lab.iris(1)
    model = lab.architecture(lab.value("""SELECT architecture('mlp', 'train', '{"units": 8, "layers": 1}')"""))
    compiled = [f"optimizer='Adam(lr={rate})', {CROSS}" for rate in (0.05, 0.001)]
    lab.selection("mst", [(model, one, FIT) for one in compiled])
    return lab


@pytest.fixture(scope="module")
def plain(place: Lab) -> int:
    """The run that makes the table ``ours``."""
    return place.value(*natural_fit("train", "ours", "mst", 2, validation_table="val", options=SAME))


@pytest.fixture(scope="module")
def dressed(place: Lab, plain: int) -> int:
    """A run of madlib_fit_multiple_model, which makes the table ``theirs``."""
    return place.fit("train", "theirs", "mst", 2, validation_table="val", options=SAME)


@pytest.fixture(scope="module")
def single(place: Lab) -> int:
    """A run of madlib_keras_fit, which makes the table ``one``."""
    place(f"SELECT madlib.madlib_keras_fit(' train', 'one', 'arch', 1, {PARAMS}, '{FIT}', 2, FALSE, 'val')")
    return run_of(place, "one")


@pytest.fixture(scope="module")
def automl(place: Lab) -> int:
    """A run of madlib_keras_automl, which makes the table ``found``."""
    grid = "{'loss': ['categorical_crossentropy'], 'optimizer_params_list': [{'optimizer': ['Adam'],"
    grid += " 'lr': [0.05, 0.01, 0.001]}], 'metrics': ['accuracy']}"
    place(
        f"SELECT madlib.madlib_keras_automl('train', 'found', 'arch', 'found_mst', ARRAY[1], $${grid}$$,"
        " $${'batch_size': [16], 'epochs': [1]}$$, 'hyperopt', 'num_configs=2, num_iterations=2, algorithm=rand', 3)"
    )
    return run_of(place, "found")


def run_of(lab: Lab, table: str) -> int:
    return lab.value("SELECT max(run) FROM run WHERE model_table = %s", f"{lab.schema}.{table}")


def names(lab: Lab, table: str) -> list[str]:
    return [name for name, _ in lab.columns(table)]


def form(lab: Lab, table: str) -> dict[str, list[tuple[str, str]]]:
    """The columns of a model table and of the tables beside it."""
    endings = [e for e in ("", "_info", "_summary", "_weights") if lab.value("SELECT to_regclass(%s)", table + e)]
    return {ending: lab.columns(table + ending) for ending in endings}


# -- plain tables ----------------------------------------------------------------------------------------------


def test_plain_tables_have_the_documented_columns(place: Lab, plain: int) -> None:
    page = PAGE.read_text(encoding="utf-8")
    documented = {}
    for ending in ("", "_info", "_summary"):
        (row,) = re.findall(rf"^\| `MODEL{ending}` \| [^|]* \| ([^\n]*) \|$", page, re.MULTILINE)
        outside = re.sub(r"\([^)]*\)", "", row)
        documented[ending] = [name for name in re.findall(r"`([^`]*)`", outside)]
    found = {ending: [name for name, _ in columns] for ending, columns in form(place, "ours").items()}
    labels = [name.replace("species", "…") for name in found["_summary"]]
    assert {**found, "_summary": labels} == documented


def test_plain_tables_say_what_the_views_say(place: Lab, plain: int) -> None:
    assert place(
        "SELECT configuration, model, status, reason, objective_value, validation_loss, validation_metric,"
        " training_loss, training_metric, architecture, parameters, which, epoch FROM ours_info ORDER BY 1"
    ) == place(
        "SELECT configuration, model, status, reason, NULL::float8, validation_loss, validation_metric, training_loss,"
        " training_metric, architecture, parameters, 'last', 2 FROM leaderboard WHERE run = %s ORDER BY 1",
        plain,
    )
    assert place("SELECT DISTINCT loss_name, metric_names, functions FROM ours_info") == [
        ("categorical_crossentropy", ["accuracy"], None)
    ]
    assert (
        place("SELECT i.bytes = octet_length(m.weights) FROM ours_info i JOIN ours m USING (configuration)")
        == [(True,)] * 2
    )
    ((run, table, target, inputs, epochs, labels),) = place(
        "SELECT run, model_table, target, inputs, epochs, species_labels FROM ours_summary"
    )
    assert (run, table, target, inputs, epochs) == (plain, f"{place.schema}.ours", "species", "sl, sw, pl, pw", 2)
    assert labels == ["setosa", "versicolor", "virginica"]


def test_rows_packed_in_either_form_train_models_of_either_form(place: Lab, dressed: int) -> None:
    labels = ["setosa", "versicolor", "virginica"]
    assert place(
        "SELECT source_table, dependent_varname, independent_varname, num_classes, normalizing_const,"
        " species_class_values FROM theirs_summary"
    ) == [(f"{place.schema}.train", ["species"], ["sl", "sw", "pl", "pw"], [3], 1.0, labels)]
    place("SELECT madlib.training_preprocessor_dl('flowers', 'their_rows', 'species', 'sl, sw, pl, pw', 30, 2)")
    place("SELECT pack_like('garden', 'our_val', 'species', 'sl, sw, pl, pw', 'their_rows')")
    assert place("SELECT divide_by, classes, target, species_labels FROM our_val_summary") == [
        (2.0, [3], "species", labels)
    ]
    place.value(*natural_fit("their_rows", "mixed", "mst", 1, validation_table="our_val", options=SAME))
    assert place("SELECT source_table, packed_table, target, inputs, species_labels FROM mixed_summary") == [
        ("flowers", f"{place.schema}.their_rows", "species", "sl, sw, pl, pw", labels)
    ]
    assert len(place("SELECT class FROM cerebro.predict('mixed', 'SELECT * FROM garden')")) == 30


@pytest.mark.parametrize(
    ("call", "values"),
    [
        (
            "train",
            {
                "target": "species",
                "budget": {"configurations": 1, "hops": 10},
                "segments": 1,
                "packed_table": "of_train",
            },
        ),
        (
            "search",
            {"target": "species", "epochs": 1, "max_configurations": 1, "segments": 1, "packed_table": "of_search"},
        ),
    ],
)
def test_each_verb_makes_plain_tables(place: Lab, plain: int, call: str, values: dict[str, Any]) -> None:
    first = ("flowers", f"by_{call}")
    if call == "search":
        space = {"architecture": "mlp", "units": {"choice": [4, 8]}, "learning_rate": 0.01, "batch_size": 16}
        first = (*first, space)  # type: ignore[assignment]
    place(*verb(call, *first, **values))
    assert {ending: [name for name, _ in columns] for ending, columns in form(place, f"by_{call}").items()} == {
        ending: [name for name, _ in columns] for ending, columns in form(place, "ours").items()
    }


def test_a_plain_run_stays_plain(place: Lab, plain: int) -> None:
    run = place.value(*natural_fit("train", "further", "mst", 1))
    before = form(place, "further")
    place("SELECT resume(%s, epochs => 2)", run)
    assert form(place, "further") == before and place.value("SELECT max(epoch) FROM further_info") == 2
    place("SELECT materialize(%s, 'further_again')", run)
    assert form(place, "further_again") == before
    assert place.weights("further_again") == place.weights("further")


# -- MADlib's tables ---------------------------------------------------------------------------------------------


def test_madlibs_tables_are_made_of_the_same_run(place: Lab, plain: int, dressed: int) -> None:
    assert place.weights("theirs") == place.weights("ours")
    assert names(place, "theirs") == ["mst_key", "model_weights", "model_arch", "__dist_key__"]
    assert not {"configuration", "weights", "validation_metric"} & set(names(place, "theirs_info"))
    assert place(
        "SELECT mst_key, validation_loss_final, training_loss_final, loss_type, metrics_type, status, which, epoch,"
        " model_size * 1024 FROM theirs_info ORDER BY 1"
    ) == place(
        "SELECT configuration, validation_loss, training_loss, loss_name, metric_names, status, which, epoch, bytes"
        " FROM ours_info ORDER BY 1"
    )
    assert not [table for table in place.tables() if table.startswith("__cerebro")]


@pytest.fixture(scope="module")
def later(place: Lab) -> int:
    return place.fit("train", "later", "mst", 2)


@pytest.mark.parametrize(("which", "table"), [("later", "later"), ("single", "one"), ("automl", "found")])
def test_a_resumed_run_makes_madlibs_tables_again(
    place: Lab, which: str, table: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(which)
    before = form(place, table)
    own = place(f"SELECT source_table, model FROM {table}_summary")
    place("SELECT materialize(%s, %s)", run, f"{table}_copy")
    assert form(place, f"{table}_copy") == before
    assert bytes(place.value(f"SELECT min(model_weights::text)::bytea FROM {table}_copy")) == bytes(
        place.value(f"SELECT min(model_weights::text)::bytea FROM {table}")
    )
    source, _ = own[0]
    assert place(f"SELECT source_table, model FROM {table}_copy_summary") == [(source, f"{place.schema}.{table}_copy")]
    place("SELECT resume(%s, epochs => 3)", run)
    assert form(place, table) == before and place(f"SELECT source_table, model FROM {table}_summary") == own
    assert place("SELECT epochs FROM runs WHERE run = %s", run) == [(3,)]


def test_a_run_that_nobody_waits_for_makes_madlibs_tables(place: Lab, dressed: int) -> None:
    run = place.fit("train", "alone", "mst", 1)
    before = form(place, "alone")
    place("SELECT resume(%s, epochs => 2, wait => false)", run)
    assert place.value("SELECT wait(%s)", run) == "finished"
    assert form(place, "alone") == before and place.value("SELECT max(epoch) FROM alone_info") == 2


def test_what_people_have_added_to_a_single_model(place: Lab, single: int) -> None:
    """The table of madlib_keras_fit has the model that was asked for; another table can have all."""
    place(
        "SELECT add_configuration(%s, %s)", single, '{"architecture": "mlp", "learning_rate": 0.01, "batch_size": 16}'
    )
    place("SELECT resume(%s)", single)
    assert place("SELECT count(*) FROM one") == [(1,)] and names(place, "one") == ["model_weights", "model_arch"]
    place("SELECT materialize(%s, 'one_and_more')", single)
    assert place("SELECT mst_key FROM one_and_more ORDER BY 1") == [(1,), (2,)]


# -- readers -------------------------------------------------------------------------------------------------------


def test_the_readers_take_both(place: Lab, plain: int, dressed: int) -> None:
    query = "SELECT * FROM garden"
    predict = "SELECT * FROM predict('{}', %s, 'id', top => 3) ORDER BY key_value, rank"
    assert place(predict.format("ours"), query) == place(predict.format("theirs"), query) != []
    evaluate = "SELECT * FROM evaluate('{}', %s) ORDER BY 1"
    found, expected = ([list(row) for row in place(evaluate.format(table), query)] for table in ("ours", "theirs"))
    if place.greenplum:  # adds up what its segments send in the order in which it comes: the last digits differ
        expected = [[pytest.approx(one) if isinstance(one, float) else one for one in row] for row in expected]
    assert found == expected != []
    for table in ("ours", "theirs"):
        place(f"SELECT predict_into('{table}', 'garden', 'into_{table}')")
        place(f"SELECT ensemble('{table}', '{table}_together', 2)")
        place(f"SELECT create_predictor('{table}', 'guess_{table}')")
        place(f"SELECT madlib.madlib_keras_evaluate('{table}', 'val', '{table}_judged', FALSE, 1)")
        assert place(f"SELECT count(*) FROM importance('{table}', %s, repeats => 1)", query) == [(4,)]
    same = "SELECT * FROM {} ORDER BY 1, 2"
    assert place(same.format("into_ours")) == place(same.format("into_theirs"))
    assert place("SELECT * FROM ours_judged") == place("SELECT * FROM theirs_judged")
    assert place(predict.format("ours_together"), query) == place(predict.format("theirs_together"), query)
    for table in ("ours", "theirs"):
        assert names(place, f"{table}_together") == names(place, table)
        assert names(place, f"{table}_together_info") == names(place, f"{table}_info")
    guess = "SELECT guess_{}(5.1::real, 3.5::real, 1.4::real, 0.2::real)"
    assert place(guess.format("ours")) == place(guess.format("theirs"))
    listed = (
        "SELECT run = %s, target, objective, best_value, rows, configurations, created_at IS NOT NULL, bytes > 0"
        " FROM models WHERE model_table = %s"
    )
    own, other = (
        place(listed, run, f"{place.schema}.{table}") for table, run in (("ours", plain), ("theirs", dressed))
    )
    assert own == other == [(True, "species", "val_loss", own[0][3], 120, 2, True, True)] and own[0][3] > 0


def test_a_table_without_a_run_is_listed(place: Lab, plain: int) -> None:
    """What the summary says of the time holds where the run is not to be seen."""
    for ending in ("", "_info", "_summary"):
        place(f"CREATE TABLE elsewhere{ending} AS SELECT * FROM ours{ending}")
    place("UPDATE elsewhere_summary SET run = NULL")
    assert place(
        "SELECT created_at = (SELECT started_at FROM elsewhere_summary), best_value, configurations FROM models"
        " WHERE model_table = %s", f"{place.schema}.elsewhere",
    ) == [(True, place.value("SELECT min(validation_loss) FROM ours_info"), 2)]  # fmt: skip


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_one_face_goes_on_from_the_tables_of_the_other(place: Lab, plain: int, dressed: int, first: str) -> None:
    """With the optimizer's state, which belongs to these weights.  The tables get the form of the last functions."""

    def natural(**more: Any) -> int:
        return place.value(*natural_fit("train", "warm", "mst", 2, validation_table="val", options=SAME, **more))

    def theirs(**more: Any) -> int:
        return place.fit("train", "warm", "mst", 2, validation_table="val", options=SAME, **more)

    begin, go_on, other = (natural, theirs, "theirs") if first == "ours" else (theirs, natural, "ours")
    begun = begin()
    assert names(place, "warm") == names(place, first)
    place.told()
    run = go_on(warm_start=True)
    assert not any("from the weights alone" in said for said in place.told())
    assert names(place, "warm") == names(place, other)
    last = "SELECT DISTINCT ON (model) model, state_sha256 FROM hop WHERE run = %s ORDER BY model, hop DESC"
    assert place("SELECT model, initial_sha256 FROM model WHERE run = %s ORDER BY 1", run) == place(last, begun)
    place("SELECT drop_model('warm')")


def test_drop_model_drops_both(place: Lab, plain: int, dressed: int, single: int) -> None:
    for run, table in ((plain, "gone_n"), (dressed, "gone_t"), (single, "gone_s")):
        place("SELECT materialize(%s, %s)", run, table)
        place("SELECT drop_model(%s)", table)
    assert not [table for table in place.tables() if table.startswith("gone_")]


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says", "hint"),
    [
        ("predict('ours', 'SELECT * FROM garden', configuration => 9)", "cerebro.predict: 'ours' has no"
         " configuration 9", "SELECT configuration, status FROM"),
        ("predict('theirs', 'SELECT * FROM garden', configuration => 9)", "'theirs' has no configuration 9",
         "SELECT mst_key, status FROM"),
        ("predict('one', 'SELECT * FROM garden', configuration => 1)", "'one' has one model without a number",
         "Leave configuration out"),
        ("predict('alone_in_the_world', 'SELECT * FROM garden')", "does not have its tables", "keep the three"),
        ("predict('failed', 'SELECT * FROM garden')", "model_table: 'failed' has no model", "SELECT configuration,"),
        ("predict('failed', 'SELECT * FROM garden', configuration => 1)", "configuration 1 left no model",
         "WHERE configuration = 1"),
        ("predict('flowers', 'SELECT * FROM garden')", "does not have the columns configuration, weights, architecture"
         " (or mst_key, model_weights, model_arch, as in MADlib)", "cerebro.train()"),
        ("madlib_keras_evaluate('ours', 'val', 'never', mst_key => 9)", "mst_key 9 does not exist in the info"
         " table", "SELECT configuration, status FROM"),
        ("madlib_keras_evaluate('ours', 'val', 'never')", "Multi-model needs to pass mst_key",
         "SELECT configuration"),
    ],
)  # fmt: skip
def test_errors_have_the_words_of_the_function(
    place: Lab, plain: int, dressed: int, single: int, *, call: str, says: str, hint: str
) -> None:
    place("CREATE TABLE IF NOT EXISTS alone_in_the_world AS SELECT * FROM ours")
    for ending in ("", "_info", "_summary"):
        rows = " WITH NO DATA" if ending == "" else ""
        place(f"CREATE TABLE IF NOT EXISTS failed{ending} AS SELECT * FROM ours{ending}{rows}")
    if call.startswith("madlib"):
        call = f"madlib.{call}"
        call = call.replace("mst_key => 9", "FALSE, 9")
    with pytest.raises(psycopg2.Error) as error:
        place(f"SELECT * FROM {call}")
    assert says in str(error.value) and hint in error.value.diag.message_hint

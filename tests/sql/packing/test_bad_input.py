"""Bad input: the error has one line with the reason, the right SQLSTATE and a hint, and nothing is left behind."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import CROSS, Lab, fit_statement, flower_model, natural_fit, run

GOOD = f"optimizer='Adam(lr=0.01)', {CROSS}"
FIT = "batch_size=16, epochs=1"


@pytest.fixture(scope="module")
def bench(lab: Lab) -> Lab:
    """Valid packed tables and selections, and others with one defect each."""
    lab.iris(segments=2)
    model = lab.architecture(flower_model())
    lab.selection("mst", [(model, GOOD, FIT)])
    broken = {
        "mst_optimizer": (model, f"optimizer='Adom(lr=0.01)', {CROSS}", FIT),
        "mst_loss": (model, "optimizer='Adam()', loss='mean_of_nothing'", FIT),
        "mst_metric": (model, "optimizer='Adam()', loss='mse', metrics=['acuracy']", FIT),
        "mst_json": (model, '{"optimizer": "Adam", ', FIT),
        "mst_syntax": (model, "optimizer='Adam(', loss=", FIT),
        "mst_null": (model, None, FIT),
        "mst_fit": (model, GOOD, "batch_size=0, epochs=1"),
        "mst_callbacks": (model, GOOD, "batch_size=8, callbacks=[TensorBoard()]"),
        "mst_no_model": (99, GOOD, FIT),
        "mst_widths": (lab.architecture(flower_model(classes=5)), GOOD, FIT),
    }
    for name, row in broken.items():
        lab.selection(name, [row])
    lab.selection("mst_twice", [(model, GOOD, FIT), (model, GOOD, FIT)])
    lab("UPDATE mst_twice SET mst_key = 1")
    lab.selection("mst_empty", [(model, GOOD, FIT)])
    lab("DELETE FROM mst_empty")
    lab("CREATE TABLE mst_alone AS TABLE mst")
    lab("CREATE TABLE mst_columns AS SELECT mst_key, model_id FROM mst")
    lab("CREATE TABLE mst_columns_summary AS TABLE mst_summary")
    lab("CREATE TABLE mst_lost AS TABLE mst; CREATE TABLE mst_lost_summary AS SELECT 'nowhere'::text model_arch_table")
    lab("CREATE TABLE train_empty AS SELECT * FROM train WHERE false")
    lab("CREATE TABLE train_empty_summary AS TABLE train_summary")
    lab("CREATE TABLE there (x int); CREATE TABLE half_info (x int); CREATE TABLE half2_summary (x int)")
    lab.pack("flowers", "wide", "species", "sl, sw", segments=2)
    lab.told()
    return lab


def refused(lab: Lab, statement: str, *values: Any, on: Any = None, hint: bool = True) -> psycopg2.Error:
    """The error of a statement, after checks of its message and hint, and that nothing is left behind."""
    tables, runs = lab.tables(), lab.value("SELECT count(*) FROM run")
    with pytest.raises(psycopg2.Error) as caught:
        run(on or lab.db, statement, *values)
    error = caught.value
    message = error.diag.message_primary
    # MADlib's message "already exists" has a line break.
    assert message and len(message.replace("\n            Drop it", " Drop it").splitlines()) == 1, message
    assert not any(word in message for word in ("Traceback", "plpy", "KeyError", "NoneType")), message
    # Either the message or the hint says what is required.
    if hint and not re.search(r"must (not )?(be|fit) ", message, re.IGNORECASE):
        assert error.diag.message_hint, f"no hint: {message}"
    if on is not None and not on.autocommit:
        on.rollback()
    assert lab.tables() == tables
    assert lab.value("SELECT count(*) FROM run") == runs
    lab.require_no_orphans()
    return error


def fit(**changed: Any) -> list[Any]:
    asked: dict[str, Any] = {"source": "train", "output": "out", "selection": "mst", "epochs": 1, **changed}
    source, output, selection, epochs = (asked.pop(name) for name in ("source", "output", "selection", "epochs"))
    return fit_statement("madlib_fit_multiple_model", source, output, selection, epochs, asked)


BAD_FITS: list[tuple[dict[str, Any], str, str]] = [
    ({"source": "nowhere"}, "42P01", "nowhere"),
    ({"source": None}, "42602", "NULL"),
    ({"source": "flowers"}, "55000", "'flowers' is not a packed table"),
    ({"source": "train_empty"}, "22000", "empty"),
    ({"source": "mst"}, "55000", "not a packed table"),
    ({"source": 'train"; DROP TABLE there; --'}, "42602", ""),
    ({"selection": "nowhere"}, "42P01", "nowhere"),
    ({"selection": "mst_empty"}, "22000", "empty"),
    ({"selection": "mst_alone"}, "42704", "mst_alone_summary"),
    ({"selection": "mst_columns"}, "42703", "compile_params"),
    ({"selection": "mst_lost"}, "42P01", "nowhere"),
    ({"selection": "mst_twice"}, "22000", "distinct"),
    ({"selection": "mst_no_model"}, "42704", "99"),
    ({"selection": "mst_optimizer"}, "22023", "Adom"),
    ({"selection": "mst_loss"}, "22023", "mean_of_nothing"),
    ({"selection": "mst_metric"}, "22023", "acuracy"),
    ({"selection": "mst_json"}, "22P02", "JSON"),
    ({"selection": "mst_syntax"}, "22P02", ""),
    ({"selection": "mst_null"}, "22023", "mst_key 1"),
    ({"selection": "mst_fit"}, "22023", "batch_size"),
    ({"selection": "mst_callbacks"}, "0A000", "callbacks"),
    ({"epochs": 0}, "22023", "num_iterations is 0"),
    ({"epochs": -1}, "22023", "num_iterations is -1"),
    ({"epochs": None}, "22023", "num_iterations is NULL"),
    ({"epochs": 2**31 - 1}, "22023", "more hops than can be counted"),
    ({"metrics_compute_frequency": 0}, "22023", "metrics_compute_frequency is 0"),
    ({"metrics_compute_frequency": 2}, "22023", "between 1 and num_iterations"),
    ({"output": "there"}, "42P07", "there"),
    ({"output": "half"}, "42P07", "half_info"),
    ({"output": "half2"}, "42P07", "half2_summary"),
    ({"output": "nowhere.out"}, "42704", "nowhere"),
    ({"output": "9lives"}, "42602", "9lives"),
    ({"output": "pg_catalog.out"}, "42501", "pg_catalog"),
    ({"output": None}, "42602", "NULL"),
    ({"output": ""}, "42602", ""),
    ({"validation_table": "nowhere"}, "42P01", "nowhere"),
    ({"validation_table": "flowers"}, "55000", "not a packed table"),
    ({"validation_table": "wide"}, "22000", "shapes"),
    ({"warm_start": True}, "42P01", "out"),
    ({"warm_start": True, "output": "there"}, "55000", "there"),
    ({"options": {"sede": 1}}, "22023", "sede"),
    ({"options": {"seed": "1"}}, "22023", "seed"),
    ({"options": {"seed": 1.5}}, "22023", "seed"),
    ({"options": {"seed": 2**63}}, "22023", "seed"),
    ({"options": {"deterministic": 1}}, "22023", "deterministic"),
    ({"options": {"threads": 0}}, "22023", "threads"),
    ({"options": {"threads": 100_000}}, "22023", "threads"),
    ({"options": {"hang_after": -1}}, "22023", "hang_after"),
    ({"options": {"hang_after": 1.5}}, "22023", "hang_after"),
    ({"options": {"hang_after": "long"}}, "22023", "hang_after"),
    ({"options": {"nan": "perhaps"}}, "22023", "nan"),
    ({"options": {"precision": "float8"}}, "22023", "float8"),
    ({"options": {"engine": "abacus"}}, "0A000", "abacus"),
    ({"options": {"replay": 10**9}}, "42704", "replay"),
    ({"options": [1]}, "22023", "JSON object"),
]


@pytest.mark.parametrize(("changed", "sqlstate", "says"), BAD_FITS, ids=[str(one[0]) for one in BAD_FITS])
def test_a_fit_that_cannot_be(bench: Lab, changed: dict[str, Any], sqlstate: str, says: str) -> None:
    error = refused(bench, *fit(**changed))
    assert (error.pgcode, says in error.diag.message_primary) == (sqlstate, True), error
    if changed.keys() <= {"source", "selection", "epochs"}:
        # A second call fails in the same way.
        assert refused(bench, *fit(**changed)).pgcode == sqlstate


@pytest.mark.no_gpu
def test_gpus_that_are_not_there(bench: Lab) -> None:
    if bench.home is None:
        pytest.skip("the server's machine may have one")
    error = refused(bench, *fit(use_gpus=True))
    assert (error.pgcode, "No GPUs" in str(error)) == ("22023", True)


def test_submit_refuses_as_fit_does(bench: Lab) -> None:
    statement = natural_fit("nowhere", "out", "mst", 1, wait=False)
    assert refused(bench, *statement).pgcode == "42P01"


# -- transactions ------------------------------------------------------------------------------------------


@pytest.fixture
def transaction(bench: Lab) -> Iterator[Any]:
    """A session without autocommit."""
    connection = bench.connect()
    connection.autocommit = False
    yield connection
    connection.close()


def test_a_table_of_this_very_transaction(bench: Lab, transaction: Any) -> None:
    run(transaction, "SELECT pack_plain('flowers', 'fresh', 'species', 'sl, sw, pl, pw', segments => 2)")
    error = refused(bench, *fit(source="fresh", options={"execution": "workers"}), on=transaction)
    assert (error.pgcode, "commit" in error.diag.message_hint.lower()) == ("55000", True)


def test_a_table_packed_anew_in_this_transaction(bench: Lab, transaction: Any) -> None:
    """Worker sessions would see the old table."""
    run(transaction, "DROP TABLE val, val_summary")
    run(transaction, "SELECT pack_plain('garden', 'val', 'species', 'sl, sw, pl, pw', segments => 2)")
    error = refused(bench, *fit(validation_table="val", options={"execution": "workers"}), on=transaction)
    assert (error.pgcode, "'val'" in error.diag.message_primary) == ("55000", True)


@pytest.mark.parametrize(
    ("begin", "sqlstate"),
    [("REPEATABLE READ", "0A000"), ("SERIALIZABLE", "0A000"), ("READ ONLY", "0A000")],
)
def test_transactions_in_which_it_cannot_work(bench: Lab, transaction: Any, begin: str, sqlstate: str) -> None:
    level = f"SET TRANSACTION {'ISOLATION LEVEL ' if begin != 'READ ONLY' else ''}{begin}"
    for statement in (fit(), ["SELECT resume(1)"]):
        run(transaction, level)
        assert refused(bench, *statement, on=transaction).pgcode == sqlstate


def test_a_temporary_table(bench: Lab) -> None:
    with contextlib.closing(bench.connect()) as connection:
        run(connection, "CREATE TEMP TABLE passing AS TABLE train")
        run(connection, "CREATE TEMP TABLE passing_summary AS TABLE train_summary")
        error = refused(bench, *fit(source="passing", options={"execution": "workers"}), on=connection)
    assert (error.pgcode, "temporary" in str(error)) == ("0A000", True)


# -- roles -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(bench: Lab) -> Iterator[dict[str, str]]:
    """Two roles: alice may create tables and train, mallory may not train.  Their names are unique on the server."""
    named = {who: f"{bench.schema}_{who}" for who in ("alice", "mallory")}
    for who in named.values():
        bench(f"CREATE ROLE {who} LOGIN; GRANT USAGE, CREATE ON SCHEMA {bench.schema} TO {who}")
    bench(f"GRANT cerebro_user TO {named['alice']}; GRANT SELECT ON mst, mst_summary, arch TO {named['alice']}")
    yield named
    for who in named.values():
        bench(f"DROP OWNED BY {who}; DROP ROLE {who}")


@contextlib.contextmanager
def acting(lab: Lab, who: str) -> Iterator[Any]:
    with contextlib.closing(lab.connect()) as connection:
        run(connection, f"SET ROLE {who}")
        yield connection


def test_a_table_that_may_not_be_read(bench: Lab, people: dict[str, str]) -> None:
    with acting(bench, people["alice"]) as alice:
        error = refused(bench, *fit(), on=alice)
        assert (error.pgcode, "GRANT SELECT" in error.diag.message_hint) == ("42501", True)
        assert people["alice"] in error.diag.message_hint


def test_a_schema_that_the_models_may_not_be_made_in(bench: Lab, people: dict[str, str]) -> None:
    """The error comes before the training, not after hours of it."""
    bench(f"CREATE SCHEMA {bench.schema}_locked; GRANT SELECT ON train, train_summary TO {people['alice']}")
    with acting(bench, people["alice"]) as alice:
        error = refused(bench, *fit(output=f"{bench.schema}_locked.out"), on=alice)
    bench(f"REVOKE SELECT ON train, train_summary FROM {people['alice']}; DROP SCHEMA {bench.schema}_locked")
    assert (error.pgcode, "GRANT CREATE" in error.diag.message_hint) == ("42501", True)


def test_a_role_without_the_right_to_train(bench: Lab, people: dict[str, str]) -> None:
    with acting(bench, people["mallory"]) as mallory:
        run(mallory, f"SET search_path = {bench.schema}, public")
        statement, *values = fit()
        error = refused(bench, statement.replace("madlib_fit", "cerebro.madlib_fit"), *values, on=mallory, hint=False)
    assert (error.pgcode, "permission denied for schema cerebro") == ("42501", error.diag.message_primary)


# -- runs and models ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(bench: Lab) -> int:
    """A finished run with its tables."""
    return bench.fit("train", "model", "mst", 1)


@pytest.mark.parametrize("call", ["resume(%s)", "cancel(%s)", "wait(%s)", "forget(%s)", "materialize(%s, 'mine')"])
def test_a_run_that_is_not_there_or_somebody_elses(bench: Lab, people: dict[str, str], model: int, call: str) -> None:
    assert refused(bench, f"SELECT {call}", 10**9).pgcode == "42704"
    assert refused(bench, f"SELECT {call}", None).pgcode == "42704"
    with acting(bench, people["alice"]) as alice:
        error = refused(bench, f"SELECT {call}", model, on=alice)
    assert error.pgcode == "42704"
    assert str(model) in error.diag.message_primary


@pytest.mark.parametrize("statement", [
    "SELECT madlib_fit_multiple_model('model', 'none', 'mst', 1)",
    "SELECT madlib_fit_multiple_model('train', 'none', 'mst', 1, validation_table => 'model')",
    "SELECT madlib_keras_evaluate('model', 'model', 'none', false, 1)",
])  # fmt: skip
def test_a_model_table_is_no_packed_table(bench: Lab, model: int, statement: str) -> None:
    error = refused(bench, statement)
    assert error.pgcode == "55000" and "'model' is not a packed table" in error.diag.message_primary


def test_a_finished_run_is_not_resumed(bench: Lab, model: int) -> None:
    assert refused(bench, "SELECT resume(%s)", model).pgcode == "55000"
    assert refused(bench, "SELECT resume(%s, epochs => 0)", model, hint=False).pgcode == "22023"
    assert bench.value("SELECT cancel(%s)", model) is False


BAD_PREDICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"mst_key": None}, "22023", "mst_key"),
    ({"mst_key": 7}, "42704", "mst_key 7"),
    ({"model_table": "nowhere"}, "42P01", "nowhere"),
    ({"model_table": "flowers"}, "42703", "model_weights"),
    ({"test_table": "nowhere"}, "42P01", "nowhere"),
    ({"id_col": "nothing"}, "42703", "nothing"),
    ({"id_col": "id, sl"}, "42703", "id, sl"),
    ({"independent_varname": "sl, sw, pl, nothing"}, "42703", "nothing"),
    ({"independent_varname": "sl, sw"}, "22000", "features"),
    ({"independent_varname": "species"}, "2", "species"),
    ({"output_table": "there"}, "42P07", "there"),
    ({"output_table": None}, "42602", "NULL"),
    ({"pred_type": "perhaps"}, "22023", "pred_type"),
    ({"pred_type": 0}, "22023", "pred_type"),
    ({"pred_type": 1.0}, "22023", "pred_type"),
    ({"test_table": "holes"}, "22000", "NULL"),
]


@pytest.mark.parametrize(("changed", "sqlstate", "says"), BAD_PREDICTIONS, ids=[str(x[0]) for x in BAD_PREDICTIONS])
def test_a_prediction_that_cannot_be(bench: Lab, model: int, changed: dict[str, Any], sqlstate: str, says: str) -> None:
    bench("CREATE TABLE IF NOT EXISTS holes AS SELECT id, sl, NULLIF(sw, 3) AS sw, pl, pw FROM garden")
    asked = {
        "model_table": "model", "test_table": "garden", "id_col": "id", "independent_varname": "sl, sw, pl, pw",
        "output_table": "predicted", "mst_key": 1, **changed,
    }  # fmt: skip
    kinds = {"pred_type": {str: "%s::text", int: "%s::integer", float: "%s::double precision"}}
    named = ", ".join(f"{name} => {kinds.get(name, {}).get(type(value), '%s')}" for name, value in asked.items())
    error = refused(bench, f"SELECT madlib_keras_predict({named})", *asked.values(), hint=sqlstate != "2")
    assert error.pgcode.startswith(sqlstate) and says in error.diag.message_primary, error


@pytest.mark.parametrize(
    ("changed", "sqlstate"),
    [
        ({"test_table": "garden"}, "55000"),
        ({"test_table": "wide"}, "22000"),
        ({"mst_key": 7}, "42704"),
        ({"output_table": "there"}, "42P07"),
    ],
)
def test_an_evaluation_that_cannot_be(bench: Lab, model: int, changed: dict[str, Any], sqlstate: str) -> None:
    asked = {
        "model_table": "model",
        "test_table": "val",
        "output_table": "measured",
        "use_gpus": False,
        "mst_key": 1,
        **changed,
    }
    named = ", ".join(f"{name} => %s" for name in asked)
    assert refused(bench, f"SELECT madlib_keras_evaluate({named})", *asked.values()).pgcode == sqlstate


def test_a_configuration_that_no_trainer_can_build(bench: Lab) -> None:
    """Only a trainer can detect this, so the log has a failed run.  Nothing else remains."""
    tables = bench.tables()
    with pytest.raises(psycopg2.Error, match="configuration 1") as caught:
        bench(*fit(selection="mst_widths"))
    assert caught.value.pgcode == "22023"
    assert len(caught.value.diag.message_primary.splitlines()) == 1
    assert bench.tables() == tables
    run_id = bench.value("SELECT max(run) FROM run")
    assert bench.status(run_id) == "failed"
    assert bench("SELECT status, reason IS NOT NULL FROM leaderboard WHERE run = %s", run_id) == [("failed", True)]
    bench.require_no_orphans()

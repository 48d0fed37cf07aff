"""madlib_keras_predict on many rows, wide rows, odd rows and odd names, with models of given weights.

The prediction types and the types of ids are in test_fit.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psycopg2
import pytest

from tests.nn import configurations as c
from tests.sql.lab import CROSS, Lab, eventually, layer, run, sequential, trainer_processes
from tests.thorough import landing, tries

MANY = 150_000  # rows, which are several chunks on each segment
FEWER = 80_000  # rows, which are still too many for the caller's session alone
WIDE = 120_000  # numbers in a row, which is so large that whole blocks of rows would not fit into memory
STILL = "optimizer='SGD(lr=0.0)'"  # training that does not change the weights


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(3, 3)).astype("f4")  # two rows for x, one for the bias


@pytest.fixture(scope="module")
def place(lab: Lab, weights: np.ndarray) -> Lab:
    """A model with two inputs and three classes, and a table of many rows."""
    kinds = {"id": "int", "x": "real[]", "kind": "text"}
    lab.table("seen", kinds, [(n, [n / 10, 1 - n / 10], "abc"[n % 3]) for n in range(12)])
    lab.pack("seen", "seen_packed", "kind", "x", segments=2, seed=1)
    model = lab.architecture(sequential([2], layer("Dense", "out", units=3, activation="softmax")), weights.tobytes())
    lab.selection("mst", [(model, f"{STILL}, {CROSS}", "batch_size=6")])
    lab.fit("seen_packed", "model", "mst", 1)
    lab(f"CREATE TABLE points AS SELECT n AS id, ARRAY[sin(n), cos(n)]::real[] AS x FROM generate_series(1, {MANY}) n")
    return lab


def softmax(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    scores = np.exp(x @ weights[:2] + weights[2])
    return scores / scores.sum(1, keepdims=True)


def predict(lab: Lab, test: str, kind: str = "response", model: str = "model", x: str = "x", **more: Any) -> None:
    lab("DROP TABLE IF EXISTS said")
    lab(
        f"SELECT madlib_keras_predict(%s, %s, %s, %s, 'said', {kind!r}, false, 1)", model, test, more.get("id", "id"), x
    )


# -- many rows -------------------------------------------------------------------------------------------


WAYS = {
    "an uneven table": "SELECT id, x FROM points; DELETE FROM {name} WHERE id BETWEEN 20000 AND 90000",
    "a view": None,
    "a temporary table": "TABLE points",
    "a table with heirs": "SELECT id, x FROM points WHERE id <= 60000; CREATE TABLE heir () INHERITS ({name});"
    " INSERT INTO heir SELECT id, x FROM points WHERE id > 60000",
    "a table with a policy": "TABLE points; ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
}


@pytest.mark.parametrize("rows", [1000, MANY])  # predicted in the caller's session, and in worker sessions
def test_numbers_as_ids_come_back_exactly(place: Lab, rows: int) -> None:
    """Ids are texts on their way, and a setting says how many digits such a text has."""
    if place.greenplum:
        pytest.skip("the settings of a function do not reach the segments of Greenplum")
    database = place.value("SELECT current_database()")
    place(f"CREATE TABLE exact AS SELECT id / 3.0::float8 AS id, x FROM points WHERE id <= {rows}")
    place(f"ALTER DATABASE {database} SET extra_float_digits = -10")
    try:
        with contextlib.closing(place.connect()) as session:
            run(
                session,
                "SELECT madlib_keras_predict('model', 'exact', 'id', 'x', 'said_exactly', 'response', false, 1)",
            )
        assert place("SELECT count(*), count(x) FROM said_exactly LEFT JOIN exact USING (id)") == [(rows, rows)]
    finally:
        place(f"ALTER DATABASE {database} RESET extra_float_digits")
        place("DROP TABLE IF EXISTS exact, said_exactly")


@pytest.mark.parametrize("way", WAYS)
def test_every_row_is_predicted_once(place: Lab, weights: np.ndarray, way: str) -> None:
    kind = {"a view": "VIEW", "a temporary table": "TEMP TABLE"}.get(way)
    made = f"CREATE {kind or 'TABLE'} these AS {WAYS[way] or 'SELECT id, x FROM points ORDER BY x'}"
    place(made.format(name="these"))
    try:
        predict(place, "these")
        rows = np.array(place("SELECT id, x[1], x[2] FROM these ORDER BY id"))
        said = place("SELECT id, class_name, class_value, prob FROM said ORDER BY id")
    finally:
        place(f"DROP {kind.replace('TEMP ', '') if kind else 'TABLE'} these CASCADE")
    assert [row[0] for row in said] == rows[:, 0].astype(int).tolist()
    expected = softmax(rows[:, 1:].astype("f4"), weights)
    assert {row[1] for row in said} == {"kind"}
    best = np.sort(expected, 1)
    clear = best[:, 2] - best[:, 1] > 1e-5
    told = np.array(["abc".index(row[2]) for row in said])
    assert (told == expected.argmax(1))[clear].all() and clear.mean() > 0.99
    assert np.allclose([row[3] for row in said], expected.max(1), rtol=1e-5)


@pytest.mark.parametrize(
    "made",
    [
        "BEGIN; CREATE TEMP TABLE mine AS TABLE points",
        "BEGIN; SAVEPOINT here; CREATE TABLE mine AS TABLE points; RELEASE here",
        "CREATE TABLE mine AS TABLE points; BEGIN",
        "CREATE TABLE mine AS TABLE points; DELETE FROM mine WHERE id > 10; CREATE TABLE heir () INHERITS (mine);"
        " INSERT INTO heir SELECT * FROM points WHERE id > 10; BEGIN",
    ],
    ids=["a temporary table", "made after a savepoint", "an older table", "rows of an heir"],
)
def test_rows_that_this_transaction_changed(place: Lab, made: str) -> None:
    if made.endswith("BEGIN") and place.greenplum:
        pytest.skip("its coordinator cannot tell")
    before, begin, within = made.partition("BEGIN")
    place(before or "SELECT 1")
    with contextlib.closing(place.connect()) as session:
        try:
            run(session, begin + within)
            run(session, "UPDATE mine SET x = '{0, 0}' WHERE id > 10")
            run(session, "SELECT madlib_keras_predict('model', 'mine', 'id', 'x', 'mine_said', 'response', false, 1)")
            found = run(session, "SELECT count(*), count(DISTINCT (class_value, prob)) FROM mine_said WHERE id > 10")
        finally:
            run(session, "ROLLBACK; DROP TABLE IF EXISTS mine CASCADE")
    assert found == [(MANY - 10, 1)]


def test_rows_that_others_change_meanwhile(place: Lab) -> None:
    """Updated rows move between the blocks of different sessions."""
    place("CREATE TABLE moving AS TABLE points; CREATE INDEX ON moving (id)")
    ended = threading.Event()

    def change(first: int) -> None:
        with contextlib.closing(place.connect()) as session:
            for number in range(first, MANY // 3):
                if ended.is_set():
                    return
                run(session, "UPDATE moving SET x = x WHERE id = %s", number)

    with ThreadPoolExecutor(3) as others:
        try:
            begun = [others.submit(change, 10000 * number) for number in range(3)]
            for _ in range(tries(3)):
                predict(place, "moving")
                assert place("SELECT count(*), count(DISTINCT id) FROM said") == [(MANY, MANY)]
        finally:
            ended.set()
    assert all(one.exception() is None for one in begun)
    place("DROP TABLE moving")


MIDWAY = {
    "the caller is cancelled": "cancel",
    "a worker is ended": "terminat",
    "kill -9 of a trainer": "the trainer was killed",
}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.needs_cluster] if "kill" in how else []) for how in MIDWAY]
)
def test_what_is_ended_midway_leaves_nothing(place: Lab, how: str) -> None:
    """Trainers that are killed between two chunks are replaced, and a prediction that lost a session is repeated."""
    place("CREATE TABLE more AS SELECT n * 4 + p.id % 4 AS id, p.x FROM points p, generate_series(1, 4) n")
    begun = (
        "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%cerebro_internal._predict(%%'"
        " AND application_name LIKE 'cerebro_db segment%%'"
    )
    with contextlib.closing(place.connect()) as session, ThreadPoolExecutor(1) as thread:
        call = "SELECT madlib_keras_predict('model', 'more', 'id', 'x', 'never', 'response', false, 1)"
        ended = thread.submit(run, session, call)
        (worker,), *_ = eventually(lambda: place(begun), 60, "rows are predicted")
        if how == "the caller is cancelled":
            session.cancel()
        elif how == "a worker is ended":
            place("SELECT pg_terminate_backend(%s)", worker)
        else:
            os.kill(place.trainers()[0][0], signal.SIGKILL)
        error = ended.exception(60)
        if how == "the caller is cancelled" or error is not None:
            assert isinstance(error, psycopg2.Error) and MIDWAY[how] in str(error) and error.pgcode != "XX000"
            assert "never" not in place.tables()
        staged = "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'cerebro_state'::regnamespace"
        eventually(lambda: not place(f"{staged} AND c.relname LIKE 'predict%%'"), 15, "what was staged is gone")
        place.require_no_orphans()
        if error is not None:
            run(session, call)
    assert place.value("SELECT count(*) FROM never") == 4 * MANY
    place("DROP TABLE more, never")


def test_wide_rows(place: Lab) -> None:
    """Few rows are read at a time, so that they fit into memory."""
    place(
        "CREATE TABLE wide AS SELECT n AS id, array_agg(random()::real) AS x, n::real AS y"
        f" FROM generate_series(1, 40) n, generate_series(1, {WIDE}) GROUP BY n"
    )
    place("CREATE TABLE few_wide AS SELECT * FROM wide WHERE id <= 4")
    place.pack("few_wide", "wide_packed", "y", "x", segments=2, seed=1)
    mean = np.append(np.full(WIDE, 1 / WIDE), 5).astype("f4")
    model = place.architecture(sequential([WIDE], layer("Dense", "out", units=1)), mean.tobytes(), table="wide_arch")
    place.selection("wide_mst", [(model, f"{STILL}, loss='mse'", "batch_size=2")], arch="wide_arch")
    place.fit("wide_packed", "wide_model", "wide_mst", 1)
    predict(place, "wide", model="wide_model")
    found = place("SELECT estimated_y, (SELECT avg(e) FROM unnest(x) e) + 5 FROM said JOIN wide USING (id) ORDER BY id")
    assert len(found) == 40
    assert [one for one, _ in found] == pytest.approx([other for _, other in found], rel=1e-4)
    place("DROP TABLE wide, wide_packed")


# -- single rows -----------------------------------------------------------------------------------------


def test_a_row_alone_is_predicted_as_among_others(place: Lab) -> None:
    place("CREATE TABLE a_few AS SELECT * FROM points WHERE id <= 40")
    predict(place, "a_few", "prob")
    together = place("SELECT id, class_value, prob, rank FROM said WHERE id <= 3 ORDER BY id, rank")
    alone = []
    for row in (1, 2, 3):
        with contextlib.closing(place.connect()) as session:  # a new session has a new trainer
            run(session, "BEGIN")
            run(session, "CREATE TEMP TABLE one AS SELECT * FROM points WHERE id = %s", row)
            run(session, "SELECT madlib_keras_predict('model', 'one', 'id', 'x', 'alone', 'prob', false, 1)")
            alone += run(session, "SELECT id, class_value, prob, rank FROM alone ORDER BY rank")
    assert [row[:2] + row[3:] for row in alone] == [row[:2] + row[3:] for row in together]
    # The last bit of a float32 may differ with the rows that share a batch.
    assert [row[2] for row in alone] == pytest.approx([row[2] for row in together], rel=1e-6)
    place("DROP TABLE a_few")


def test_a_row_alone_needs_nothing_of_worker_sessions(place: Lab) -> None:
    """To import it takes a new session as long as a good part of the prediction."""
    with contextlib.closing(place.connect()) as session:
        run(session, "CREATE TEMP TABLE one AS SELECT * FROM points WHERE id = 1")
        run(session, "SELECT madlib_keras_predict('model', 'one', 'id', 'x', 'alone', 'prob', false, 1)")
        run(
            session,
            "DO LANGUAGE plpython3u $$ import sys; plpy.notice(' '.join(name for name in sys.modules"
            " if name == 'psycopg2' or name.startswith(('cerebro_plpy.', 'cerebro_madlib.', 'cerebro_db.core.s')))) $$",
        )
        imported = session.notices[-1].split()
        run(session, "DROP TABLE alone")
    assert "cerebro_madlib.predict" in imported
    assert not {"psycopg2", "cerebro_plpy.sessions.team", "cerebro_db.core.scheduling"} & set(imported)


@pytest.mark.parametrize("kept", [False, True])
def test_a_call_that_is_refused_ends_no_trainer_of_an_earlier_call(place: Lab, kept: bool) -> None:
    with contextlib.closing(place.connect()) as session:

        def trainers() -> list[int]:
            assert place.home is not None
            own = session.info.backend_pid
            return [pid for pid, parent in trainer_processes(place.home) if parent == own]

        call = "SELECT madlib_keras_predict('model', 'seen', 'id', 'x', 'many_said', 'response', false, {})"
        if kept:
            run(session, call.format(1))
        before = trainers() if place.home is not None else []
        for _ in range(2):
            with pytest.raises(psycopg2.Error, match="mst_key 7 does not exist"):
                run(session, call.format(7))
        if place.home is not None:
            # On Greenplum the segments' sessions predict, and they have the trainers.
            assert len(before) == (kept and not place.greenplum) and trainers() == before
        run(session, "DROP TABLE IF EXISTS many_said; " + call.format(1))
        if place.home is not None:
            assert trainers() == before or not kept
        run(session, "DROP TABLE many_said")


def test_the_trainer_of_a_session_keeps_the_weights(place: Lab, weights: np.ndarray) -> None:
    if place.greenplum:
        pytest.skip("on Greenplum the weights are sent each time")
    x = np.array([[0.3, 0.4]], "f4")
    others = psycopg2.Binary((2 * weights).tobytes())
    for ending in ("", "_info", "_summary"):
        place(f"CREATE TABLE second{ending} AS TABLE model{ending}")
    place("UPDATE second SET model_weights = %s", others)

    with contextlib.closing(place.connect()) as session:

        def told(model: str = "model") -> list[float]:
            query = "SELECT 1 AS id, ARRAY[0.3, 0.4]::real[] AS x"
            found = f"SELECT class, probability FROM predict('{model}', '{query}', top => 3) ORDER BY class"
            return [probability for _, probability in run(session, found)]

        def reads(allowed: bool) -> None:
            change = "w.kept = w.pieces; w.pieces = None" if not allowed else "w.pieces = w.kept"
            code = f"import sys; w = sys.modules['cerebro_plpy.models.weights']; {change}"
            run(session, f"DO LANGUAGE plpython3u $${code}$$")

        first, second = softmax(x, weights)[0], softmax(x, 2 * weights)[0]
        np.testing.assert_allclose(told(), first, rtol=1e-5)
        reads(allowed=False)
        assert told() == told()
        np.testing.assert_allclose(told(), first, rtol=1e-5)
        with pytest.raises(psycopg2.Error, match="not callable"):
            told("second")
        reads(allowed=True)

        np.testing.assert_allclose(told(), first, rtol=1e-5)
        run(session, "BEGIN")
        run(session, "UPDATE model SET model_weights = %s", others)
        np.testing.assert_allclose(told(), second, rtol=1e-5)
        run(session, "SAVEPOINT before; DELETE FROM model; ROLLBACK TO before")
        np.testing.assert_allclose(told(), second, rtol=1e-5)
        run(session, "ROLLBACK")
        np.testing.assert_allclose(told(), first, rtol=1e-5)
        np.testing.assert_allclose(told("second"), second, rtol=1e-5)
        np.testing.assert_allclose(told(), first, rtol=1e-5)

        if place.home is not None:
            own = session.info.backend_pid
            for pid in [pid for pid, parent in trainer_processes(place.home) if parent == own]:
                os.kill(pid, signal.SIGKILL)
            np.testing.assert_allclose(told(), first, rtol=1e-5)
        run(session, "CREATE VIEW seen_models AS TABLE model")
        for ending in ("_info", "_summary"):
            run(session, f"CREATE VIEW seen_models{ending} AS TABLE model{ending}")
        np.testing.assert_allclose([told("seen_models"), told("seen_models")], [first, first], rtol=1e-5)
    place(
        "DROP VIEW seen_models, seen_models_info, seen_models_summary; DROP TABLE second, second_info, second_summary"
    )


def test_who_may_read_some_columns_of_a_model_predicts(place: Lab) -> None:
    """To read the version of a row takes the privilege on the whole table."""
    if place.greenplum:
        pytest.skip("on Greenplum the versions of the rows are not read")
    place("CREATE ROLE some_columns; GRANT cerebro_user TO some_columns")
    try:
        place(f'GRANT USAGE, CREATE ON SCHEMA "{place.schema}" TO some_columns')
        place("GRANT SELECT (mst_key, model_weights, model_arch) ON model TO some_columns")
        place("GRANT SELECT ON model_info, model_summary TO some_columns; SET ROLE some_columns")
        for _ in range(2):
            query = "SELECT count(*) FROM predict('model', 'SELECT 1 AS id, ARRAY[0.3, 0.4]::real[] AS x')"
            assert place.value(query) == 1
    finally:
        place("RESET ROLE; DROP OWNED BY some_columns; DROP ROLE some_columns")


# -- several inputs and outputs, and regression ----------------------------------------------------------


def test_numbers_of_several_outputs(place: Lab) -> None:
    """One output with one number and one with several, from an array and plain columns."""
    random = np.random.default_rng(4)
    rows = [
        (n, random.normal(size=(2, 2)).tolist(), *random.normal(size=2).tolist(), 1.0, [1.0, 2.0]) for n in range(50)
    ]
    kinds = {"id": "int", "m": "real[]", "a": "real", "b": "float8", "price": "real", "spot": "real[]"}
    place.table("lots", kinds, rows)
    place.pack("lots", "lots_packed", "price, spot", "m, a, b", segments=2, seed=1)
    both = c.functional(
        [
            (c.input_layer([2, 2], name="m"), []),
            (c.input_layer([2], name="features"), []),
            (c.layer("Flatten", "flat"), ["m"]),
            (c.layer("Dense", "price", units=1), ["features"]),
            (c.layer("Dense", "spot", units=2), ["flat"]),
        ],
        ["m", "features"],
        ["price", "spot"],
    )
    price, spot = random.normal(size=3).astype("f4"), random.normal(size=(5, 2)).astype("f4")
    model = place.architecture(both, price.tobytes() + spot.tobytes(), table="lots_arch")
    place.selection("lots_mst", [(model, f"{STILL}, loss=['mse', 'mse']", "batch_size=9")], arch="lots_arch")
    place.fit("lots_packed", "lots_model", "lots_mst", 1)
    predict(place, "lots", model="lots_model", x="m, a, b")
    assert place.columns("said") == [
        ("id", "integer"), ("estimated_price", "double precision"), ("estimated_spot", "double precision[]"),
    ]  # fmt: skip
    m = np.array([np.ravel(row[1]) for row in rows])
    features = np.array([row[2:4] for row in rows])
    said = place("SELECT * FROM said ORDER BY id")
    assert [row[0] for row in said] == list(range(50))
    assert np.allclose([row[1] for row in said], features @ price[:2] + price[2], atol=1e-5)
    assert np.allclose([row[2] for row in said], m @ spot[:4] + spot[4], atol=1e-5)


def test_equal_probabilities_are_ranked_in_the_order_of_the_classes(place: Lab) -> None:
    place("CREATE TABLE level AS SELECT * FROM model")
    place(
        "CREATE TABLE level_info AS SELECT * FROM model_info; CREATE TABLE level_summary AS SELECT * FROM model_summary"
    )
    place("UPDATE level SET model_weights = %s", bytes(36))
    for kind, ranks in (("prob", 3), ("response", 1)):
        predict(place, "seen", kind, model="level")
        rank = "rank" if kind == "prob" else "1"
        told = place(f"SELECT id, class_value, prob, {rank} FROM said ORDER BY id, class_value")
        assert told == [(n, "abc"[k], pytest.approx(1 / 3), k + 1) for n in range(12) for k in range(ranks)]


# -- odd rows --------------------------------------------------------------------------------------------


ODD = [
    ("'{1, 2, 3}'", "shape [3] where the model was trained on [2]"),
    ("'{{1, 2}}'", "shape [1, 2]"),
    ("'{}'", "shape []"),
    ("'{1, NULL}'", "NULL elements"),
    ("'{1, NaN}'", "NaN or infinite"),
    ("'{-Infinity, 1}'", "NaN or infinite"),
    ("NULL", "have a NULL in id, x"),
]
HERE, ON_SEGMENTS = ([(*odd, many) for odd in ODD] for many in (False, True))


# The rows are checked in the same way in both places. On segments the error has a longer way.
@pytest.mark.parametrize(
    ("value", "says", "many"), landing([*HERE, *ON_SEGMENTS], *HERE, ON_SEGMENTS[0], ON_SEGMENTS[3])
)
def test_a_row_that_cannot_be_used(place: Lab, value: str, says: str, many: bool) -> None:
    source, bad = ("points", MANY - 7) if many else ("seen", 5)
    place(f"CREATE TABLE odd AS SELECT id, x FROM {source}")
    place(f"UPDATE odd SET x = {value}::real[] WHERE id = {bad}")
    own = place.db.info.backend_pid
    try:
        with pytest.raises(psycopg2.Error) as error:
            predict(place, "odd")
        assert says in error.value.diag.message_primary and "predict" in error.value.diag.message_primary
        assert error.value.pgcode == "22000" and error.value.diag.message_hint
        if "shape" in says:
            assert error.value.diag.message_hint == "Give arrays of 2 elements, as in training."
        assert not place(
            "SELECT 1 FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relname LIKE 'predict%%'"
        )
        if place.home is not None and not many and value != "NULL" and not place.greenplum:
            # The failed prediction must end its trainer. (On Greenplum, worker sessions predict these rows.)
            assert own not in [parent for _, parent in trainer_processes(place.home)]
    finally:
        place("DROP TABLE odd")
    predict(place, "seen")
    assert place.value("SELECT count(*) FROM said") == 12


@pytest.mark.parametrize("column", landing(["id", "x"], "x"))
def test_a_null_among_rows_that_are_not_counted_first(place: Lab, column: str) -> None:
    place("CREATE TABLE odd AS SELECT id, x FROM points")
    place(f"UPDATE odd SET {column} = NULL WHERE id = {MANY - 7}; ANALYZE odd")
    with pytest.raises(psycopg2.Error) as error:
        predict(place, "odd")
    assert error.value.diag.message_primary == "madlib_keras_predict error: 1 rows of 'odd' have a NULL in id, x."
    assert error.value.pgcode == "22000" and error.value.diag.message_hint
    place(f"DELETE FROM odd WHERE {column} IS NULL")
    predict(place, "odd")
    assert place.value("SELECT count(*) FROM said") == MANY - 1
    place("DROP TABLE odd")


def test_a_null_that_was_not_there_when_they_were_counted(place: Lab) -> None:
    if place.greenplum:
        pytest.skip("how often the rows of a view are computed is another matter there")
    place("CREATE SEQUENCE looked; CREATE FUNCTION fading(real[]) RETURNS real[] LANGUAGE sql AS"
          " $$ SELECT CASE WHEN nextval('looked') < 3 THEN $1 END $$")  # fmt: skip
    place("CREATE VIEW fade AS SELECT id, fading(x) AS x FROM seen WHERE id = 1")
    with pytest.raises(psycopg2.Error, match="prediction: column 'x' has a NULL") as error:
        predict(place, "fade")
    assert error.value.pgcode == "22000"
    place("DROP VIEW fade; DROP FUNCTION fading(real[]); DROP SEQUENCE looked")


def test_arrays_that_only_look_odd(place: Lab, weights: np.ndarray) -> None:
    """Arrays with other lower bounds, or with a NULL bitmap but no NULL."""
    place("CREATE TABLE looks AS SELECT id, x FROM seen")
    place("UPDATE looks SET x = ('[0:1]={' || x[1] || ',' || x[2] || '}')::real[] WHERE id = 3")
    place("UPDATE looks SET x = ARRAY[NULL, x[2]] WHERE id = 4; UPDATE looks SET x[1] = 0.4 WHERE id = 4")
    predict(place, "looks", "prob")
    first = place("SELECT * FROM said ORDER BY id, rank")
    predict(place, "seen", "prob")
    assert place("SELECT * FROM said ORDER BY id, rank") == first and len(first) == 36


def test_a_row_for_each_row_whose_id_is_not_its_own(place: Lab) -> None:
    place("CREATE TABLE twins AS SELECT id / 2 AS id, x FROM seen")
    predict(place, "twins")
    assert place("SELECT id, count(*) FROM said GROUP BY id ORDER BY id") == [(n, 2) for n in range(6)]


def test_names_that_our_queries_use_too(place: Lab) -> None:
    place(f"CREATE VIEW fewer AS SELECT * FROM points WHERE id <= {FEWER}")
    predict(place, "fewer")
    expected = place("SELECT id, class_value, prob FROM said ORDER BY id")
    place("CREATE TABLE b AS SELECT id AS block, x AS rows, 1 AS turn, 2 AS c, 3 AS ids, 4 AS id FROM fewer")
    assert place.value("SELECT pg_total_relation_size('b') > 4 << 20")
    place("CREATE VIEW s AS SELECT block AS turn, rows AS c0, ids AS id, ids AS block FROM b")
    for test, identity, x in (("b", "block", "rows"), ("s", "turn", "c0")):
        predict(place, test, x=x, id=identity)
        found = place(f"SELECT {identity}, class_value, prob FROM said ORDER BY {identity}")
        assert [row[:2] for row in found] == [row[:2] for row in expected]
        # The last bit of a float32 may differ with the rows that share a chunk.
        assert [prob for *_, prob in found] == pytest.approx([prob for *_, prob in expected], rel=1e-6)
    place("DROP VIEW s, fewer; DROP TABLE b")


# -- bytes as arrays -------------------------------------------------------------------------------------


def test_bytes_become_numbers(place: Lab) -> None:
    numbers = [0.0, -0.0, 1.5, 3.4e38, 1e-45, float("inf"), float("nan")]
    found = place.value("SELECT cerebro_internal._reals(%s)", struct.pack(f"={len(numbers)}f", *numbers))
    assert np.array_equal(np.array(found, "f4"), np.array(numbers, "f4"), equal_nan=True)
    assert place(
        "SELECT cerebro_internal._reals(''), cerebro_internal._reals('\\x0102'),"
        " cardinality(cerebro_internal._reals(repeat('1234', 99999)::bytea))"
    ) == [([], None, 99999)]
    assert place.value("SELECT cerebro_internal._bytes_array(cerebro_internal._array_bytes('{1,2}'::real[]))") == [1, 2]


def test_an_array_is_made_of_what_is_one_only(place: Lab) -> None:
    """The server would treat any bytes as an array, so users may not call the general function."""
    with contextlib.closing(place.connect()) as session:
        run(session, "SET ROLE cerebro_user")
        assert run(session, "SELECT cerebro_internal._reals('\\x00000000')") == [([0.0],)]
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run(session, "SELECT cerebro_internal._bytes_array('\\x00000000')")
        with pytest.raises(psycopg2.Error, match="this process has no trainer"):
            run(session, "SELECT cerebro_internal._predict(1, ARRAY['\\x00'::bytea])")

"""madlib_fit_multiple_model from end to end: its tables, its log, its views, and predictions with its models."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg2
import pytest
import safetensors.numpy

from tests.nn import configurations as c
from tests.sql.lab import CROSS, Lab, eventually, flower_model, layer, run, sequential
from tests.thorough import landing

SEGMENTS, EPOCHS, EVERY, CONFIGURATIONS = 3, 3, 2, 5
FIT = "batch_size=16, epochs=1"
INPUTS = "sl, sw, pl, pw"


# -- one run and its results -----------------------------------------------------------------------------------


@dataclass
class Looked:
    run: int
    notices: list[str]
    progress: list[tuple[Any, ...]] = field(default_factory=list)  # rows that another session read during the run


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    small, wide = lab.architecture(flower_model()), lab.architecture(flower_model(units=16))
    compiled = [f"optimizer='Adam(lr={rate})', {CROSS}" for rate in (0.1, 0.01, 0.001)]
    lab.selection("mst", [(m, one, FIT) for m, one in zip((small, wide, small, wide, small), compiled + compiled)])
    return lab


@pytest.fixture(scope="module")
def board(flowers: Lab) -> Looked:
    """Five configurations on three segments, validated every second epoch, while another session reads the progress."""
    found: dict[str, Any] = {}
    connection = flowers.connect()
    greenplum = flowers.greenplum
    if not greenplum:  # else the run might end before its second heartbeat, from which the time left is estimated
        flowers(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05);"
            " RETURN new; END $$; CREATE TRIGGER dawdle BEFORE INSERT ON cerebro.hop FOR EACH ROW"
            " EXECUTE FUNCTION dawdle()"
        )

    def train() -> None:
        try:
            found["run"] = flowers.fit(
                "train", "out", "mst", EPOCHS, on=connection, validation_table="val", metrics_compute_frequency=EVERY,
                name="first", description="five on three", options={"seed": 5},
            )  # fmt: skip
        except psycopg2.Error as error:
            found["error"] = error

    thread = threading.Thread(target=train)
    thread.start()
    seen = []
    while thread.is_alive():
        seen += flowers(
            "SELECT status, percent, hops_done, rows_per_second, seconds_left FROM run_progress"
            " WHERE run_name = 'first'"
        )
        thread.join(0.05)
    if not greenplum:
        flowers("DROP TRIGGER dawdle ON cerebro.hop; DROP FUNCTION dawdle()")
    assert "error" not in found, found
    notices = [notice.strip() for notice in connection.notices]
    connection.close()
    return Looked(found["run"], notices, seen)


A5_INFO = [
    ("mst_key", "integer"), ("model_id", "integer"), ("compile_params", "text"), ("fit_params", "text"),
    ("model_type", "text"), ("model_size", "double precision"), ("metrics_elapsed_time", "double precision[]"),
    ("metrics_type", "text[]"), ("loss_type", "text"), ("training_metrics_final", "double precision"),
    ("training_loss_final", "double precision"), ("training_metrics", "double precision[]"),
    ("training_loss", "double precision[]"), ("validation_metrics_final", "double precision"),
    ("validation_loss_final", "double precision"), ("validation_metrics", "double precision[]"),
    ("validation_loss", "double precision[]"),
]  # fmt: skip
A5_SUMMARY = [
    ("source_table", "text"), ("validation_table", "text"), ("model", "text"), ("model_info", "text"),
    ("dependent_varname", "text[]"), ("independent_varname", "text[]"), ("model_arch_table", "text"),
    ("model_selection_table", "text"), ("object_table", "text"), ("num_iterations", "integer"),
    ("metrics_compute_frequency", "integer"), ("warm_start", "boolean"), ("name", "text"), ("description", "text"),
    ("start_training_time", "timestamp without time zone"), ("end_training_time", "timestamp without time zone"),
    ("madlib_version", "text"), ("num_classes", "integer[]"), ("species_class_values", "text[]"),
    ("dependent_vartype", "text[]"), ("normalizing_const", "real"), ("metrics_iters", "integer[]"),
]  # fmt: skip


def test_the_tables_have_madlibs_columns(flowers: Lab, board: Looked) -> None:
    assert flowers.columns("out") == [
        ("mst_key", "integer"),
        ("model_weights", "bytea"),
        ("model_arch", "json"),
        ("__dist_key__", "integer"),
    ]
    assert flowers.columns("out_info")[: len(A5_INFO)] == A5_INFO
    assert flowers.columns("out_summary")[: len(A5_SUMMARY)] == A5_SUMMARY
    key = "SELECT indisprimary FROM pg_index WHERE indrelid = 'out_info'::regclass"
    assert flowers(key) == [(True,)]


def test_the_summary_says_what_was_asked_for(flowers: Lab, board: Looked) -> None:
    (found,) = flowers(
        "SELECT model, model_info, dependent_varname, model_selection_table, num_iterations, metrics_compute_frequency,"
        " warm_start, name, description, num_classes, species_class_values, metrics_iters,"
        " start_training_time < end_training_time, run FROM out_summary"
    )
    assert found == (
        f"{flowers.schema}.out", f"{flowers.schema}.out_info", ["species"], "mst", EPOCHS, EVERY,
        False, "first", "five on three", [3], ["setosa", "versicolor", "virginica"], [2, 3],
        True, board.run,
    )  # fmt: skip


def test_each_model_has_its_weights_and_its_numbers(flowers: Lab, board: Looked) -> None:
    rows = flowers(
        "SELECT mst_key, model_size, octet_length(model_weights), model_type, metrics_type, loss_type,"
        " metrics_elapsed_time, training_loss, training_metrics, validation_loss, validation_metrics,"
        " training_loss_final, training_metrics_final, validation_loss_final, validation_metrics_final"
        " FROM out_info JOIN out USING (mst_key) ORDER BY mst_key"
    )
    assert [row[0] for row in rows] == list(range(1, CONFIGURATIONS + 1))
    for key, size, payload, kind, metrics, loss, elapsed, *numbers in rows:
        units = 8 if key % 2 else 16
        assert payload == 4 * (4 * units + units + units * 3 + 3) and size == payload / 1024
        assert (kind, metrics, loss) == ("madlib_keras", ["accuracy"], "categorical_crossentropy")
        lists, finals = numbers[:4], numbers[4:]
        assert [len(one) for one in lists] == [2] * 4 and len(elapsed) == 2  # after epochs 2 and 3
        assert 0 < elapsed[0] < elapsed[1]
        assert [one[-1] for one in (lists[0], lists[1], lists[2], lists[3])] == finals
        assert all(np.isfinite(value) for one in lists for value in one)
    assert flowers.value("SELECT count(DISTINCT model_weights) FROM out") == CONFIGURATIONS


def test_each_configuration_visits_each_segment_once_per_epoch(flowers: Lab, board: Looked) -> None:
    visits = flowers("SELECT model, epoch, segment FROM hop WHERE run = %s", board.run)
    assert len(visits) == len(set(visits)) == CONFIGURATIONS * EPOCHS * SEGMENTS
    assert {(k - 1, e - 1, s) for k, e, s in visits} == set(np.ndindex(CONFIGURATIONS, EPOCHS, SEGMENTS))
    rows = flowers("SELECT model, epoch, sum(rows) FROM hop WHERE run = %s GROUP BY 1, 2", board.run)
    assert {total for _, _, total in rows} == {120}
    orders = flowers(
        "SELECT model, epoch, array_agg(segment ORDER BY hop) FROM hop WHERE run = %s GROUP BY 1, 2", board.run
    )
    assert len({(key, *order) for key, _, order in orders}) == CONFIGURATIONS  # the same order in each epoch
    # Configurations of equal size begin on different segments, as far as there are enough.
    for size in (0, 1):
        first = Counter(order[0] for key, epoch, order in orders if epoch == 1 and key % 2 == size)
        assert len(first) == min(SEGMENTS, first.total())
    numbered = flowers(
        "SELECT model, array_agg(hop ORDER BY finished_at) FROM hop WHERE run = %s GROUP BY 1", board.run
    )
    assert [hops for _, hops in numbered] == [list(range(1, EPOCHS * SEGMENTS + 1))] * CONFIGURATIONS


def test_nobody_is_in_two_places_at_once(flowers: Lab, board: Looked) -> None:
    units = (
        # In an order of their own, because Greenplum may compute the rows for a and for b anew.
        "WITH unit AS (SELECT row_number() OVER (ORDER BY configuration, started_at, segment, activity) AS n,"
        " segment, configuration, activity, started_at, finished_at"
        f" FROM hop_timeline WHERE run = {board.run})"
        " SELECT count(*) FROM unit a JOIN unit b ON a.n < b.n AND a.started_at < b.finished_at"
        " AND b.started_at < a.finished_at WHERE "
    )
    assert flowers.value(f"{units} true") > 0, "segments work at the same time"
    assert flowers.value(f"{units} a.segment = b.segment") == 0
    # The parts of one evaluation may run at the same time on several segments. A visit excludes all other units.
    assert flowers.value(f"{units} a.configuration = b.configuration AND 'train' IN (a.activity, b.activity)") == 0


def test_each_attempt_is_on_record_before_its_hop(flowers: Lab, board: Looked) -> None:
    assert flowers.value(
        "SELECT bool_and(a.started_at <= h.finished_at AND a.worker_pid = h.worker_pid) AND count(*) = %s"
        " FROM hop h JOIN attempt a USING (run, model, hop, segment) WHERE run = %s",
        CONFIGURATIONS * EPOCHS * SEGMENTS, board.run,
    )  # fmt: skip


def test_another_session_saw_it_go_on(board: Looked) -> None:
    running = [row for row in board.progress if row[0] == "running"]
    done = [row[2] for row in running]
    assert len(set(done)) >= 3 and done == sorted(done)
    percents = [row[1] for row in running if row[1] is not None]
    assert percents == sorted(percents) and any(0 < percent < 100 for percent in percents)
    assert any(row[3] and row[3] > 0 and row[4] is not None for row in running), "rows per second and an estimate"


def test_visits_after_the_last_heartbeat_count(flowers: Lab, board: Looked) -> None:
    """A heartbeat comes once per second, and a short run may end before the second one."""
    with contextlib.closing(flowers.connect()) as connection:
        run(connection, "BEGIN")
        run(connection, "UPDATE heartbeat SET rows_done = 0 WHERE run = %s", board.run)
        run(connection, "DELETE FROM event WHERE run = %s AND event = 'finished'", board.run)
        ((status, percent),) = run(connection, "SELECT status, percent FROM run_progress WHERE run = %s", board.run)
    assert status != "finished" and percent == 100.0


def test_a_run_is_extended_in_the_transaction_that_began_it(flowers: Lab) -> None:
    """Only the caller's own session sees the tables that the fit has made."""
    flowers(
        "CREATE TABLE first AS SELECT * FROM mst WHERE mst_key = 1; CREATE TABLE first_summary AS TABLE mst_summary"
    )
    with contextlib.closing(flowers.connect()) as connection:
        connection.autocommit = False
        number = run(connection, "SELECT madlib_fit_multiple_model('train', 'not_yet', 'first', 1)")[0][0]
        run(connection, "SELECT resume(%s, epochs => 2)", number)
        connection.commit()
    assert flowers("SELECT DISTINCT epoch FROM not_yet_info JOIN not_yet USING (mst_key)") == [(2,)]


def test_the_notices_tell_a_story(board: Looked) -> None:
    beginning, needs, *middle, end = board.notices
    assert beginning.startswith(f"NOTICE:  run {board.run}: 5 configurations x 3 segments x 3 epochs over 120 rows of ")
    assert "run_progress" in beginning
    assert "of disk for model states" in needs and "3 trainers" in needs
    assert all("%" in line and "rows/s" in line for line in middle)
    assert end.startswith(f"NOTICE:  run {board.run} finished: the best is configuration ") and "validation loss" in end
    assert all("\n" not in notice for notice in board.notices)


def test_the_views_agree(flowers: Lab, board: Looked) -> None:
    (progress,) = flowers(
        "SELECT status, percent, hops_done, hops_total, configurations_finished, configurations_failed,"
        " best_configuration,"
        " best_loss FROM run_progress WHERE run = %s", board.run
    )  # fmt: skip
    hops = CONFIGURATIONS * EPOCHS * SEGMENTS
    leaders = flowers(
        "SELECT rank, configuration, status, epochs_done, training_loss, training_metric, validation_loss,"
        " validation_metric,"
        " metric_name FROM leaderboard WHERE run = %s ORDER BY rank", board.run
    )  # fmt: skip
    assert progress == ("finished", 100.0, hops, hops, CONFIGURATIONS, 0, leaders[0][1], leaders[0][6])
    assert [row[0] for row in leaders] == list(range(1, CONFIGURATIONS + 1))
    assert [row[6] for row in leaders] == sorted(row[6] for row in leaders)
    assert {row[2:4] for row in leaders} == {("finished", EPOCHS)}
    info = flowers(
        "SELECT mst_key, training_loss_final, training_metrics_final, validation_loss_final, validation_metrics_final"
        " FROM out_info"
    )
    assert sorted(info) == sorted((row[1], *row[4:8]) for row in leaders)
    curve = flowers(
        "SELECT epoch, count(*), count(training_loss), count(validation_loss) FROM learning_curve WHERE run = %s"
        " GROUP BY epoch ORDER BY epoch", board.run
    )  # fmt: skip
    assert curve == [(1, 5, 5, 0), (2, 5, 5, 5), (3, 5, 5, 5)]
    units = dict(flowers("SELECT activity, count(*) FROM hop_timeline WHERE run = %s GROUP BY 1", board.run))
    assert units == {"train": hops, "evaluate": CONFIGURATIONS * 2 * SEGMENTS}


def test_the_time_adds_up(flowers: Lab, board: Looked) -> None:
    shares = flowers("SELECT activity, seconds, share FROM run_time WHERE run = %s ORDER BY position", board.run)
    assert sum(share for _, _, share in shares) == pytest.approx(1, abs=1e-9)
    assert all(seconds >= -1e-3 for _, seconds, _ in shares), shares
    stages = " - ".join(f"seconds_{one}" for one in ("reading", "state_in", "building", "training", "state_out"))
    left = flowers(
        f"SELECT activity, configuration, seconds - seconds_behind - {stages} FROM hop_timeline WHERE run = %s",
        board.run,
    )
    assert all(seconds >= -1e-3 for *_, seconds in left), sorted(left, key=lambda one: one[2])[:4]
    known = dict((activity, seconds) for activity, seconds, _ in shares)
    trained = flowers.value("SELECT sum((seconds ->> 'train')::float8) FROM hop WHERE run = %s", board.run)
    assert known["training"] == pytest.approx(trained) and trained > 0


def test_nothing_remains_but_what_the_result_needs(flowers: Lab, board: Looked) -> None:
    flowers.require_no_orphans()
    assert len(flowers.states(board.run)) == CONFIGURATIONS
    storage = flowers.value("SELECT storage FROM run WHERE run = %s", board.run)
    leaves = [name for (name,) in flowers(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
        " AND starts_with(relname, %s)", storage
    )]  # fmt: skip
    assert len(leaves) == 2
    rows = sorted(flowers.value(f"SELECT count(DISTINCT (model, hop)) FROM {leaf}") for leaf in leaves)
    assert rows == [0, CONFIGURATIONS]


def test_evaluating_gives_the_leaderboards_numbers(flowers: Lab, board: Looked) -> None:
    flowers("SELECT madlib_keras_evaluate('out', 'val', 'measured', false, 2)")
    (measured,) = flowers("SELECT loss, metric, metrics_type, loss_type FROM measured")
    (expected,) = flowers(
        "SELECT validation_loss, validation_metric FROM leaderboard WHERE run = %s AND configuration = 2", board.run
    )
    assert measured == (pytest.approx(expected[0], rel=1e-6), pytest.approx(expected[1]), ["accuracy"],
                        "categorical_crossentropy")  # fmt: skip


# -- predictions -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(flowers: Lab, board: Looked) -> np.ndarray:
    """The three probabilities of model 2 for each row of the garden, ordered by id, computed with NumPy."""
    weights = np.frombuffer(flowers.weights("out")[2], "f4")
    w1, b1, w2, b2 = np.split(weights, np.cumsum([4 * 16, 16, 16 * 3]))
    x = np.array(flowers(f"SELECT {INPUTS} FROM garden ORDER BY id"), "f4")
    scores = np.maximum(x @ w1.reshape(4, 16) + b1, 0) @ w2.reshape(16, 3) + b2
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def predict(lab: Lab, test: str, kind: Any = None, identity: str = "id", key: int = 2, **more: str) -> list[Any]:
    lab("DROP TABLE IF EXISTS said")
    cast = {str: "::text", int: "::integer", float: "::double precision"}.get(type(kind), "::text")
    lab(
        f"SELECT madlib_keras_predict(%s, %s, %s, %s, 'said', %s{cast}, false, %s)",
        more.get("model", "out"), test, identity, more.get("inputs", INPUTS), kind, key,
    )  # fmt: skip
    return lab(f"SELECT * FROM said ORDER BY {identity}, class_name {'' if kind == 'response' else ', rank'}")


CLASSES = ["setosa", "versicolor", "virginica"]


def test_probabilities_are_those_of_the_weights(flowers: Lab, plain: np.ndarray) -> None:
    said = predict(flowers, "garden")
    assert flowers.columns("said") == [
        ("id", "integer"), ("class_name", "text"), ("class_value", "text"), ("prob", "double precision"),
        ("rank", "integer"),
    ]  # fmt: skip
    assert len(said) == 90 and {row[1] for row in said} == {"species"}
    for place, row in enumerate(plain):
        mine = said[3 * place : 3 * place + 3]
        assert [one[0] for one in mine] == [5 * place] * 3 and [one[4] for one in mine] == [1, 2, 3]
        assert [one[2] for one in mine] == [CLASSES[k] for k in np.argsort(-row, kind="stable")]
        assert [one[3] for one in mine] == pytest.approx(sorted(row, reverse=True), rel=1e-4, abs=1e-6)


def test_the_best_classes_only(flowers: Lab, plain: np.ndarray) -> None:
    best = [CLASSES[k] for k in plain.argmax(1)]
    response = predict(flowers, "garden", "response")
    assert [name for name, _ in flowers.columns("said")] == ["id", "class_name", "class_value", "prob"]
    assert [row[2] for row in response] == best and [row[0] for row in response] == list(range(0, 150, 5))
    assert [row[3] for row in response] == pytest.approx(plain.max(1).tolist(), rel=1e-4)
    top = predict(flowers, "garden", 2)
    assert len(top) == 60 and [row[2] for row in top if row[4] == 1] == best
    threshold = 0.3
    assert np.abs(plain - threshold).min() > 1e-4
    above = predict(flowers, "garden", threshold)
    assert sorted((row[0], row[2]) for row in above) == sorted(
        (5 * place, CLASSES[k]) for place, k in zip(*np.nonzero(plain > threshold))
    )


IDS = {
    "bigint": "id::bigint * 10000000000", "text": "'it''s \"' || id", "numeric": "id / 4.0",
    "uuid": "md5(id::text)::uuid", "timestamp with time zone": "'2020-01-01 UTC'::timestamptz + id * interval '1s'",
}  # fmt: skip


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_type_come_back_as_they_were(flowers: Lab, plain: np.ndarray, kind: str) -> None:
    flowers(f"CREATE OR REPLACE TEMP VIEW identified AS SELECT {IDS[kind]} AS id, id AS number, {INPUTS} FROM garden")
    said = predict(flowers, "identified", "response")
    assert flowers.columns("said")[0] == ("id", kind)
    assert len(said) == 30
    joined = flowers("SELECT class_value FROM said JOIN identified USING (id) ORDER BY number")
    assert [value for (value,) in joined] == [CLASSES[k] for k in plain.argmax(1)]
    flowers("DROP VIEW identified")


def test_names_that_need_quotes(flowers: Lab, plain: np.ndarray) -> None:
    flowers(
        'CREATE TABLE "My %s Garden" AS SELECT id AS "Row ""Id""", sl AS "Sepal, length", sw AS "%%", pl AS "π", pw AS'
        ' "select" FROM garden'
    )
    said = predict(
        flowers, '"My %s Garden"', "response", identity='"Row ""Id"""', inputs='"Sepal, length", "%%", "π", "select"'
    )
    assert [row[2] for row in said] == [CLASSES[k] for k in plain.argmax(1)]
    flowers('DROP TABLE "My %s Garden"')


def test_rows_that_only_this_transaction_sees(flowers: Lab, plain: np.ndarray) -> None:
    with contextlib.closing(flowers.connect()) as connection:
        run(connection, "BEGIN; CREATE TEMP TABLE mine AS TABLE garden; DELETE FROM mine WHERE id >= 100")
        run(
            connection, f"SELECT madlib_keras_predict('out', 'mine', 'id', '{INPUTS}', 'passing', 'response', false, 2)"
        )
        said = run(connection, "SELECT class_value FROM passing ORDER BY id")
        run(connection, "ROLLBACK")
    assert [value for (value,) in said] == [CLASSES[k] for k in plain.argmax(1)[:20]]
    assert "passing" not in flowers.tables()


def test_a_team_says_what_one_trainer_says(flowers: Lab, plain: np.ndarray) -> None:
    """Several worker sessions predict a table of more than 4 MB; each session predicts a part."""
    flowers("CREATE TABLE big AS SELECT g.*, n, id * 1000 + n AS number FROM garden g, generate_series(1, 10) n")
    flowers("ALTER TABLE big ADD padding text; ALTER TABLE big ALTER padding SET STORAGE EXTERNAL")
    flowers("UPDATE big SET padding = repeat('x', 20000)")
    flowers("VACUUM FULL big")
    assert flowers.value("SELECT pg_total_relation_size('big') > 4 * 1024 * 1024")
    # A staging table of a long-failed transaction is removed. A recent one stays, as a session may still read it.
    fresh = f"predict_{int(time.time()):08x}_{'1' * 12}"
    flowers(f"CREATE TABLE cerebro_state.predict_00000001_{'0' * 12} (id text)")
    flowers(f"CREATE TABLE cerebro_state.{fresh} (id text)")
    with contextlib.closing(flowers.connect()) as connection:
        connection.notices = []
        thread_saw: list[int] = []
        done = threading.Event()

        def look() -> None:
            with contextlib.closing(flowers.connect()) as looker:
                while not done.wait(0.05):
                    found = run(
                        looker, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db seg%'"
                    )
                    thread_saw.append(found[0][0])

        looker_thread = threading.Thread(target=look)
        looker_thread.start()
        try:
            run(
                connection,
                f"SELECT madlib_keras_predict('out', 'big', 'number', '{INPUTS}', 'big_said', 'prob', false, 2)",
            )
        finally:
            done.set()
            looker_thread.join()
    assert max(thread_saw) >= 1, "there was a team"
    said = flowers("SELECT number / 1000 / 5, class_value, prob FROM big_said")
    assert len(said) == 900 and flowers.value("SELECT count(DISTINCT number) FROM big_said") == 300
    assert [row[2] for row in said] == pytest.approx([plain[place, CLASSES.index(value)] for place, value, _ in said],
                                                     rel=1e-4, abs=1e-6)  # fmt: skip
    flowers.require_no_orphans()
    assert flowers("SELECT relname FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace"
                   " AND relname LIKE 'predict%%'") == [(fresh,)]  # fmt: skip
    flowers(f"DROP TABLE cerebro_state.{fresh}")


# -- configurations that fail ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def troubled(flowers: Lab) -> Looked:
    """Two valid configurations and three that fail, on two segments."""
    flowers.pack("flowers", "pair", "species", INPUTS, segments=2, seed=2)
    sound = flowers.architecture(flower_model())
    wrong_units = flowers.architecture(flower_model(classes=5))
    wrong_layer = flowers.architecture(
        sequential([4], layer("Reshape", "shape", target_shape=[3, 3]), layer("Dense", "out", units=3))
    )
    adam = f"optimizer='Adam(lr=0.01)', {CROSS}"
    flowers.selection(
        "mixed",
        [
            (wrong_units, adam, FIT),
            (sound, f"optimizer='SGD(lr=1e38)', {CROSS}", FIT),
            (sound, adam, FIT),
            (wrong_layer, adam, FIT),
            (sound, adam, "batch_size=1000, epochs=3"),
        ],
    )
    flowers.told()
    run_id = flowers.fit(
        "pair", "sound", "mixed", 2, validation_table="val", options={"seed": 4, "deterministic": True}
    )
    return Looked(run_id, flowers.told())


def test_a_bad_configuration_fails_alone(flowers: Lab, troubled: Looked) -> None:
    assert flowers.status(troubled.run) == "finished"
    board = {
        key: (status, epochs, reason)
        for key, status, epochs, reason in flowers(
            "SELECT configuration, status, epochs_done, reason FROM leaderboard WHERE run = %s", troubled.run
        )
    }
    assert board[3] == ("finished", 2, None)
    assert all(board[key][0] == "failed" for key in (1, 2, 4)), board
    assert "5" in board[1][2] and "3" in board[1][2]  # the units of the layer, and the units that it needs
    assert "loss became nan" in board[2][2]
    assert "reshape" in board[4][2].lower() or "shape" in board[4][2].lower()
    assert flowers.value("SELECT configuration FROM leaderboard WHERE run = %s AND rank = 1", troubled.run) in (3, 5)
    told = "\n".join(line for line in troubled.notices if line.startswith("WARNING"))
    assert all(f"configuration {key} failed: " in told for key in (1, 2, 4)) and "configuration 3 " not in told


def test_the_result_says_so(flowers: Lab, troubled: Looked) -> None:
    assert {key for (key,) in flowers("SELECT mst_key FROM sound")} == {3, 5}
    info = dict(flowers("SELECT mst_key, status FROM sound_info"))
    assert info == {1: "failed", 2: "failed", 3: "finished", 4: "failed", 5: "finished"}
    assert flowers.value("SELECT count(*) FROM sound_info WHERE status = 'failed' AND reason IS NULL") == 0
    progress = flowers(
        "SELECT configurations_finished, configurations_failed, percent FROM run_progress WHERE run = %s", troubled.run
    )
    assert progress == [(2, 3, 100.0)]


def test_a_replay_has_the_same_bits(flowers: Lab, troubled: Looked) -> None:
    """A replay without the validation has the same bits: validation does not influence the training."""
    again = flowers.fit("pair", "again", "mixed", 2, options={"replay": troubled.run})
    assert flowers.weights("again") == flowers.weights("sound")
    assert flowers.states(again)[3] == flowers.states(troubled.run)[3]
    assert flowers.value("SELECT seed FROM run WHERE run = %s", again) == 4


def test_when_all_fail_so_does_the_run(flowers: Lab, troubled: Looked) -> None:
    flowers("CREATE TABLE doomed AS SELECT * FROM mixed WHERE mst_key IN (2); CREATE TABLE doomed_summary AS TABLE"
            " mixed_summary")  # fmt: skip
    with pytest.raises(psycopg2.Error, match="every configuration failed") as caught:
        flowers.fit("pair", "none", "doomed", 1)
    assert caught.value.diag.message_hint
    assert not {name for name in flowers.tables() if name.startswith("none")}
    assert flowers.status(flowers.value("SELECT max(run) FROM run")) == "failed"
    flowers.require_no_orphans()


# -- initial states --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_segment(flowers: Lab) -> int:
    """Two configurations on one segment.  The second has no finite loss, and the option ``nan`` lets it continue."""
    flowers.pack("flowers", "whole", "species", INPUTS, segments=1, seed=3)
    model = flowers.architecture(flower_model())
    flowers.selection(
        "two",
        [(model, f"optimizer='Adam(lr=0.01)', {CROSS}", FIT), (model, f"optimizer='SGD(lr=1e38)', {CROSS}", FIT)],
    )
    return flowers.fit("whole", "lone", "two", 2, options={"nan": "keep"})


@pytest.mark.parametrize("evaluated", landing([False, True], True))  # then another model comes between, too
def test_models_of_one_program_take_turns_in_memory(flowers: Lab, one_segment: int, evaluated: bool) -> None:
    """Between two visits of a model another one has replaced its state in the trainer; it is sent again."""
    flowers(
        "CREATE TABLE IF NOT EXISTS six AS SELECT n AS mst_key, model_id, compile_params, fit_params"
        " FROM two, generate_series(1, 6) n WHERE mst_key = 1"
    )
    flowers("CREATE TABLE IF NOT EXISTS six_summary AS TABLE two_summary")
    more = {"validation_table": "whole", "metrics_compute_frequency": 1} if evaluated else {}
    run_id = flowers.fit("whole", f"turns_{evaluated}".lower(), "six", 4, **more)
    assert flowers("SELECT DISTINCT status, reason FROM leaderboard WHERE run = %s", run_id) == [("finished", None)]
    assert flowers.value("SELECT count(*) FROM event WHERE run = %s AND event LIKE '%%failed'", run_id) == 0
    assert {steps(flowers, run_id, model) for model in range(1, 7)} == {4 * 8}


def test_metrics_with_a_value_per_class(flowers: Lab, one_segment: int) -> None:
    """The views show their mean, and the log keeps each value; other configurations are not affected."""
    flowers("CREATE TABLE per_class AS TABLE two; CREATE TABLE per_class_summary AS TABLE two_summary")
    flowers("UPDATE per_class SET compile_params = replace(compile_params, 'accuracy', 'f1_score') WHERE mst_key = 1")
    flowers(
        "UPDATE per_class SET compile_params = 'optimizer=''SGD(lr=0.01)'', loss=''categorical_crossentropy'',"
        " metrics=[''FalsePositives(thresholds=[0.2,0.5])'', ''accuracy'']' WHERE mst_key = 2"
    )
    # Some random weights make every class wrong: then F1 is 0.
    more = {"validation_table": "whole", "metrics_compute_frequency": 1, "options": {"seed": 4}}
    run_id = flowers.fit("whole", "per_class_models", "per_class", 2, **more)
    assert flowers("SELECT DISTINCT status, reason FROM leaderboard WHERE run = %s", run_id) == [("finished", None)]
    for table in ("hop", "evaluation"):
        rows = flowers(f"SELECT model, metric, metrics FROM {table} WHERE run = %s AND metrics <> '{{}}'", run_id)
        assert {model for model, *_ in rows} == {1, 2}
        for model, metric, metrics in rows:
            (values,) = [value for value in metrics.values() if isinstance(value, list)]
            assert len(values) == {1: 3, 2: 2}[model] and metric == pytest.approx(sum(values) / len(values))
    shown = "SELECT training_metric, validation_metric FROM leaderboard WHERE run = %s AND configuration = 1"
    ((training, validation),) = flowers(shown, run_id)
    assert 0 < training <= 1 and 0 < validation <= 1
    flowers("SELECT madlib_keras_evaluate('per_class_models', 'whole', 'per_class_seen', NULL, 1)")
    assert 0 < flowers.value("SELECT metric FROM per_class_seen") <= 1


def steps(lab: Lab, run_id: int, key: int) -> int:
    """The optimizer's step counter in the model's whole state."""
    tensors = safetensors.numpy.load(lab.states(run_id)[key])
    (counter,) = [value for name, value in tensors.items() if name.endswith("/iteration")]
    return int(counter)


def test_one_segment(flowers: Lab, one_segment: int) -> None:
    hops = flowers("SELECT model, epoch, segment, rows FROM hop WHERE run = %s ORDER BY 1, 2", one_segment)
    assert hops == [(key, epoch, 0, 120) for key in (1, 2) for epoch in (1, 2)]
    assert steps(flowers, one_segment, 1) == 2 * 8  # 120 rows in batches of 16


@pytest.mark.tensorflow  # JAX's loss stays finite
def test_a_loss_that_is_not_finite_may_be_kept(flowers: Lab, one_segment: int) -> None:
    assert flowers("SELECT configuration, status FROM leaderboard WHERE run = %s ORDER BY 1", one_segment) == [
        (1, "finished"), (2, "finished"),
    ]  # fmt: skip
    assert not np.isfinite(flowers.value("SELECT training_loss_final FROM lone_info WHERE mst_key = 2"))
    assert flowers.value("SELECT configuration FROM leaderboard WHERE run = %s AND rank = 1", one_segment) == 1


def test_a_warm_start_takes_the_whole_state_or_the_weights(flowers: Lab, one_segment: int) -> None:
    flowers("CREATE TABLE one AS SELECT * FROM two WHERE mst_key = 1; CREATE TABLE one_summary AS TABLE two_summary")
    before = steps(flowers, one_segment, 1)
    flowers.told()
    warm = flowers.fit("whole", "lone", "one", 1, warm_start=True)
    assert not any("weights alone" in line for line in flowers.told())
    assert flowers.value("SELECT initial FROM model WHERE run = %s", warm) == "full"
    assert steps(flowers, warm, 1) == before + 8
    assert flowers("SELECT mst_key FROM lone") == [(1,)] and flowers.value("SELECT warm_start FROM lone_summary")
    # After a change of the weights, the optimizer's state does not belong to them any more.
    flowers("UPDATE lone SET model_weights = set_byte(model_weights, 0, get_byte(model_weights, 0) # 1)")
    edited = flowers.fit("whole", "lone", "one", 1, warm_start=True)
    assert any("weights alone for configuration 1" in line for line in flowers.told())
    assert flowers.value("SELECT initial FROM model WHERE run = %s", edited) == "weights"
    assert steps(flowers, edited, 1) == 8


# -- kinds of data ---------------------------------------------------------------------------------------------


def test_transfer_learning_and_regression(flowers: Lab) -> None:
    """With given weights and a learning rate of 0, the expected results can be computed with NumPy."""
    random = np.random.default_rng(1)
    x = random.normal(size=(90, 3)).astype("f4")
    y = (x @ [1.0, -2.0, 0.5] + 3 + random.normal(size=90)).astype("f8")
    rows = [(n, *map(float, x[n]), float(y[n])) for n in range(90)]
    flowers.table("houses", {"id": "int", "a": "real", "b": "real", "c": "real", "price": "double precision"}, rows)
    flowers.pack("houses", "houses_packed", "price", "a, b, c", segments=3, seed=1)
    weights = np.array([0.5, -1.0, 2.0, 0.25], "f4")
    model = flowers.architecture(sequential([3], layer("Dense", "out", units=1)), weights.tobytes())
    flowers.selection("house_mst", [(model, "optimizer='SGD(lr=0.0)', loss='mse', metrics=['mae']", "batch_size=7")])
    run_id = flowers.fit("houses_packed", "valued", "house_mst", 1)
    assert flowers.weights("valued") == {1: weights.tobytes()}
    assert flowers.value("SELECT initial FROM model WHERE run = %s", run_id) == "weights"
    expected = x @ weights[:3] + weights[3]
    loss, mae = flowers("SELECT training_loss_final, training_metrics_final FROM valued_info")[0]
    assert loss == pytest.approx(np.mean((expected - y) ** 2), rel=1e-5)
    assert mae == pytest.approx(np.mean(np.abs(expected - y)), rel=1e-5)
    flowers("SELECT madlib_keras_predict('valued', 'houses', 'id', 'a, b, c', 'values', 'prob', false, 1)")
    assert [name for name, _ in flowers.columns("values")] == ["id", "estimated_price"]
    said = flowers('SELECT estimated_price FROM "values" ORDER BY id')
    assert [value for (value,) in said] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    flowers("SELECT madlib_keras_evaluate('valued', 'houses_packed', 'house_loss', false, 1)")
    assert flowers.value("SELECT loss FROM house_loss") == pytest.approx(loss, rel=1e-6)


def test_several_inputs_and_outputs_sequences_and_a_binary_class(flowers: Lab) -> None:
    """Inputs: numbers and sequences.  Outputs: a class with a sparse loss, and a boolean with a sigmoid."""
    columns = c.made_up(120, 2)
    words, facts = columns["words"], columns["facts"]
    rows = [
        (n, words[n].tolist(), facts[n].tolist(), ["sad", "so", "glad"][words[n, 0] % 3], bool(facts[n, 0] > 0))
        for n in range(120)
    ]
    kinds = {"id": "int", "words": "int[]", "facts": "real[]", "mood": "text", "cheap": "boolean"}
    flowers.table("letters", kinds, rows)
    flowers.pack("letters", "letters_packed", "mood, cheap", "words, facts", segments=SEGMENTS, seed=1)
    both = c.functional(
        [
            (c.input_layer([6], "int32", name="words"), []),
            (c.input_layer([4], name="facts"), []),
            (c.layer("Embedding", "embed", input_dim=20, output_dim=4), ["words"]),
            (c.layer("LSTM", "lstm", units=6), ["embed"]),
            (c.layer("Dense", "mood", units=3, activation="softmax"), ["lstm"]),
            (c.layer("Dense", "cheap", units=1, activation="sigmoid"), ["facts"]),
        ],
        ["words", "facts"],
        ["mood", "cheap"],
    )
    compiled = {
        "optimizer": {"class_name": "Adam", "config": {"learning_rate": 0.05}},
        "loss": ["sparse_categorical_crossentropy", "binary_crossentropy"],
        "metrics": [["accuracy"], ["accuracy"]],
    }
    flowers.selection("letter_mst", [(flowers.architecture(both), json.dumps(compiled), "batch_size=8, epochs=2")])
    run_id = flowers.fit("letters_packed", "read", "letter_mst", 4, options={"seed": 2})
    first, last = flowers(
        "SELECT training_loss FROM learning_curve WHERE run = %s AND epoch IN (1, 4) ORDER BY epoch", run_id
    )
    assert last[0] < 0.7 * first[0], "it learns"
    said = predict(flowers, "letters", "response", key=1, model="read", inputs="words, facts")
    assert len(said) == 240 and {row[1] for row in said} == {"mood", "cheap"}
    right = {"mood": 0, "cheap": 0}
    for identity, name, value, prob in said:
        right[name] += value == (rows[identity][3] if name == "mood" else str(rows[identity][4]).lower())
        assert 1 / 3 <= prob <= 1 if name == "mood" else 0.5 <= prob <= 1
    assert right["mood"] > 60 and right["cheap"] > 100, right
    assert {row[2] for row in said if row[1] == "cheap"} <= {"true", "false"}
    assert flowers.value("SELECT num_classes FROM read_summary") == [3, 2]


def test_nothing_was_left_running(flowers: Lab) -> None:
    eventually(lambda: not flowers.sessions(), 15, "no session of ours")
    assert not flowers.trainers()
    eventually(lambda: not flowers.abandoned(), 15, "workers take their files away")


def test_given_weights_larger_than_a_page(flowers: Lab) -> None:
    """The given weights are in the state table in larger pieces than stored states."""
    rng = np.random.default_rng(3)
    shapes = ((4, 3000), (3000,), (3000, 3), (3,))
    weights = b"".join(rng.normal(size=shape).astype("<f4").tobytes() for shape in shapes)
    model = flowers.architecture(flower_model(units=3000), weights)
    flowers.selection("given", [(model, f"optimizer='SGD(lr=0.0)', {CROSS}", "batch_size=32, epochs=1")])
    flowers.fit("train", "as_given", "given", 1)
    assert flowers.weights("as_given") == {1: weights}
    flowers.fit("train", "as_given", "given", 1, warm_start=True)
    assert flowers.weights("as_given") == {1: weights}

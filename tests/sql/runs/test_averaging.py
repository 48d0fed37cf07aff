"""madlib_keras_fit on several segments: a replica trains on each of them, and every iteration averages the weights."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg2
import pytest
from psycopg2 import errors

from tests.sql.lab import Json, Lab, eventually, flower_model, layer, run, sequential
from tests.thorough import landing

SEGMENTS, ROWS, ITERATIONS, RATE, MOMENTUM, BATCH, EPOCHS = 3, 8, 4, 0.5, 0.9, 2, 2
PARAMS = f"$$loss='categorical_crossentropy',optimizer='SGD(lr={RATE}, momentum={MOMENTUM})',metrics=['accuracy']$$"
FIT = f"'batch_size={BATCH}, epochs={EPOCHS}, shuffle=False'"
PACK = "SELECT cerebro.pack_plain('points', %s, 'label', 'x', segments => %s, seed => 1)"
SLOW = "$$loss='categorical_crossentropy',optimizer='Adam(lr=0.01)'$$, 'batch_size=1, epochs=8'"

Rows = tuple[np.ndarray, np.ndarray]
Weights = list[np.ndarray]


# -- plain NumPy -----------------------------------------------------------------------------------------------


def softmax(weights: Weights, x: np.ndarray) -> np.ndarray:
    raised = np.exp(x @ weights[0] + weights[1])
    return raised / raised.sum(axis=1, keepdims=True)


def loss_of(weights: Weights, rows: list[Rows]) -> float:
    x, y = (np.concatenate([part[at] for part in rows]) for at in (0, 1))
    return float(-np.mean(np.sum(y * np.log(softmax(weights, x)), axis=1)))


def trained(weights: Weights, velocity: Weights, rows: Rows) -> tuple[Weights, Weights]:
    """One replica after its visit: batches in the order in which the rows lie."""
    weights, velocity = [w.copy() for w in weights], [v.copy() for v in velocity]
    for _ in range(EPOCHS):
        for start in range(0, len(rows[0]), BATCH):
            x, y = rows[0][start : start + BATCH], rows[1][start : start + BATCH]
            error = (softmax(weights, x) - y) / len(x)
            for at, gradient in enumerate((x.T @ error, error.sum(axis=0))):
                velocity[at] = MOMENTUM * velocity[at] - RATE * gradient
                weights[at] += velocity[at]
    return weights, velocity


def averages(weights: Weights, parts: list[Rows], iterations: int, *, weighted: bool = True) -> list[Weights]:
    """The averaged weights after each iteration; the momentum is averaged, too."""
    velocity, found = [np.zeros_like(w) for w in weights], []
    shares = [len(x) if weighted else 1 for x, _ in parts]
    for _ in range(iterations):
        replicas = [trained(weights, velocity, rows) for rows in parts]
        weights, velocity = (
            [np.average([replica[what][at] for replica in replicas], axis=0, weights=shares) for at in (0, 1)]
            for what in (0, 1)
        )
        found.append(weights)
    return found


# -- the same in the database ----------------------------------------------------------------------------------


def parts_of(db: Any, table: str, columns: tuple[str, str] = ("x", "label")) -> list[Rows]:
    """The packed rows of each segment, as they lie."""
    found: dict[int, list[Rows]] = {}
    for key, x, y in run(
        db, f"SELECT __dist_key__, {columns[0]}, {columns[1]} FROM {table} ORDER BY __dist_key__, buffer_id"
    ):
        xs = np.frombuffer(x, "<f4").reshape(-1, 4).astype("float64")
        found.setdefault(key, []).append((xs, np.frombuffer(y, "<i2").reshape(-1, 3).astype("float64")))
    return [tuple(np.concatenate([one[at] for one in buffers]) for at in (0, 1)) for buffers in found.values()]  # type: ignore[misc]


def weights_of(db: Any, table: str = "model") -> Weights:
    flat = np.frombuffer(run(db, f"SELECT model_weights FROM {table}")[0][0], "<f4")
    return [flat[:12].reshape(4, 3), flat[12:]]


def require_close(found: Weights, expected: Weights) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def run_of(lab: Lab, table: str) -> int:
    return lab.value("SELECT max(run) FROM run WHERE model_table LIKE %s", f"%.{table}")


def stored(lab: Lab, run_id: int) -> dict[str, set[int]]:
    """The tables of a run's states, and the hops whose states they have."""
    storage = lab.value("SELECT storage FROM run WHERE run = %s", run_id)
    names = lab("SELECT relname::text FROM pg_class WHERE starts_with(relname::text, %s) AND relkind = 'r'", storage)
    return {
        name.removeprefix(storage): {hop for (hop,) in lab(f'SELECT DISTINCT hop FROM cerebro_state."{name}"')}
        for (name,) in names
    }


@dataclass
class Fitted:
    run: int
    start: Weights
    parts: list[Rows]
    validation: list[Rows]
    averages: list[Weights]


@pytest.fixture(scope="module")
def points(madlib: Lab) -> Lab:
    chance = np.random.default_rng(3)
    data = [(n, chance.normal(size=4).astype("f4").tolist(), "abc"[int(chance.integers(3))]) for n in range(ROWS)]
    madlib.table("points", {"id": "int", "x": "real[]", "label": "text"}, data)
    madlib.table("more_points", {"id": "int", "x": "real[]", "label": "text"}, data[:5])
    madlib(PACK, "packed", SEGMENTS)
    madlib("SELECT cerebro.pack_like('more_points', 'packed_val', 'label', 'x', 'packed')")
    start = chance.normal(size=15).astype("<f4").tobytes()
    madlib.architecture(sequential([4], layer("Dense", "out", units=3, activation="softmax")), start)
    madlib.architecture(flower_model())
    return madlib


def start_of(lab: Lab) -> Weights:
    flat = np.frombuffer(lab.value("SELECT model_weights FROM arch WHERE model_id = 1"), "<f4").astype("float64")
    return [flat[:12].reshape(4, 3), flat[12:]]


@pytest.fixture(scope="module")
def fitted(points: Lab) -> Fitted:
    points(
        f"SELECT madlib.madlib_keras_fit('packed', 'model', 'arch', 1, {PARAMS}, {FIT}, {ITERATIONS}, FALSE,"
        " 'packed_val', 2)"
    )
    start, parts = start_of(points), parts_of(points.db, "packed")
    validation = parts_of(points.db, "packed_val")
    return Fitted(run_of(points, "model"), start, parts, validation, averages(start, parts, ITERATIONS))


def test_the_weights_are_the_average_of_numpy(points: Lab, fitted: Fitted) -> None:
    sizes = [len(x) for x, _ in fitted.parts]
    assert len(sizes) >= 2 and len(set(sizes)) > 1, "unequal parts"
    require_close(weights_of(points.db), fitted.averages[-1])
    others = averages(fitted.start, fitted.parts, ITERATIONS, weighted=False)[-1]
    assert np.abs(others[0] - fitted.averages[-1][0]).max() > 1e-3, "without weights it would be noticed"


def test_the_figures_are_those_of_the_averages(points: Lab, fitted: Fitted) -> None:
    """metrics_compute_frequency is 2: after the second and the last iteration."""
    (told,) = points("SELECT training_loss, validation_loss, metrics_iters, training_loss_final, validation_loss_final,"
                     " training_metrics_final FROM model_summary")  # fmt: skip
    evaluated = [fitted.averages[1], fitted.averages[3]]
    assert told[0] == pytest.approx([loss_of(one, fitted.parts) for one in evaluated], abs=1e-5)
    assert told[1] == pytest.approx([loss_of(one, fitted.validation) for one in evaluated], abs=1e-5)
    assert told[2:5] == ([2, 4], told[0][-1], told[1][-1])
    x, y = (np.concatenate([part[at] for part in fitted.parts]) for at in (0, 1))
    right = np.mean(softmax(evaluated[-1], x).argmax(axis=1) == y.argmax(axis=1))
    assert told[5] == pytest.approx(right)
    points("SELECT madlib.madlib_keras_evaluate('model', 'packed_val', 'judged')")
    assert points.value("SELECT loss FROM judged") == pytest.approx(told[4], abs=1e-6)


def test_the_log_has_replicas_and_averages(points: Lab, fitted: Fitted) -> None:
    segments = len(fitted.parts)
    hops = points("SELECT epoch, kind, segment, rows, hop FROM hop WHERE run = %s ORDER BY hop", fitted.run)
    assert len(hops) == ITERATIONS * (segments + 1)
    for epoch in range(ITERATIONS):
        first = epoch * (segments + 1)
        expected = [
            (epoch + 1, "train replica", at, EPOCHS * len(x), first + at + 1) for at, (x, _) in enumerate(fitted.parts)
        ]
        assert hops[first : first + segments + 1] == [*expected, (epoch + 1, "average", 0, 0, first + segments + 1)]
    # The training loss of an iteration is that of all replicas while they train.
    curve = points(
        "SELECT c.epoch, c.training_loss, c.rows, (SELECT sum(loss * rows) / sum(rows) FROM hop h WHERE h.run = c.run"
        " AND h.epoch = c.epoch AND h.kind = 'train replica'), (SELECT loss FROM hop h WHERE h.run = c.run AND"
        " h.epoch = c.epoch AND h.kind = 'average') FROM learning_curve c WHERE run = %s ORDER BY 1",
        fitted.run,
    )
    assert [(epoch, rows) for epoch, _, rows, *_ in curve] == [(e, EPOCHS * ROWS) for e in range(1, ITERATIONS + 1)]
    for _, loss, _, replicas, average in curve:
        assert loss == pytest.approx(replicas) == pytest.approx(average, rel=1e-5)


def test_the_views_make_sense(points: Lab, fitted: Fitted) -> None:
    hops = ITERATIONS * (len(fitted.parts) + 1)
    assert points("SELECT status, percent, hops_done, hops_total, configurations_finished FROM run_progress"
                  " WHERE run = %s", fitted.run) == [("finished", 100.0, hops, hops, 1)]  # fmt: skip
    assert points("SELECT status, epochs_done, rank FROM leaderboard WHERE run = %s", fitted.run) == [
        ("finished", ITERATIONS, 1)
    ]
    counted = points("SELECT activity, count(*)::int FROM hop_timeline WHERE run = %s GROUP BY 1", fitted.run)
    assert dict(counted) == {
        "train": ITERATIONS * len(fitted.parts),
        "average": ITERATIONS,
        "evaluate": 2 * (len(fitted.parts) + len(fitted.validation)),
    }
    now = points("SELECT segment, epoch, done FROM segments_now WHERE run = %s ORDER BY 1", fitted.run)
    assert now == [(at, ITERATIONS, True) for at in range(len(fitted.parts))]
    spent = points("SELECT activity, seconds, share FROM run_time WHERE run = %s", fitted.run)
    assert min(seconds for _, seconds, _ in spent) > -0.01 and sum(share for *_, share in spent) == pytest.approx(1)
    measured = points("SELECT dataset, count(DISTINCT epoch)::int FROM metrics WHERE run = %s GROUP BY 1", fitted.run)
    assert dict(measured) == {"training": ITERATIONS, "training, after": 2, "validation": 2}


def test_only_the_last_state_stays(points: Lab, fitted: Fitted) -> None:
    states = stored(points, fitted.run)
    assert states.keys() == {"_shared_0", "_shared_1"}
    assert set().union(*states.values()) == {ITERATIONS * (len(fitted.parts) + 1)}


def test_a_warm_start_begins_with_the_average(points: Lab, fitted: Fitted) -> None:
    points("CREATE TABLE warm AS SELECT * FROM model")
    points("CREATE TABLE warm_summary AS SELECT * FROM model_summary")
    points(f"SELECT madlib.madlib_keras_fit('packed', 'warm', 'arch', 1, {PARAMS}, {FIT}, 2, FALSE, NULL, 1, TRUE)")
    require_close(weights_of(points.db, "warm"), averages(weights_of(points.db), fitted.parts, 2)[-1])
    assert points.value("SELECT cardinality(training_loss) FROM warm_summary") == 2


def test_in_the_open_transaction(points: Lab) -> None:
    """Where no worker sees the rows, one replica trains after the other: the numbers are the same."""
    with contextlib.closing(points.connect()) as mine:
        run(mine, "BEGIN")
        run(mine, PACK, "fresh", SEGMENTS)
        run(mine, f"SELECT madlib.madlib_keras_fit('fresh', 'inside', 'arch', 1, {PARAMS}, {FIT}, 3)")
        require_close(weights_of(mine, "inside"), averages(start_of(points), parts_of(mine, "fresh"), 3)[-1])
        assert run(mine, "SELECT training_loss_final IS NOT NULL FROM inside_summary") == [(True,)]
        run(mine, "COMMIT")
    run_id = run_of(points, "inside")
    assert points.value("SELECT count(*) FROM hop WHERE run = %s AND kind = 'average'", run_id) == 3
    assert set().union(*stored(points, run_id).values()) == {3 * (SEGMENTS + 1)}


def branched() -> Json:
    """Two inputs and two outputs, with BatchNormalization."""

    def call(*names: str) -> list[Any]:
        tensor = [
            {
                "class_name": "__keras_tensor__",
                "config": {"shape": [None, 2], "dtype": "float32", "keras_history": [name, 0, 0]},
            }
            for name in names
        ]
        return [{"args": [tensor if len(tensor) > 1 else tensor[0]], "kwargs": {}}]

    def placed(made: Json, *names: str) -> Json:
        return {**made, "name": made["config"]["name"], "inbound_nodes": call(*names) if names else []}

    first, second = (layer("InputLayer", name, batch_shape=[None, 2], dtype="float32") for name in ("sepal", "petal"))
    layers = [
        placed(first), placed(second), placed(layer("Concatenate", "both"), "sepal", "petal"),
        placed(layer("BatchNormalization", "even", momentum=0.5), "both"),
        placed(layer("Dense", "species", units=3, activation="softmax"), "even"),
        placed(layer("Dense", "big", units=2, activation="softmax"), "even"),
    ]  # fmt: skip
    ends = {"input_layers": [["sepal", 0, 0], ["petal", 0, 0]], "output_layers": [["species", 0, 0], ["big", 0, 0]]}
    return {
        "module": "keras.src.models.functional",
        "class_name": "Functional",
        "config": {"name": "two", "layers": layers, **ends},
    }


@pytest.mark.thorough  # tests/nn/test_averaging.py averages several inputs and outputs, and BatchNormalization
def test_several_inputs_and_outputs(points: Lab) -> None:
    points.iris(SEGMENTS)
    points("CREATE TABLE two AS SELECT id, ARRAY[sl, sw] AS sepal, ARRAY[pl, pw] AS petal, species,"
           " CASE WHEN sl > 5.8 THEN 'yes' ELSE 'no' END AS big FROM flowers")  # fmt: skip
    points("SELECT cerebro.pack_plain('two', 'two_packed', 'species, big', 'sepal, petal',"
           " segments => %s, seed => 1)", SEGMENTS)  # fmt: skip
    number = points.architecture(branched())
    points("SELECT madlib.madlib_keras_fit('two_packed', 'two_model', 'arch', %s, $$loss='categorical_crossentropy',"
           " optimizer='Adam(lr=0.02)', metrics=['accuracy']$$, 'batch_size=8', 5)", number)  # fmt: skip
    points("SELECT madlib.madlib_keras_evaluate('two_model', 'two_packed', 'two_judged')")
    ((final, first), (judged,)) = (
        points("SELECT training_loss_final, training_loss[1] FROM two_model_summary")[0],
        points("SELECT loss FROM two_judged")[0],
    )
    assert final == pytest.approx(judged, abs=1e-5) and final == first < 1.7  # 1.79 is the loss of guessing


@pytest.mark.parametrize("segments", landing([2, 3], 3))
def test_large_states_are_freed_as_training_goes_on(points: Lab, segments: int) -> None:
    """States of 2 MB: old ones go in the transaction that replaces them, those of the replicas, too."""
    if "flowers" not in points.tables():
        points.iris(SEGMENTS)
    packed, output = f"large_packed_{segments}", f"large_{segments}"
    points.pack("flowers", packed, "species", "sl, sw, pl, pw", segments=segments, seed=1)
    number = points.architecture(flower_model(60_000))
    points("SELECT madlib.madlib_keras_fit(%s, %s, 'arch', %s, $$loss='categorical_crossentropy',"
           " optimizer='SGD(lr=0.01)'$$, 'batch_size=32', 5, FALSE, NULL, 1)", packed, output, number)  # fmt: skip
    run_id = run_of(points, output)
    last = points.value("SELECT max(hop) FROM hop WHERE run = %s", run_id)
    assert points.value("SELECT min(state_bytes) FROM hop WHERE run = %s", run_id) > 1 << 20
    assert set().union(*stored(points, run_id).values()) == {last}
    losses = points.value(f"SELECT training_loss FROM {output}_summary")
    assert len(losses) == 5 and losses[-1] < losses[0]
    storage = points.value("SELECT storage FROM run WHERE run = %s", run_id)
    points("SELECT cerebro.forget(%s)", run_id)
    assert not points("SELECT relname FROM pg_class WHERE starts_with(relname::text, %s)", storage)


# -- what goes wrong ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def repeatable(lab: Lab) -> Iterator[None]:
    """Runs that begin now are deterministic: their options on record say so, which MADlib's arguments cannot."""
    lab("CREATE FUNCTION same_run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seed := 9; NEW.options :="
        ' NEW.options || \'{"deterministic": true, "seed": 9, "threads": 1}\'; RETURN NEW; END $$')  # fmt: skip
    lab("CREATE FUNCTION same_model() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seed := 11; RETURN NEW; END $$")
    for table in ("run", "model"):
        lab(f"CREATE TRIGGER same BEFORE INSERT ON cerebro.{table} FOR EACH ROW EXECUTE FUNCTION same_{table}()")
    try:
        yield
    finally:
        for table in ("run", "model"):
            lab(f"DROP TRIGGER same ON cerebro.{table}; DROP FUNCTION same_{table}()")


class Caller(threading.Thread):
    """A statement in a session of its own; without one, a fit of three replicas whose visits take a moment."""

    def __init__(self, lab: Lab, output: str, statement: str | None = None, iterations: int = 3) -> None:
        super().__init__(daemon=True)
        self.connection = lab.connect()
        self.pid = self.connection.info.backend_pid
        self.error: psycopg2.Error | None = None
        fit = f"SELECT madlib.madlib_keras_fit('train', '{output}', 'arch', 2, {SLOW}, {iterations})"
        self.statement = statement or fit
        self.start()

    def run(self) -> None:
        try:
            run(self.connection, self.statement)
        except psycopg2.Error as error:
            self.error = error

    def done(self) -> Caller:
        self.join(120)
        assert not self.is_alive()
        return self


def hashes(lab: Lab, run_id: int) -> list[Any]:
    return lab("SELECT hop, segment, state_sha256 FROM hop WHERE run = %s ORDER BY hop", run_id)


@pytest.fixture(scope="module")
def calm(points: Lab) -> Iterator[int]:
    """A deterministic run that nothing disturbs."""
    if points.greenplum:
        pytest.skip("Greenplum has no triggers that change rows")
    if "flowers" not in points.tables():
        points.iris(SEGMENTS)
    with repeatable(points):
        assert Caller(points, "calm").done().error is None
        yield run_of(points, "calm")


@pytest.mark.throw_away
def test_all_segments_train_at_the_same_time(points: Lab, calm: int) -> None:
    together = points(
        "SELECT epoch, max(started_at) < min(finished_at) FROM hop WHERE run = %s AND kind = 'train replica'"
        " AND epoch > 1 GROUP BY 1 ORDER BY 1",
        calm,
    )
    assert together == [(2, True), (3, True)]
    after = points(
        "SELECT bool_and(a.started_at >= c.finished_at) FROM hop a JOIN hop c USING (run, epoch) WHERE run = %s"
        " AND a.kind = 'average' AND c.kind = 'train replica'",
        calm,
    )
    assert after == [(True,)]


@pytest.mark.throw_away
@pytest.mark.thorough  # tests/core/test_driver.py kills and cancels runs that average
def test_a_run_that_is_killed_and_cancelled_goes_on_to_the_same_bits(points: Lab, calm: int) -> None:
    who = Caller(points, "killed")
    eventually(lambda: points("SELECT 1 FROM run WHERE model_table LIKE '%.killed'"), 60, "it is on record")
    run_id = run_of(points, "killed")

    def has_hops(least: int) -> None:
        eventually(
            lambda: points.value("SELECT count(*) FROM hop WHERE run = %s", run_id) >= least, 60, f"{least} hops"
        )

    has_hops(1)
    for (pid,) in points("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment 1 %%'"):
        points("SELECT pg_terminate_backend(%s)", pid)  # another session takes its place
    has_hops(3)
    points("SELECT pg_terminate_backend(%s)", who.pid)
    assert who.done().error is not None
    eventually(lambda: points.status(run_id) == "interrupted", 15, "the driver is gone")
    again = Caller(points, "killed", f"SELECT resume({run_id})")
    has_hops(6)
    again.connection.cancel()
    error = again.done().error
    assert error is not None and error.pgcode == "57014"
    assert points.status(run_id) == "cancelled" and points("SELECT to_regclass('killed')") == [(None,)]
    points.require_no_orphans()
    assert points.value("SELECT max(hop) FROM hop WHERE run = %s", run_id) < 12
    points("SELECT resume(%s)", run_id)
    assert hashes(points, run_id) == hashes(points, calm)
    # A finished run can be extended.
    points("SELECT resume(%s, 4)", run_id)
    assert [hop for hop, *_ in hashes(points, run_id)] == list(range(1, 17))
    assert set().union(*stored(points, run_id).values()) == {16}


@pytest.mark.throw_away
def test_people_steer_a_run_that_averages(points: Lab, calm: int) -> None:
    """A clone averages, too; it begins with an average of its parent.  The table has the model that was asked for."""
    who = Caller(points, "steered", iterations=15)
    eventually(lambda: points("SELECT 1 FROM run WHERE model_table LIKE '%.steered'"), 60, "it is on record")
    run_id = run_of(points, "steered")
    eventually(lambda: points("SELECT 1 FROM hop WHERE run = %s", run_id), 60, "the first hop")
    points("""SELECT clone_model(%s, 1, '{"learning_rate": 0.02}')""", run_id)
    eventually(lambda: points("SELECT 1 FROM cerebro.model WHERE run = %s AND model = 2", run_id), 60, "the clone")
    points("SELECT stop_model(%s, 2)", run_id)
    assert who.done().error is None
    ((parent, parent_hop, visits),) = points(
        "SELECT parent, parent_hop, visits FROM cerebro.model WHERE run = %s AND model = 2", run_id
    )
    assert parent == 1 and parent_hop % 4 == 0 < parent_hop and visits == [0, 1, 2, 0]
    begun = points(
        "SELECT hop, segment, state_sha256 FROM hop WHERE run = %s AND model = 1 AND hop < 13 ORDER BY 1",
        run_id,
    )
    assert begun == hashes(points, calm)
    kinds = points(
        "SELECT epoch, array_agg(kind ORDER BY hop) FROM hop WHERE run = %s AND model = 2 GROUP BY 1", run_id
    )
    assert all(kind == [*["train replica"] * 3, "average"] for _, kind in kinds)
    board = dict(points("SELECT configuration, status FROM leaderboard WHERE run = %s", run_id))
    assert board == {1: "finished", 2: "stopped"}
    assert points("SELECT count(*) FROM steered") == points("SELECT count(*) FROM steered_summary") == [(1,)]
    points("SELECT materialize(%s, 'all_steered')", run_id)
    assert points("SELECT mst_key FROM all_steered ORDER BY 1") == [(1,), (2,)]
    assert bytes(points.value("SELECT model_weights FROM steered")) == points.weights("all_steered")[1]


def test_what_cannot_go_on(points: Lab, fitted: Fitted) -> None:
    wild = PARAMS.replace(f"lr={RATE}", "lr=1e38")
    with pytest.raises(errors.Error, match="the loss became"):
        points(f"SELECT madlib.madlib_keras_fit('packed', 'wild', 'arch', 1, {wild}, {FIT}, 4)")
    assert points("SELECT to_regclass('wild'), to_regclass('wild_summary')") == [(None, None)]
    points.selection("mst", [(1, PARAMS.strip("$"), "batch_size=2")])
    with pytest.raises(errors.FeatureNotSupported, match="averages weights, so a fit cannot replay it"):
        points.fit("packed", "replayed", "mst", 2, options={"replay": fitted.run})


def test_one_segment_trains_as_ever(points: Lab) -> None:
    if points.greenplum:
        pytest.skip("the cluster says how many segments there are")
    points(PACK, "whole", 1)
    points(f"SELECT madlib.madlib_keras_fit('whole', 'alone', 'arch', 1, {PARAMS}, {FIT}, 2)")
    run_id = run_of(points, "alone")
    assert points("SELECT hop, kind FROM hop WHERE run = %s ORDER BY 1", run_id) == [(1, "train"), (2, "train")]
    assert points("SELECT visits FROM cerebro.model WHERE run = %s", run_id) == [(None,)]
    require_close(weights_of(points.db, "alone"), averages(start_of(points), parts_of(points.db, "whole"), 2)[-1])

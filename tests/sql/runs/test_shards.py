"""Runs whose models are cut into shards: the same bits, whatever is killed, and what is told of memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.conftest import ENGINE
from tests.sql.lab import (
    CROSS,
    Lab,
    adam_and_sgd,
    commits_that_wait,
    eventually,
    fit_statement,
    layer,
    sequential,
)
from tests.sql.runs.test_recovery import Caller, the_run
from tests.thorough import landing

pytestmark = pytest.mark.skipif(ENGINE != "tensorflow", reason="only TensorFlow trains models that are cut")
EPOCHS, SEGMENTS, HOPS = 2, 2, 8
CUT = {"deterministic": True, "seed": 5, "synchronous_commit": True, "engine": "tensorflow", "shard": 3}
WHOLE = {**CUT, "shard": "never"}
LONG = 1000  # epochs of a run that is ended


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    """Flowers, and two models with what a cut may disturb: dropout, statistics of batches, a penalty, a branch."""
    lab.iris(SEGMENTS)
    model = lab.architecture(
        sequential(
            [4],
            layer("Dense", "first", units=16, activation="relu"),
            layer("BatchNormalization", "normal"),
            layer("Dropout", "drop", rate=0.2),
            layer("Dense", "second", units=16, activation="relu", kernel_regularizer={"module": "keras.regularizers",
                  "class_name": "L2", "config": {"l2": 0.001}}),
            layer("Dense", "third", units=16, activation="relu"),
            layer("Dense", "out", units=3, activation="softmax"),
        )
    )  # fmt: skip
    # Both are one program, which is compiled once. tests/nn/test_shard_steps.py has the other optimizers.
    fit = "batch_size=4, epochs=4"
    lab.selection("mst", [(model, f"optimizer='Adam(lr={rate})', {CROSS}", fit) for rate in (0.01, 0.003)])
    lab.selection("unlike", adam_and_sgd(model, epochs=4))
    return lab


@pytest.fixture(scope="module")
def calm(place: Lab) -> int:
    """The run of the same models that are not cut."""
    return place.fit("train", "calm", "mst", EPOCHS, validation_table="val", options=WHOLE)


@pytest.fixture(scope="module")
def cut(place: Lab) -> int:
    """The run of the models that are cut. Its driver is killed after some hops, and it is resumed."""
    more = {"validation_table": "val", "options": CUT}
    caller = Caller(place, *fit_statement("madlib_fit_multiple_model", "train", "cut", "mst", EPOCHS, more))
    run = the_run(place, "cut")
    has_hops(place, run, 3)
    place.end_driver(run)
    caller.done()
    place.ended(run)
    before = hashes(place, run)
    assert 3 <= len(before) < HOPS
    place("SELECT resume(%s)", run)
    assert set(before) <= set(hashes(place, run))
    told = caller.connection.notices
    (line,) = [line for line in told if "configurations 1, 2 are cut into 3 shards" in line]
    assert re.search("a batch takes at least [0-9.]+( to [0-9.]+)? times as long as without shards", line), line
    return run


def figures(lab: Lab, run: int) -> list[Any]:
    return lab(
        "SELECT configuration, epoch, training_loss, training_metric, validation_loss, validation_metric"
        " FROM learning_curve WHERE run = %s ORDER BY 1, 2",
        run,
    )


def hashes(lab: Lab, run: int) -> list[Any]:
    return lab("SELECT model, hop, segment, state_sha256 FROM hop WHERE run = %s ORDER BY 1, 2", run)


def shards(lab: Lab, run: int) -> list[Any]:
    return lab(
        "SELECT (detail ->> 'shards')::int, (detail ->> 'memory_mb')::int > 0"
        " AND COALESCE((detail ->> 'slower')::float > 0, detail ->> 'shards' IS NULL) FROM event"
        " WHERE run = %s AND event = 'built' ORDER BY model",
        run,
    )


def submitted(lab: Lab, output: str, epochs: int = EPOCHS, **more: Any) -> int:
    return lab.submit("train", output, "mst", epochs, validation_table="val", options={**CUT, **more})


def has_hops(lab: Lab, run: int, least: int) -> None:
    eventually(lambda: lab.value("SELECT count(*) FROM hop WHERE run = %s", run) >= least, 300, f"{least} hops")


def test_a_model_that_is_cut_has_the_same_bits_though_its_driver_is_killed(place: Lab, calm: int, cut: int) -> None:
    assert hashes(place, cut) == hashes(place, calm) and len(hashes(place, cut)) == HOPS
    assert figures(place, cut) == figures(place, calm)
    assert place.weights("cut") == place.weights("calm")
    assert shards(place, cut) == [(3, True), (3, True)] and shards(place, calm) == [(None, True), (None, True)]


@pytest.mark.same_machine
@pytest.mark.thorough  # tests/nn/test_shard_files.py and tests/sql/runs/test_recovery.py kill them
def test_kill_9_of_trainers_in_the_middle_of_a_batch(place: Lab, calm: int) -> None:
    """Each dies once while it trains, at another moment; the visit is repeated from the last committed state."""
    run = submitted(place, "killed")
    killed = 0
    for wait in (0.3, 0.05):
        has_hops(place, run, 1 + 3 * killed)
        time.sleep(wait)
        for pid, _ in place.trainers()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    assert place.value("SELECT wait(%s)", run) == "finished"
    assert killed and hashes(place, run) == hashes(place, calm)


@pytest.mark.throw_away
@pytest.mark.same_machine
@pytest.mark.thorough  # tests/sql/runs/test_recovery.py kills one whose commit nobody hears of
def test_a_session_that_is_killed_at_its_commit(place: Lab, calm: int) -> None:
    with commits_that_wait(place, "new.hop = 3 AND new.model = 1") as (reached, end):
        run = submitted(place, "at_commit")
        reached()
        end()
    assert place.value("SELECT wait(%s)", run) == "finished"
    assert hashes(place, run) == hashes(place, calm)


@pytest.mark.thorough  # tests/sql/runs/test_large_shards.py cancels in the middle of a batch
def test_a_cancel_ends_the_call_within_a_second(place: Lab) -> None:
    more = {"validation_table": "val", "options": json.dumps(CUT)}
    caller = Caller(
        place,
        "SELECT madlib_fit_multiple_model('train', 'cancelled', 'mst', %s, validation_table => %s, options => %s)",
        LONG,
        *more.values(),
    )
    has_hops(place, the_run(place, "cancelled"), 2)
    place("SELECT pg_cancel_backend(%s)", caller.pid)
    before = time.monotonic()
    caller.done(within=20)
    assert time.monotonic() - before < 1.5  # of a busy machine
    assert isinstance(caller.error, errors.QueryCanceled)
    place.require_no_orphans()


@pytest.mark.thorough  # tests/sql/runs/test_added_models.py and tests/core/test_searches.py have budgets
def test_a_budget_ends_a_run(place: Lab) -> None:
    run = place.fit("train", "spent", "mst", LONG, options={**CUT, "budget": {"hops": 5}})
    assert place.value("SELECT count(*) FROM hop WHERE run = %s", run) == 5
    assert place.status(run) == "finished"


# -- what is refused ---------------------------------------------------------------------------------------


def refused(lab: Lab, options: dict[str, Any], call: str = "madlib_fit_multiple_model") -> psycopg2.Error:
    before = lab.value("SELECT count(*) FROM run")
    with pytest.raises(psycopg2.Error) as caught:
        lab(f"SELECT {call}('train', 'none', 'mst', 1, options => %s)", json.dumps(options))
    if "configuration" not in str(caught.value):
        assert lab.value("SELECT count(*) FROM run") == before
    return caught.value


def test_what_does_not_go_with_shards(place: Lab) -> None:
    error = refused(place, {"shard": 3, "parallel": "gradients"})
    assert "'shard' and 'parallel' exclude each other" in str(error)
    for engine in ("jax", "torch"):
        with contextlib.suppress(AssertionError):  # one that is not installed is refused for that
            error = refused(place, {"shard": 3, "engine": engine})
            assert f"the engine {engine} cannot train models that are cut" in str(error)


@pytest.mark.parametrize("options", landing([{"shard": "never"}, {"shard": 1}], {"shard": "never"}))
def test_a_model_that_may_not_be_cut_and_does_not_fit(place: Lab, options: dict[str, Any]) -> None:
    """It is refused before training, with what it needs, what there is, and what to do."""
    error = refused(place, {**options, "memory_mb": 100})
    assert "a trainer needs about " in str(error) and "and may use 100 MB" in str(error)
    assert '"shard":' in (error.diag.message_hint or "") and '"memory_mb":' in (error.diag.message_hint or "")
    (hops,) = place("SELECT count(*) FROM hop WHERE run = (SELECT max(run) FROM run)")[0]
    assert hops == 0


def test_a_dry_run_says_what_memory_is_needed(place: Lab) -> None:
    def said(**options: Any) -> list[str]:
        place.told()
        call = "SELECT cerebro.fit('train', 'none', 'unlike', epochs => 1, dry_run => true, options => %s)"
        assert place.value(call, json.dumps({"engine": "tensorflow", **options})) is None
        return [line for line in place.told() if "a trainer needs" in line]

    before = place.value("SELECT count(*) FROM run")
    assert said() == [], "nothing is known of limits, so no trainer starts"
    plenty = said(memory_mb=4000)
    assert len(plenty) == 2 and all("cut" not in line and "fails" not in line for line in plenty)
    assert all("so it would be cut into 3 shards" in line and "times as long" in line for line in said(shard=3))
    assert all("and may use 100 MB: it fails" in line for line in said(shard="never", memory_mb=100))
    jointly = said(parallel="gradients", memory_mb=100)
    assert len(jointly) == 2 and all("and may use 100 MB: it may fail" in line for line in jointly)
    assert place.value("SELECT count(*) FROM run") == before


def test_dry_runs_of_search_and_train_say_what_the_largest_models_need(place: Lab) -> None:
    def said(call: str, **options: Any) -> list[str]:
        place.told()
        assert place.value(call, json.dumps({"engine": "tensorflow", **options})) is None
        return [line for line in place.told() if "the largest" in line]

    space = {"units": {"integer": [4, 32]}, "optimizer": {"choice": ["Adam", "SGD"]}, "batch_size": {"choice": [8, 32]}}
    search = "SELECT cerebro.search('train', 'none', '%s', architectures => '{\"mlp\": {\"layers\": 3}}', epochs => 1,"
    search = f"{search.replace('%s', json.dumps(space))} max_configurations => 4, dry_run => true, options => %s)"
    train = "SELECT cerebro.train('train', 'none', budget => '10 s', dry_run => true, options => %s)"
    before = place.value("SELECT count(*) FROM run")
    assert said(search) == said(train) == [], "nothing is known of limits, so no trainer starts"
    (line,) = said(search, shard=2)
    for part in ("the largest mlp", '"units": 32', '"batch_size": 32', '"Adam"', "cut into 2 shards", "times as long"):
        assert part in line, line
    lines = said(train, memory_mb=4000)
    assert lines and all("a trainer needs about" in line and "cut" not in line for line in lines), lines
    assert place.value("SELECT count(*) FROM run") == before


# -- models that are not cut -------------------------------------------------------------------------------


def warned(lab: Lab) -> str:
    return "\n".join(line for line in lab.told() if line.startswith("WARNING"))


def test_models_that_cannot_be_cut_train_whole_with_a_warning(place: Lab) -> None:
    """The estimate refuses none of them: it may be too large."""
    place.told()
    run = place.fit(
        "train", "jointly", "mst", 1, options={"engine": "tensorflow", "parallel": "gradients", "memory_mb": 100}
    )
    assert place.status(run) == "finished" and shards(place, run) == [(None, True), (None, True)]
    assert "configurations 1, 2 are not cut: a trainer needs up to" in (told := warned(place)) and "parallel" in told
    place("SELECT cerebro.set_limits(NULL, max_trainer_mb => 4000)")
    try:
        place("SELECT madlib.madlib_keras_fit('train', 'averaged', 'arch', 1, %s, 'batch_size=16, epochs=1', 1)",
              f"optimizer='SGD(lr=0.01)', {CROSS}")  # fmt: skip
        assert "not cut" not in warned(place)
    finally:
        place("DELETE FROM cerebro.role_limit")


# -- by hand -----------------------------------------------------------------------------------------------


def state_tables(lab: Lab, storage: str) -> list[str]:
    return [name for (name,) in lab(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'cerebro_state'::regnamespace AND relkind = 'r'"
        " AND starts_with(relname, %s) ORDER BY 1", f"{storage}_")]  # fmt: skip


@pytest.fixture(scope="module")
def wide(place: Lab) -> str:
    """A model whose state has tables of its own, and a small one."""
    wide = place.architecture(
        sequential([4], layer("Dense", "first", units=400, activation="relu"),
                   layer("Dense", "second", units=400, activation="relu"),
                   layer("Dense", "out", units=3, activation="softmax"))
    )  # fmt: skip
    small = place.architecture(
        sequential([4], layer("Dense", "in", units=8), layer("Dense", "out", units=3, activation="softmax"))
    )
    of = f"optimizer='Adam(lr=0.001)', {CROSS}", "batch_size=16, epochs=1"
    return place.selection("unequal", [(wide, *of), (small, *of)])


@pytest.mark.thorough  # tests/sql/runs/test_recovery.py and test_forget.py forget runs
def test_forget_during_a_run_of_cut_models_and_after_its_cancel(place: Lab, wide: str) -> None:
    run = place.submit("train", "forgotten", wide, LONG, options=CUT)
    has_hops(place, run, 3)
    storage = place.value("SELECT storage FROM run WHERE run = %s", run)
    with pytest.raises(errors.ObjectInUse, match="is running"):
        place("SELECT forget(%s)", run)
    assert state_tables(place, storage)
    place("SELECT cancel(%s)", run)
    assert place.value("SELECT wait(%s)", run) == "cancelled"
    place.require_no_orphans()
    place("SELECT forget(%s)", run)
    assert state_tables(place, storage) == [] and not place("SELECT 1 FROM run WHERE run = %s", run)


def test_a_state_table_that_is_dropped_in_the_middle(place: Lab, wide: str) -> None:
    """The run fails and names the table, as with models that are not cut; nothing of it stays."""
    run = place.submit("train", "dropped", wide, LONG, options=CUT)
    has_hops(place, run, 4)
    storage = place.value("SELECT storage FROM run WHERE run = %s", run)
    own = [name for name in state_tables(place, storage) if name.startswith(f"{storage}_1_")]
    assert own, "its state has tables of its own"
    place(f"DROP TABLE {', '.join(f'cerebro_state.{chr(34)}{name}{chr(34)}' for name in own)}")
    eventually(lambda: place.status(run) == "failed", 60, "the run fails")
    (reason,) = place("SELECT detail ->> 'message' FROM event WHERE run = %s AND event = 'failed'", run)[0]
    assert f"{storage}_1_" in reason
    place.require_no_orphans()
    with pytest.raises(psycopg2.Error):
        place("SELECT resume(%s)", run)
    place.require_no_orphans()
    place("SELECT forget(%s)", run)
    assert state_tables(place, storage) == []

"""Fusion through SQL: fused configurations have the results and the log of configurations that train alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import psycopg2
import pytest

from tests.sql.lab import CROSS, Json, Lab, commits_that_wait, eventually, flower_model, trainer_processes

EPOCHS, SEGMENTS, SEED = 2, 2, 4
TOGETHER: Json = {"engine": "jax", "seed": SEED, "fuse": True, "threads": 1}
ALONE: Json = {**TOGETHER, "fuse": False}
RATES = (0.1, 0.05, 0.01, 0.02, 0.03, 0.005)


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    """Six configurations of one fusion group, and a seventh with another batch size, which is not in the group."""
    lab.iris(SEGMENTS)
    model = lab.architecture(flower_model())
    rows = [(model, f"optimizer=Adam(lr={rate}), {CROSS}", "batch_size=8, epochs=1") for rate in RATES]
    lab.selection("mst", [*rows, (model, f"optimizer=Adam(lr=0.01), {CROSS}", "batch_size=16, epochs=1")])
    yield lab


def sizes(lab: Lab, run_id: int) -> list[int]:
    """For each hop, the number of fused configurations."""
    found = lab("SELECT COALESCE((seconds ->> 'fused')::int, 1) FROM hop WHERE run = %s", run_id)
    return [size for (size,) in found]


def require_same_numbers(lab: Lab, one: str, other: str) -> None:
    mine, its = lab.weights(one), lab.weights(other)
    assert mine.keys() == its.keys()
    for key in mine:
        found, expected = (np.frombuffer(weights[key], "<f4") for weights in (mine, its))
        np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-4, err_msg=str(key))
    losses = [lab.losses(table) for table in (one, other)]
    assert losses[0] == {key: pytest.approx(loss, rel=1e-3) for key, loss in losses[1].items()}


def test_the_numbers_and_the_books_are_those_of_single_ones(place: Lab) -> None:
    alone = place.fit("train", "single", "mst", EPOCHS, validation_table="val", options=ALONE)
    place.told()
    fused = place.fit("train", "fused", "mst", EPOCHS, validation_table="val", options=TOGETHER)
    assert any("6 configurations train up to 2 at a time" in line for line in place.told())
    require_same_numbers(place, "fused", "single")
    assert set(sizes(place, alone)) == {1}
    assert set(sizes(place, fused)) <= {1, 2, 4} and max(sizes(place, fused)) > 1
    books = "SELECT model, hop, epoch, segment, rows, steps FROM hop WHERE run = %s ORDER BY 1, 2"
    assert place(books, fused) == place(books, alone)
    assert place("SELECT count(*) FROM attempt WHERE run = %s", fused) == [(7 * SEGMENTS * EPOCHS,)]
    # configuration 7 has another batch size, so it is never fused.
    assert place("SELECT DISTINCT seconds ? 'fused' FROM hop WHERE run = %s AND model = 7", fused) == [(False,)]
    place.require_no_orphans()


def test_a_replay_settles_nothing_anew(place: Lab) -> None:
    run_id = place.fit("train", "first", "mst", 1, options=TOGETHER)
    again = place.fit("train", "second", "mst", 1, options={"replay": run_id})
    settled = "SELECT model, detail FROM event WHERE run = %s AND event = 'fused' ORDER BY model"
    assert len(place(settled, run_id)) == len(RATES) and place(settled, again) == place(settled, run_id)
    require_same_numbers(place, "second", "first")


def test_a_rehearsal_decides_unless_it_is_said(place: Lab) -> None:
    settled = (
        "SELECT event, (detail ->> 'alone')::float, (detail ->> 'fused')::float FROM event"
        " WHERE run = %s AND event IN ('fused', 'not fused')"
    )
    assert not place(settled, place.fit("train", "told", "mst", 1, options=ALONE))
    auto = {name: value for name, value in TOGETHER.items() if name != "fuse"}
    run_id = place.fit("train", "decided", "mst", 1, options=auto)
    found = place(settled, run_id)
    assert len(found) == len(RATES)
    for event, alone, together in found:
        assert alone > 0 and (event == "fused") == (together < 0.7 * alone)
    assert (max(sizes(place, run_id)) > 1) == (found[0][0] == "fused")


def test_one_member_that_fails_fails_alone(place: Lab) -> None:
    model = place.value("SELECT max(model_id) FROM arch")
    rates = ("0.1", "1e30", "0.05", "0.01")
    place.selection("wild", [(model, f"optimizer=SGD(lr={rate}), {CROSS}", "batch_size=8, epochs=1") for rate in rates])
    run_id = place.fit("train", "tame", "wild", 1, options=TOGETHER)
    failed = place("SELECT configuration, reason FROM leaderboard WHERE run = %s AND status = 'failed'", run_id)
    assert [key for key, _ in failed] == [2] and failed[0][1].startswith("the loss became")
    place.fit("train", "tame_alone", "wild", 1, options=ALONE)
    assert place.weights("tame").keys() == {1, 3, 4}
    require_same_numbers(place, "tame", "tame_alone")


@pytest.mark.needs_cluster
@pytest.mark.thorough  # tests/core/test_driver.py loses trainers of fused visits
def test_a_trainer_that_dies_takes_nothing_with_it(place: Lab) -> None:
    """A trainer is killed while it trains fused models: each is retried alone, and the results are the same."""
    model = place.value("SELECT max(model_id) FROM arch")
    long = [(model, f"optimizer=Adam(lr={rate}), {CROSS}", "batch_size=4, epochs=40") for rate in RATES]
    place.selection("slow", long)
    place.fit("train", "calm", "slow", 2, options=ALONE)
    run_id = place.submit("train", "stormy", "slow", 2, options=TOGETHER)
    under_way = "SELECT count(*) FROM attempt WHERE run = %s"
    eventually(lambda: place.value(under_way, run_id) > 2 * len(RATES) // SEGMENTS, 120, "a second hop has begun")
    for pid, _ in trainer_processes(place.home):
        os.kill(pid, signal.SIGKILL)
    assert place.value("SELECT wait(%s, 120)", run_id) == "finished"
    assert place.value("SELECT count(*) FROM event WHERE run = %s AND event = 'unit failed'", run_id) > 1
    assert not place("SELECT 1 FROM leaderboard WHERE run = %s AND status = 'failed'", run_id)
    require_same_numbers(place, "stormy", "calm")


@pytest.mark.throw_away
@pytest.mark.thorough  # tests/core/test_driver.py: commits that nobody heard of, and fused visits
def test_a_session_lost_on_its_way_back_from_commit(place: Lab) -> None:
    """Of fused visits, the committed ones are hops; only the others are retried (here the one without a finite loss).

    The commit waits for a standby that never answers.  It is then done on this server, but not yet reported.
    """
    model = place.value("SELECT max(model_id) FROM arch")
    rates = ("0.1", "1e30", "0.05", "0.01")
    rows = [(model, f"optimizer=SGD(lr={rate}), {CROSS}", "batch_size=8, epochs=1") for rate in rates]
    place.selection("lossy", rows)
    place.fit("train", "unhurried", "lossy", 2, options=ALONE)
    together = "new.hop = 1 AND new.model = 4 AND new.seconds ? 'fused'"
    with commits_that_wait(place, together) as (one_waits, end_it):
        run_id = place.submit("train", "dawdling", "lossy", 2, options=TOGETHER)
        one_waits()
        end_it()
        assert place.value("SELECT wait(%s, 120)", run_id) == "finished"
    attempts = "SELECT count(*) FROM attempt WHERE run = %s AND hop = 1 AND model = %s"
    assert (place.value(attempts, run_id, 4), place.value(attempts, run_id, 2)) == (1, 2)
    failed = place("SELECT configuration, reason FROM leaderboard WHERE run = %s AND status = 'failed'", run_id)
    assert [key for key, _ in failed] == [2] and failed[0][1].startswith("the loss became")
    require_same_numbers(place, "dawdling", "unhurried")


def test_what_excludes_each_other_is_said(place: Lab) -> None:
    with pytest.raises(psycopg2.Error, match="'deterministic' and 'fuse' exclude each other") as caught:
        place.fit("train", "never", "mst", 1, options={"deterministic": True, "fuse": True})
    assert caught.value.diag.message_hint

"""Read-ahead: segments fetch the next state and store the last one while their trainers compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.sql.lab import CROSS, Lab, flower_model

SEGMENTS, EPOCHS, CONFIGURATIONS = 2, 2, 6
OPTIONS = {"deterministic": True, "seed": 4}
AHEAD = {**OPTIONS, "read_ahead": True}


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    model = lab.architecture(flower_model())
    sgd = f"optimizer='SGD(lr=0.05, momentum=0.9)', {CROSS}"
    # Small batches make a hop long enough to overlap with others.
    lab.selection("mst", [(model, sgd, f"batch_size={4 + size}, epochs=15") for size in range(CONFIGURATIONS)])
    return lab


def fitted(lab: Lab, output: str, options: dict[str, Any]) -> int:
    return lab.fit("train", output, "mst", EPOCHS, validation_table="val", metrics_compute_frequency=1, options=options)


@pytest.fixture(scope="module")
def one_by_one(place: Lab) -> int:
    return fitted(place, "one_by_one", {**OPTIONS, "read_ahead": False})


@pytest.fixture(scope="module")
def ahead(place: Lab) -> int:
    return fitted(place, "ahead", AHEAD)


def test_the_bits_are_the_same(place: Lab, one_by_one: int, ahead: int) -> None:
    assert place.states(ahead) == place.states(one_by_one)
    assert place.weights("ahead") == place.weights("one_by_one")
    losses = "SELECT model, epoch, part, loss FROM evaluation WHERE run = %s ORDER BY 1, 2, 3"
    assert place(losses, ahead) == place(losses, one_by_one)


def test_states_are_stored_while_the_next_unit_trains(place: Lab, one_by_one: int, ahead: int) -> None:
    behind = "SELECT count(*) FILTER (WHERE seconds_behind > 0), count(*) FROM hop_timeline WHERE run = %s AND hop > 0"
    ((some, hops),) = place(behind, ahead)
    assert hops == SEGMENTS * EPOCHS * CONFIGURATIONS and some > hops / 3
    assert place(behind, one_by_one) == [(0, hops)]


def test_the_parts_of_a_segments_time_are_the_whole(place: Lab, ahead: int) -> None:
    """Time behind the next unit is counted once, so no segment is busy for longer than the run lasts."""
    parts = dict(place("SELECT activity, seconds FROM run_time WHERE run = %s", ahead))
    assert parts["waiting"] > -0.05 and parts["bookkeeping"] > -0.05
    # A unit begins after the unit before it has released the trainer, and a configuration is on one segment at a time.
    unit = (
        "WITH unit AS (SELECT row_number() OVER (ORDER BY configuration, started_at, segment, activity) AS n, *,"
        " finished_at - make_interval(secs => seconds_behind) AS done"
        f" FROM hop_timeline t WHERE run = {ahead})"
        " SELECT count(*) FROM unit a JOIN unit b ON a.n < b.n AND "
    )
    assert place.value(f"{unit} a.segment = b.segment AND a.started_at < b.done AND b.started_at < a.done") == 0
    assert (
        place.value(
            f"{unit} a.configuration = b.configuration AND 'train' IN (a.activity, b.activity)"
            " AND a.started_at < b.finished_at AND b.started_at < a.finished_at"
        )
        == 0
    )


def test_it_is_done_where_states_take_longer_than_training(place: Lab) -> None:
    """By default, only large states are read ahead.  With two threads per trainer, a processor is always spare."""
    wide = place.architecture(flower_model(units=100_000))  # 6.4 MB, including the state of the optimizer
    sgd = f"optimizer='SGD(lr=0.01, momentum=0.9)', {CROSS}"
    small = place.value("SELECT min(model_id) FROM arch")
    behind = "SELECT count(*) FROM hop_timeline WHERE run = %s AND seconds_behind > 0"
    for model, expected in ((small, False), (wide, True)):
        rows = [(model, sgd, f"batch_size={size}, epochs=1") for size in (50, 60, 70)]
        selection = place.selection(f"mst_{model}", rows)
        run_id = place.fit("train", f"open_{model}", selection, 3, options={**OPTIONS, "threads": 2})
        assert (place.value(behind, run_id) > 0) == expected


@pytest.mark.throw_away
def test_nothing_is_left_of_states_on_their_way(place: Lab) -> None:
    """A fetched state that is not needed any more is also removed.  A kept team would otherwise hold its memory."""
    model = place.value("SELECT max(model_id) FROM arch")
    hopeless = (model, f"optimizer='SGD(lr=1e30)', {CROSS}", "batch_size=4, epochs=2")
    place.selection("with_nan", [hopeless, (model, f"optimizer='SGD(lr=0.01)', {CROSS}", "batch_size=4, epochs=2")])
    run_id = place.fit("train", "nan_ahead", "with_nan", 2, options=AHEAD)
    assert place.value("SELECT count(*) FROM leaderboard WHERE run = %s AND status = 'failed'", run_id) == 1
    found = scratch_of_waiting(place)
    assert found and not [path for path in found if path.name.startswith("state")]


def scratch_of_waiting(place: Lab) -> list[Path]:
    assert place.home is not None
    places = [*place.home.glob("clusters/*/data/pgsql_tmp_cerebro"), *Path("/dev/shm").glob("cerebro_db_*")]
    waiting = place.waiting()
    assert waiting, "its sessions wait for another call"
    return [
        path
        for folders in places
        for folder in folders.iterdir()
        if folder.name.partition("-")[0] in map(str, waiting)
        for path in folder.glob("*")
    ]

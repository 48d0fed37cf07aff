"""Ring positions: the most expensive configurations get the first ones, and a configuration keeps its position."""

from __future__ import annotations

import psycopg2
import pytest

from cerebro_db.core.scheduling.ring import visit_order
from tests.sql.lab import CROSS, Lab, flower_model

SEGMENTS, SEED = 3, 8
OPTIONS = {"deterministic": True, "seed": SEED}
ENTERS = "SELECT model, (detail ->> 'position')::int FROM event WHERE run = %s AND event = 'built'"


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(SEGMENTS)
    small, wrong, large = (lab.architecture(flower_model(*shape)) for shape in ((4,), (32, 4), (16,)))
    chosen = ((small, 16), (wrong, 16), (small, 8), (large, 16), (small, 16))
    compiled = f"optimizer='SGD(lr=0.1)', {CROSS}"
    lab.selection("mst", [(model, compiled, f"batch_size={batch}, epochs=1") for model, batch in chosen])
    return lab


@pytest.fixture(scope="module")
def mended(flowers: Lab) -> int:
    """A configuration that failed to build is repaired after the first epoch.  A new run would give it position 0."""
    run = flowers.fit("train", "first", "mst", 1, options=OPTIONS)
    assert dict(flowers(ENTERS, run)) == {4: 0, 3: 1, 1: 2, 5: 3}
    for table, column, mine in (("arch", "model_arch", "true"), ("architecture", "architecture", f"run = {run}")):
        right = f"replace({column}::text, '\"units\": 4', '\"units\": 3')::json"
        flowers(f"UPDATE {table} SET {column} = {right} WHERE model_id = 2 AND {mine}")
    flowers("SELECT resume(%s, epochs => 2, retry_failed => true)", run)
    return run


def orders(lab: Lab, run: int, epoch: int) -> dict[int, list[int]]:
    query = "SELECT model, array_agg(segment ORDER BY hop) FROM hop WHERE run = %s AND epoch = %s GROUP BY 1"
    return dict(lab(query, run, epoch))


def by(enters: dict[int, int]) -> dict[int, list[int]]:
    return {key: visit_order(SEED, entry, SEGMENTS) for key, entry in enters.items()}


def test_a_configuration_that_is_built_later_changes_nobodys_order(flowers: Lab, mended: int) -> None:
    enters = dict(flowers(ENTERS, mended))
    assert enters == {4: 0, 3: 1, 1: 2, 5: 3, 2: 4}
    assert orders(flowers, mended, 1) == orders(flowers, mended, 2) == by(enters)


def test_a_replay_enters_where_the_run_did(flowers: Lab, mended: int) -> None:
    """A replay builds all configurations at once, and repeats the visits of the run."""
    again = flowers.fit("train", "again", "mst", 2, options={"replay": mended})
    assert dict(flowers(ENTERS, again)) == dict(flowers(ENTERS, mended))
    assert flowers.weights("again") == flowers.weights("first")


def test_a_run_that_has_no_such_record_goes_on_as_it_began(flowers: Lab) -> None:
    """Without recorded positions, each configuration's ring position is its place in the selection table."""
    run = flowers.fit("train", "old", "mst", 1, options=OPTIONS)
    flowers("UPDATE event SET detail = detail - 'position' WHERE run = %s AND event = 'built'", run)
    places = by({key: key - 1 for key in range(1, 6)})
    flowers("SELECT resume(%s, epochs => 2)", run)
    assert orders(flowers, run, 2) == places
    again = flowers.fit("train", "old_again", "mst", 1, options={"replay": run})
    assert orders(flowers, again, 1) == places


def test_nonsense_that_a_user_made_of_it_is_named(flowers: Lab) -> None:
    run = flowers.fit("train", "made_up", "mst", 1, options=OPTIONS)
    enters = "UPDATE event SET detail = jsonb_set(detail, '{position}', %s) WHERE run = %s AND event = 'built'"
    for nonsense in ('"here"', "1e99", "-4"):
        flowers(enters, nonsense, run)
        with pytest.raises(psycopg2.Error, match="position (has to be a whole number|has to be from 0|does not fit)"):
            flowers("SELECT resume(%s, epochs => 2)", run)
    flowers(enters, "4", run)
    flowers("SELECT resume(%s, epochs => 2)", run)
    assert orders(flowers, run, 2) == by(dict.fromkeys(range(1, 6), 4))


def test_events_of_configurations_that_there_are_not_are_nobodys(flowers: Lab) -> None:
    run = flowers.fit("train", "imagined", "mst", 1, options=OPTIONS)
    for event in ("built", "fused", "model failed"):
        for key in (None, 999):
            flowers("INSERT INTO event (run, event, model) VALUES (%s, %s, %s)", run, event, key)
    flowers("SELECT resume(%s, epochs => 2)", run)
    assert flowers("SELECT DISTINCT status, epochs_done FROM leaderboard WHERE run = %s", run) == [("finished", 2)]

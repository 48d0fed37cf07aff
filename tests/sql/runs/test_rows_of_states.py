"""Model tables come from the rows of states: rows in any order are joined, and changed rows are noticed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from cerebro_db.core.sql import shown, sql
from cerebro_plpy.models import weights
from tests.sql.lab import CROSS, Lab, flower_model, run


@pytest.fixture(scope="module")
def flowers(lab: Lab) -> Lab:
    lab.iris(segments=2)
    arch = lab.architecture(flower_model())
    lab.selection("mst", [(arch, f"optimizer='Adam(lr=0.0{n})', {CROSS}", "batch_size=16") for n in (1, 2)])
    return lab


def last_state(lab: Lab, run_id: int, model: int) -> str:
    """A view of the rows of the last state of a model, which can be changed through it."""
    storage, hop = lab("SELECT storage, max(h.hop) FROM run r JOIN hop h USING (run) WHERE run = %s GROUP BY 1",
                       run_id)[0]  # fmt: skip
    table, which = lab.stored(storage, model, hop)
    lab("DROP VIEW IF EXISTS last_state")
    lab(f"CREATE VIEW last_state AS SELECT __dist_key__, model, hop, start, payload FROM {table} WHERE {which}")
    return "last_state"


@pytest.fixture(scope="module")
def stored(flowers: Lab) -> int:
    """A run, and the rows of its last states in stored_1 and stored_2."""
    number = flowers.fit("train", "whole", "mst", 1)
    for model in (1, 2):
        flowers(f"CREATE TABLE stored_{model} AS TABLE {last_state(flowers, number, model)}")
    return number


@pytest.fixture
def whole(flowers: Lab, stored: int) -> Iterator[int]:
    """This run, whose states a test may change."""
    yield stored
    for model in (1, 2):
        table = last_state(flowers, stored, model)
        flowers(f"DELETE FROM {table}; INSERT INTO {table} TABLE stored_{model}")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE {} SET payload = set_byte(payload, 700, get_byte(payload, 700) # 1) WHERE start = 0",
        "DELETE FROM {} WHERE start = 0",
        "DELETE FROM {}",
        "INSERT INTO {0} SELECT * FROM {0}",
    ],
)
def test_a_state_that_was_changed_is_not_handed_out(flowers: Lab, whole: int, change: str) -> None:
    flowers(change.format(last_state(flowers, whole, 2)))
    flowers.told()
    flowers("SELECT materialize(%s, 'partly')", whole)
    assert any(
        "configuration 2 is left out: its state is not the one that was committed" in line for line in flowers.told()
    )
    assert flowers("SELECT mst_key, model_weights IS NULL FROM partly") == [(1, False)]
    flowers("SELECT cerebro.drop_model('partly')")
    flowers(change.format(last_state(flowers, whole, 1)))
    with pytest.raises(psycopg2.Error, match="are not those that were committed"):
        flowers("SELECT materialize(%s, 'changed')", whole)
    assert "changed" not in flowers.tables()


@pytest.fixture(scope="module")
def cut(flowers: Lab) -> tuple[int, str]:
    """A run whose states are in rows of 50 bytes, and its model table."""
    number = flowers.fit("train", "in_pieces", "mst", 1)
    rearrange(flowers, number, "start", 50)
    return number, "in_pieces"


def rearrange(lab: Lab, run_id: int, order: str, size: int) -> None:
    """Store the rows of the run's last states in another order, each cut into rows of this size."""
    for model in (1, 2):
        table = last_state(lab, run_id, model)
        lab(f"CREATE TABLE moved AS SELECT * FROM {table}")
        lab(f"DELETE FROM {table}")
        lab(
            f"INSERT INTO {table} SELECT * FROM (SELECT __dist_key__, model, hop, start + i AS start,"
            f" substr(payload, i + 1, {size}) FROM moved, generate_series(0, octet_length(payload) - 1, {size}) i) p"
            f" ORDER BY {order}"
        )
        lab("DROP TABLE moved")


def handed_out(lab: Lab, run_id: int, largest: int | None = None) -> dict[int, bytes]:
    """The weights in the tables of a run, by mst_key.  Only those of at most ``largest`` bytes are one value."""
    with contextlib.closing(lab.connect()) as session:
        if largest is not None:
            with pytest.raises(psycopg2.Error, match="no run"):
                run(session, "SELECT materialize(-1, 'handed')")  # imports the code
            change = f"import sys; sys.modules['cerebro_plpy.models.weights'].LARGEST_VALUE = {largest}"
            run(session, f"DO LANGUAGE plpython3u $${change}$$")
        run(session, "SELECT materialize(%s, 'handed')", run_id)
        told = [notice for notice in session.notices if "left out" in notice]
    assert told == []
    try:
        found = lab.weights("handed") if largest is None else dict.fromkeys((1, 2), b"")
        if largest is not None:
            assert lab("SELECT mst_key, model_weights FROM handed ORDER BY 1") == [(1, None), (2, None)]
            for key, start, payload in lab("SELECT mst_key, start, payload FROM handed_weights ORDER BY 1, 2"):
                assert start == len(found[key])
                found[key] += bytes(payload)
        assert lab("SELECT count(*) FROM handed WHERE model_arch IS NULL") == [(0,)]
        return found
    finally:
        lab("DROP TABLE IF EXISTS handed, handed_info, handed_summary, handed_weights")


@pytest.mark.parametrize("largest", [None, 100])
@pytest.mark.parametrize("order", ["start", "start DESC", "md5(start::text)", "start <> 1000, start"])
def test_rows_of_a_state_may_be_stored_in_any_order(
    flowers: Lab, cut: tuple[int, str], order: str, largest: int | None
) -> None:
    """The weights begin and end within rows, and the optimizer's variables come after them."""
    number, table = cut
    first, size, state = flowers("SELECT weights_offset, weights_bytes, state_bytes FROM hop WHERE run = %s", number)[0]
    assert first % 50 and (first + size) % 50 and first + size + 50 < state
    rearrange(flowers, number, order, 50)
    assert handed_out(flowers, number, largest) == flowers.weights(table)


@pytest.mark.parametrize("first", [0, 7, 30, 45])
@pytest.mark.parametrize("size", [1, 23, 30, 55])
def test_weights_are_joined_in_the_order_of_their_rows(flowers: Lab, first: int, size: int) -> None:
    state = bytes(range(100))
    columns = {"__dist_key__": "int", "hop": "int", "start": "bigint", "payload": "bytea"}
    rows = [(0, 3, start, state[start : start + 10]) for start in range(0, 100, 10)]
    queries = list(map(shown, weights.value_queries(sql("FROM state WHERE hop = 3"), first, size)))
    expected = state[first : first + size]
    for moved in (rows, rows[::-1]):
        flowers("DROP TABLE IF EXISTS state")
        flowers.table("state", columns, moved)
        unsorted, in_order = ([bytes(value) for value, key in flowers(query)] for query in queries)
        assert in_order == [expected]
        read = [row for row in rows if row[2] < first + size and row[2] + 10 > first]
        assert unsorted == ([expected] if moved == rows or len(read) == 1 else [])


def test_a_warm_start_finds_the_state_in_any_order(flowers: Lab) -> None:
    number = flowers.fit("train", "warmed", "mst", 1)
    rearrange(flowers, number, "md5(start::text)", 50)
    flowers.told()
    warm = flowers.fit("train", "warmed", "mst", 1, warm_start=True)
    assert not any("weights alone" in line for line in flowers.told())
    assert flowers("SELECT DISTINCT initial FROM model WHERE run = %s", warm) == [("full",)]


def test_rows_whose_starts_were_exchanged_are_noticed(flowers: Lab, whole: int) -> None:
    """All rows are rewritten in the order in which they were stored, so their bytes still have the checksum."""
    number = whole
    rearrange(flowers, number, "start", 50)
    one = flowers.value("SELECT min(weights_offset) FROM hop WHERE run = %s", number) // 50 * 50 + 50
    other = one + 50
    flowers(
        f"UPDATE {last_state(flowers, number, 2)}"
        f" SET start = CASE start WHEN {one} THEN {other} WHEN {other} THEN {one} ELSE start END"
    )
    flowers("SELECT materialize(%s, 'exchanged_again')", number)
    found, expected = flowers.weights("exchanged_again"), flowers.weights("whole")
    assert found == {1: expected[1]}

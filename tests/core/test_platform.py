"""The statements of a hop on both platforms, as text.  What they do on a server, tests/sql shows."""

from __future__ import annotations

import os
import re
from pathlib import Path

import psycopg2
import pytest

from cerebro_db.core.sql import identifier, shown, sql
from cerebro_plpy.database import cancellation
from cerebro_plpy.platform import GREENPLUM, POSTGRESQL, machine
from cerebro_plpy.platform.base import LeftState, StateRows

COLUMNS = [identifier("x"), identifier("y")]
PACKED, PART, CALL = sql("packed"), sql("s.part"), sql("f(1)")
ROWS = StateRows([sql("s.one"), sql("s.other")], sql("s.one"), sql("hop, start, payload"), sql("hop = 4"))
LEFT = [LeftState(0, 7, 4), LeftState(1, 8, 6)]
NOTHING = sql("")


class Failed(psycopg2.Error):
    def __init__(self, code: str | None, text: str = "") -> None:
        super().__init__(text)
        self.code = code

    @property
    def pgcode(self) -> str | None:  # type: ignore[override]
        return self.code


class Session:
    """A session whose server has the setting gp_role, or does not have it."""

    def __init__(self, role: str | None) -> None:
        self.role = role

    def execute(self, statement: str) -> list[dict[str, str | None]]:
        assert statement == "SELECT pg_catalog.current_setting('gp_role', true) AS role"
        return [{"role": self.role}]


@pytest.mark.parametrize(
    ("role", "greenplum", "on_segment"),
    [(None, False, False), ("dispatch", True, False), ("execute", True, True)],
)
def test_greenplum_and_its_forks_are_known_by_a_setting(
    role: str | None, greenplum: bool, on_segment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by version(): that of Apache Cloudberry does not name Greenplum."""
    monkeypatch.setattr(cancellation, "_greenplum", None)
    monkeypatch.setattr(cancellation, "_on_segment", False)
    assert cancellation.on_greenplum(Session(role)) == greenplum
    assert cancellation._on_segment == on_segment


def test_no_script_looks_for_a_name_in_the_version() -> None:
    scripts = list((Path(__file__).resolve().parents[2] / "sql").rglob("*.sql"))
    asking = re.compile(r"version\(\)\s+(NOT )?(I?LIKE|~)")
    assert scripts and [str(path) for path in scripts if asking.search(path.read_text())] == []


def test_postgresql_runs_everything_where_it_is_called() -> None:
    assert POSTGRESQL.on_segment(3) == POSTGRESQL.distributed_by("x") == NOTHING
    assert POSTGRESQL.made_on_segment(CALL, 3) == sql("SELECT 3 AS __dist_key__, f(1) AS made")
    assert POSTGRESQL.hop_states(ROWS, here=1, there=2) == ([], sql("hop = 4"))
    assert POSTGRESQL.states_made(5, LEFT, 3) == [
        sql(
            "SELECT 3 AS __dist_key__, model, hop, cerebro_internal._state_out(5, index) AS made"
            " FROM (VALUES (0, 7, 4), (1, 8, 6)) v (index, model, hop)"
        )
    ]
    assert POSTGRESQL.bring_rows(PACKED, COLUMNS, 7, 1, PART) == (PACKED, 7, None)


def test_greenplum_runs_a_function_on_the_segment_that_stores_the_key() -> None:
    assert GREENPLUM.on_segment(3) == sql("FROM cerebro.place WHERE __dist_key__ = 3")
    made = GREENPLUM.made_on_segment(CALL, 3)
    assert made == sql("SELECT __dist_key__, f(1) AS made FROM cerebro.place WHERE __dist_key__ = 3")
    assert GREENPLUM.distributed_by("x") == sql('DISTRIBUTED BY ("x")')


def test_greenplum_copies_a_state_that_lies_elsewhere() -> None:
    copies, where = GREENPLUM.hop_states(ROWS, here=1, there=2)
    assert copies == [
        sql(
            "INSERT INTO s.one (__dist_key__, hop, start, payload) SELECT 1, hop, start, payload FROM s.one"
            " WHERE hop = 4 AND __dist_key__ = 2"
        ),
        sql(
            "INSERT INTO s.one (__dist_key__, hop, start, payload) SELECT 1, hop, start, payload FROM s.other"
            " WHERE hop = 4 AND __dist_key__ = 2"
        ),
    ]
    assert where == sql("hop = 4 AND __dist_key__ = 1")
    assert GREENPLUM.hop_states(ROWS, here=1, there=1) == ([], where)


def test_greenplum_stores_each_state_with_the_column_of_its_segment() -> None:
    first, second = GREENPLUM.states_made(5, LEFT, 3)
    assert first == sql(
        "SELECT m.__dist_key__, 7 AS model, 4 AS hop, m.made FROM (SELECT __dist_key__,"
        " cerebro_internal._state_out(5, 0) AS made FROM cerebro.place WHERE __dist_key__ = 3) m"
    )
    assert "8 AS model, 6 AS hop" in shown(second) and "_state_out(5, 1)" in shown(second)


def test_greenplum_copies_rows_that_lie_elsewhere_for_one_read() -> None:
    assert GREENPLUM.bring_rows(PACKED, COLUMNS, 7, 7, PART) == (PACKED, 7, None)
    assert GREENPLUM.bring_rows(PACKED, COLUMNS, 7, 1, PART) == (
        PART,
        1,
        (
            sql(
                'CREATE TABLE s.part AS SELECT 1 AS __dist_key__, buffer_id, "x", "y"'
                ' FROM packed WHERE __dist_key__ = 7 DISTRIBUTED BY ("__dist_key__")'
            ),
            sql("DROP TABLE s.part"),
        ),
    )


@pytest.mark.parametrize(
    ("code", "text", "lost"),
    [
        ("58M01", "", True),
        ("57P02", "", True),
        ("57014", "", False),
        (None, "", False),
        ("XX000", "Reader qExec could not find Shared Local Snapshot!  (seg1 slice3)", True),
        ("XX000", "unrecognized node type: 7", False),
    ],
)
def test_a_segment_can_only_be_lost_on_greenplum(code: str | None, text: str, lost: bool) -> None:
    assert GREENPLUM.lost_a_segment(Failed(code, text)) is lost
    assert not POSTGRESQL.lost_a_segment(Failed(code, text))


def test_trainers_share_the_memory_of_the_framework() -> None:
    """They are forks. Thirty of them were refused at 17.6 GB where at most 3.3 GB were used."""
    alone, thirty = machine.memory_of_trainers(1), machine.memory_of_trainers(30)
    assert 3.3e9 < thirty < 7e9 and 30 * alone > 2 * thirty
    each = (thirty - alone) / 29
    assert machine.memory_of_trainers(7) == pytest.approx(alone + 6 * each)
    more = machine.memory_of_trainers(2, state_bytes=1000, rows_bytes=500)
    assert more - machine.memory_of_trainers(2) == 2 * (3 * 1000 + 500), "states and rows are each trainer's own"


def test_a_container_may_have_fewer_processors_than_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    assert machine.cores() == 8
    for limit, processors in {"max 100000": 8, "150000 100000": 2, "50000 100000": 1, "1600000 100000": 8}.items():
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
        assert machine.cores() == processors, limit

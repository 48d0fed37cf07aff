"""Runs belong to a role, not to its name: they follow a rename, and a new role of an old name has none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg2.extensions import make_dsn

from tests.sql import users
from tests.sql.users import Town
from tests.thorough import landing

TABLES = (
    "request", "profile", "heartbeat", "decision", "attempt", "evaluation", "hop", "event", "model", "configuration",
    "architecture", "run",
)  # fmt: skip


@pytest.fixture
def town(server: str) -> Iterator[Town]:
    with users.town(server) as made:
        yield made


@pytest.mark.parametrize("name", landing(["ann", 'Ann\'s "B"'], 'Ann\'s "B"'))
def test_runs_follow_a_renamed_role(town: Town, name: str) -> None:
    ann = town.user("ann", "cerebro_user")
    users.equip(ann)
    town("SELECT cerebro.set_limits(%s, max_running_runs => 7)", ann.name)
    run = users.fit(ann)
    new = f"{name}_{town.mark}_x"
    quoted = town("SELECT quote_ident(%s)", new)[0]
    town(f"ALTER ROLE {ann.name} RENAME TO {quoted}")
    if town.greenplum:  # an open session can start no process on a segment any more
        ann.dsn = make_dsn(ann.dsn, user=new)
        ann.log_in()
    try:
        assert ann("SELECT status FROM cerebro.runs WHERE run = %s", run) == ["finished"]
        assert ann("SELECT DISTINCT owner::text FROM cerebro.leaderboard") == [new]
        assert ann("SELECT allowed FROM cerebro.limits WHERE name = 'running_runs'") == [7]
        assert ann("SELECT cerebro.resume(%s, epochs => 2)", run) == [run]
        again = users.fit(ann, "more")
        assert set(ann("SELECT run FROM cerebro.runs")) == {run, again}
        ann("SELECT cerebro.forget(%s)", run)
        assert ann("SELECT run FROM cerebro.runs") == [again]
    finally:
        town(f"ALTER ROLE {quoted} RENAME TO {ann.name}")


def test_a_new_role_of_an_old_name_has_nothing_of_the_old_one(town: Town) -> None:
    ann = town.user("ann", "cerebro_user")
    users.equip(ann)
    town("SELECT cerebro.set_limits(%s, max_running_runs => 7)", ann.name)
    run = users.fit(ann)
    number = town("SELECT %s::regrole::oid", ann.name)[0]
    ann.connection.close()
    town(f"DROP OWNED BY {ann.name} CASCADE; DROP ROLE {ann.name}")
    town.users.remove(ann)
    town.roles.remove(ann.name)
    heir, adam = town.user("ann", "cerebro_user"), town.user("adam", "cerebro_user", "cerebro_admin", "cerebro_monitor")
    assert heir.name == ann.name
    assert heir("SELECT run FROM cerebro.runs") == []
    for table in TABLES:
        assert heir(f"SELECT count(*) FROM cerebro.{table}") == [0], table
    assert heir("SELECT allowed FROM cerebro.limits WHERE name = 'running_runs'") == [None]
    assert adam("SELECT owner::text FROM cerebro.runs WHERE run = %s", run) == [f"unknown (OID={number})"], (
        "a monitor sees whose it was"
    )
    adam("SELECT cerebro.forget(%s)", run)
    assert town("SELECT count(*) FROM cerebro.event WHERE run = %s", run) == [0]

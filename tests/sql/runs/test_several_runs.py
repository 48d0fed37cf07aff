"""Several runs at once share the processors: which waits for which, what it says, and that results stay the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sql import users
from tests.sql.lab import CROSS, Lab, eventually, flower_model, run
from tests.sql.users import Town

SEGMENTS = 2
LONG, LONGER, SHORT = 100_000, 1_000_000, 2  # epochs


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    lab.iris(SEGMENTS)
    arch = lab.architecture(flower_model())
    lab.selection(
        "mst", [(arch, f"optimizer='SGD(lr={rate})', {CROSS}", "batch_size=8, epochs=1") for rate in (0.1, 0.2)]
    )
    # However many processors the machine has: two runs of this user do not work at the same time.
    lab("SELECT cerebro.set_limits(current_user::text, max_processors => 1)")
    yield lab
    lab("DELETE FROM cerebro.role_limit")


@pytest.fixture
def submitted(place: Lab) -> Iterator[Any]:
    """Submits runs, and ends them."""
    begun: list[int] = []

    def submit(epochs: int, **options: Any) -> int:
        options = {"seed": 1, "threads": 1, **options}
        begun.append(place.submit("train", f"submitted_{len(begun)}", "mst", epochs, options=options))
        return begun[-1]

    yield submit
    for number in begun:
        place("SELECT cerebro.cancel(%s)", number)
    for number in begun:
        place("SELECT cerebro.wait(%s, 60)", number)
        place(f"DROP TABLE IF EXISTS submitted_{begun.index(number)}, submitted_{begun.index(number)}_info,"
              f" submitted_{begun.index(number)}_summary")  # fmt: skip


def message(place: Lab, number: int) -> str | None:
    return place.value("SELECT message FROM cerebro.runs WHERE run = %s", number)  # type: ignore[no-any-return]


def hops(place: Lab, number: int) -> int:
    return place.value("SELECT count(*) FROM hop WHERE run = %s", number)  # type: ignore[no-any-return]


def turns(place: Lab, number: int) -> list[Any]:
    return place(
        "SELECT event, detail ->> 'reason' FROM event WHERE run = %s AND event IN ('waits', 'goes on')"
        " ORDER BY event_id",
        number,
    )


def fit(place: Lab, session: Any, output: str, **options: Any) -> int:
    run(session, f"DROP TABLE IF EXISTS {output}, {output}_info, {output}_summary")
    options = {"seed": 1, "threads": 1, **options}
    return place.fit("train", output, "mst", SHORT, on=session, options=options)


def test_the_run_with_least_time_left_goes_first(place: Lab, submitted: Any) -> None:
    long = submitted(LONG)
    eventually(lambda: hops(place, long) > 10, what="the long run trains")
    longer = submitted(LONGER)
    # As nobody knows how long it takes, it goes first until it knows.
    eventually(lambda: hops(place, longer) > 0, what="the longer run begins")
    eventually(lambda: message(place, longer) == f"waits for run {long}", what="the longer run waits")
    assert place("SELECT status, ended FROM cerebro.runs WHERE run = %s", longer) == [("running", False)]
    assert place("SELECT status, message FROM cerebro.run_progress WHERE run = %s", longer) == [
        ("running", f"waits for run {long}")
    ]
    first = hops(place, longer)
    before = hops(place, long)
    eventually(lambda: hops(place, long) > before + 50, what="the long run goes on")
    assert hops(place, longer) <= first + 2 * SEGMENTS  # what was under way when it looked
    with contextlib.closing(place.connect()) as session:
        short = fit(place, session, "short")  # it does not wait for the end of the others, which takes minutes
    assert not turns(place, short)
    assert ("waits", f"run {short}") in turns(place, long) + turns(place, longer)
    place("SELECT cerebro.cancel(%s)", long)
    eventually(lambda: message(place, longer) is None, what="nothing keeps the longer run waiting")
    eventually(lambda: hops(place, longer) > first + 50, what="the longer run trains")
    assert turns(place, longer)[-1] == ("goes on", None)


def test_nobody_waits_for_a_driver_that_is_gone(place: Lab, submitted: Any) -> None:
    long = submitted(LONG)
    eventually(lambda: hops(place, long) > 10, what="the long run trains")
    longer = submitted(LONGER)
    eventually(lambda: message(place, longer) == f"waits for run {long}", what="the longer run waits")
    before = hops(place, longer)
    place("SELECT pg_terminate_backend(driver_pid) FROM cerebro.runs WHERE run = %s", long)
    eventually(lambda: hops(place, longer) > before + 50, what="the longer run trains")


def test_waiting_changes_no_results(place: Lab, submitted: Any) -> None:
    losses = "SELECT model, hop, loss, state_sha256 FROM hop WHERE run = %s ORDER BY model, hop"
    with contextlib.closing(place.connect()) as session:
        alone = fit(place, session, "alone", deterministic=True)
        timed = submitted(LONG, budget={"seconds": 8})
        eventually(lambda: hops(place, timed) > 0, what="the run with a budget trains")
        assert not turns(place, timed)
        session.notices.clear()
        waited = fit(place, session, "waited", deterministic=True)
        assert turns(place, waited) == [("waits", f"run {timed}"), ("goes on", None)]
        said = [notice for notice in session.notices if f"run {waited} " in notice]
        assert sum(f"run {waited} waits for run {timed}" in notice for notice in said) == 1, said
        assert place("SELECT status, reason FROM cerebro.runs WHERE run = %s", timed) == [("finished", "budget")]
    assert place(losses, waited) == place(losses, alone)


def test_a_run_that_waits_can_be_cancelled_and_resumed(place: Lab, submitted: Any) -> None:
    timed = submitted(LONG, budget={"seconds": 15})
    eventually(lambda: hops(place, timed) > 0, what="the run with a budget trains")
    short = submitted(SHORT)
    eventually(lambda: message(place, short) == f"waits for run {timed}", what="the short run waits")
    assert not hops(place, short)
    assert not place(
        "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE %s", f"%segment%run {short}"
    )  # no trainers
    place("SELECT cerebro.cancel(%s)", short)
    assert place("SELECT cerebro.wait(%s, 30)", short) == [("cancelled",)]
    with contextlib.closing(place.connect()) as session:
        run(session, "SELECT cerebro.resume(%s)", short)
    assert turns(place, short)[-1] == ("goes on", None)
    assert place("SELECT status FROM cerebro.runs WHERE run = %s", short) == [("finished",)]


def test_a_run_in_its_callers_own_session_does_not_wait(place: Lab, submitted: Any) -> None:
    if place.greenplum:
        pytest.skip("a fault of Greenplum 7.0.0: beside other sessions, an open transaction loses rows")
    timed = submitted(LONG, budget={"seconds": 15})
    eventually(lambda: hops(place, timed) > 0, what="the run with a budget trains")
    with contextlib.closing(place.connect()) as session:
        own = fit(place, session, "own", execution="session")
    assert not turns(place, own)
    assert place("SELECT status FROM cerebro.runs WHERE run = %s", timed) == [("running",)]


def test_who_of_another_owner_keeps_a_run_waiting_is_said(server: str) -> None:
    """Trainers with a thread for each processor cannot work side by side."""
    with users.town(server) as town:
        ann, bob = (town.user(name, "cerebro_user") for name in ("ann", "bob"))
        for user in (ann, bob):
            users.equip(user, segments=1)
        timed = ann("SELECT cerebro.fit('packed', 'many', 'mst', epochs => 100000, wait => false,"
                    " options => '{\"budget\": {\"seconds\": 10}}')")[0]  # fmt: skip
        eventually(lambda: ann("SELECT count(*) FROM cerebro.hop WHERE run = %s", timed)[0], what="ann's run trains")
        users.fit(bob)
        (mine,) = bob("SELECT max(run) FROM cerebro.runs")
        told = bob("SELECT detail ->> 'reason' FROM cerebro.event WHERE run = %s AND event = 'waits'", mine)
        assert told == [f"run {timed} of {ann.name}"]
        assert bob("SELECT run FROM cerebro.runs") == [mine]  # bob sees no more of it
        ann("SELECT cerebro.wait(%s)", timed)


def test_limits_of_processors(place: Lab, server: str) -> None:
    found = dict((name, allowed) for name, allowed in place("SELECT name, allowed FROM cerebro.limits"))
    assert (found["processors"], found["processor_share"]) == (1, 1)
    with users.town(server) as town:
        cat = town.user("cat", "cerebro_user")
        town("SELECT cerebro.set_limits(%s, processor_share => 3)", cat.name)
        assert cat("SELECT allowed FROM cerebro.limits WHERE name LIKE 'processor%%' ORDER BY name") == [3, None]
        cat.refused("SELECT cerebro.set_limits(NULL, processor_share => 9)")
        assert isinstance(town, Town)
        town("DELETE FROM cerebro.role_limit WHERE role = %s::regrole", cat.name)

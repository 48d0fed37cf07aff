"""The name of a run's model tables is taken from the start of the call to the end of the run."""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sql import users
from tests.sql.lab import CROSS, Lab, eventually, flower_model, natural_fit, run
from tests.sql.runs.test_cancels import Call, next_run, transaction

LONG = 100_000  # epochs


@pytest.fixture(scope="module")
def place(lab: Lab) -> Lab:
    lab.iris(segments=1)
    lab.selection("mst", [(lab.architecture(flower_model()), f"optimizer='SGD(lr=0.1)', {CROSS}", "batch_size=16")])
    return lab


def refused(place: Lab, model_table: str, why: str) -> str:
    with contextlib.closing(place.connect()) as another, pytest.raises(Exception, match=why) as error:
        run(another, *natural_fit("train", model_table, "mst", 1))
    return str(error.value)


def end(place: Lab, number: int) -> None:
    place("SELECT cerebro.cancel(%s)", number)
    eventually(lambda: place.status(number) == "cancelled", 60, "it is cancelled")


@pytest.mark.parametrize("wait", [True, False])
def test_a_second_run_is_refused_at_once(place: Lab, wait: bool) -> None:
    name = f"twice_{wait}".lower()
    with transaction(place) as caller:
        call = Call(place, *natural_fit("train", name, "mst", LONG, wait=wait))
        of_name = "SELECT run FROM cerebro.runs WHERE model_table = %s AND status = 'running'"
        ((number,),) = eventually(lambda: place(of_name, f"{place.schema}.{name}"), 60, "it runs")
        error = refused(place, name, f"run {number} of yours is making '{place.schema}.{name}' now")
        assert f"cerebro.wait({number})" in error
        with pytest.raises(Exception, match=f"run {number} of yours"):
            place("SELECT madlib_fit_multiple_model('train', %s, 'mst', 1)", name)
        assert place.value("SELECT count(*) FROM cerebro.runs WHERE model_table = %s", f"{place.schema}.{name}") == 1
        caller.rollback()
    end(place, number)
    call.end()
    place(*natural_fit("train", name, "mst", 1))  # the name is free again
    with pytest.raises(Exception, match="already exists"):
        place("SELECT cerebro.resume(%s)", number)


def test_rows_that_are_being_packed(place: Lab) -> None:
    """No run is on record yet."""
    with transaction(place) as blocker:
        run(blocker, "LOCK TABLE flowers IN ACCESS EXCLUSIVE MODE")
        call = Call(place, "SELECT cerebro.train('flowers', 'early', 'species', epochs => 1, max_configurations => 1)")
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'flowers'::regclass"
        eventually(lambda: place(waits), 60, "it waits for the rows")
        refused(place, "early", "another session of yours, with process id [0-9]+, is making '[^']*early' now")
        blocker.rollback()
    assert isinstance(call.end(), int)


def test_a_run_whose_driver_died_and_one_that_was_resumed(place: Lab) -> None:
    first = place.submit("train", "late", "mst", LONG)
    place.end_driver(first)
    eventually(lambda: place.status(first) == "interrupted", 60, "the driver is gone")
    second = place.submit("train", "late", "mst", LONG)
    for wait in (True, False):
        with pytest.raises(Exception, match=f"run {second} of yours is making") as error:
            place("SELECT cerebro.resume(%s, wait => %s)", first, wait)
        assert f"rename its tables and SELECT cerebro.resume({first})" in str(error.value)
    end(place, second)
    place("SELECT cerebro.resume(%s, wait => false)", first)
    with pytest.raises(Exception, match=f"run {first} of yours is making"):
        place("SELECT cerebro.resume(%s)", second)
    end(place, first)


def test_a_run_that_could_not_begin(place: Lab) -> None:
    """The limit is lowered while the run waits to begin.  Nobody will begin it, though its caller is still there."""
    with users.town(place.dsn) as town:
        ann = town.user("ann", "cerebro_user")
        users.equip(ann, segments=2)
        another = SimpleNamespace(connect=lambda: ann.another().connection)
        for wait in (True, False):
            town("SELECT cerebro.set_limits(%s, max_segments => 2)", ann.name)
            number = next_run(place)
            with transaction(place) as first:
                run(first, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", f"cerebro_db run {number}")
                call = Call(another, *natural_fit("packed", "models", "mst", 1, wait=wait))
                eventually(partial(ann, "SELECT 1 FROM cerebro.runs WHERE run = %s", number), 60, "it is on record")
                town("SELECT cerebro.set_limits(%s, max_segments => 1)", ann.name)
                first.rollback()
            assert "a run on 2 segments is more than you may have" in str(call.end())
            assert ann("SELECT status FROM cerebro.runs WHERE run = %s", number) == ["failed"]
        town("SELECT cerebro.set_limits(%s, max_segments => 2)", ann.name)
        users.fit(ann.another())


def test_others_have_their_own_names_and_locks_of_others_do_not_count(place: Lab) -> None:
    with users.town(place.dsn) as town:
        ann: Any = town.user("ann", "cerebro_user")
        users.equip(ann, segments=1)
        key = f"cerebro_db model table {ann.name}.models"
        with transaction(place) as stranger:
            run(stranger, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", key)
            users.fit(ann)

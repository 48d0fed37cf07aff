"""What follows the training of a call is on record: a run that is resumed, or that nobody waits for, has it, too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sql.lab import Lab, eventually, run, verb
from tests.sql.runs.test_cancels import Call, no_hop, transaction
from tests.sql.runs.test_ensembling import FEW as MANY
from tests.sql.runs.test_ensembling import NOISY
from tests.thorough import landing

STEPS = ["ensemble", "calibrate"]
FEW = {**MANY, "epochs": 3, "max_configurations": 2}


@pytest.fixture(scope="module")
def noisy(lab: Lab) -> Lab:
    if lab.greenplum:
        pytest.skip("on Greenplum, an error would end the call")
    lab(NOISY)
    return lab


def train(model: str, **more: Any) -> list[Any]:
    return verb("train", "noisy", model, **{"target": "class", **FEW, **more})


def followed(lab: Lab, number: int) -> list[str]:
    """The steps that are done, in their order."""
    done = "SELECT detail ->> 'task' FROM cerebro.event WHERE run = %s AND event = 'followed' ORDER BY event_id"
    return [task for (task,) in lab(done, number)]


def require_whole(lab: Lab, number: int, model: str, times: int = 1) -> None:
    """The table has what an uninterrupted call leaves."""
    assert lab.status(number) == "finished" and followed(lab, number) == STEPS * times
    rows = lab(f"SELECT calibration IS NOT NULL FROM {model}_info ORDER BY configuration")
    # The best of the models is the ensemble, and it is calibrated.
    assert rows == [(False,)] * FEW["max_configurations"] + [(True,)]
    assert lab.value("SELECT message FROM cerebro.runs WHERE run = %s", number) is None
    with pytest.raises(Exception, match=f"run {number} is finished"):
        lab("SELECT cerebro.resume(%s)", number)


def test_a_call_that_is_waited_for_and_one_that_is_not(noisy: Lab) -> None:
    waited = noisy.value(*train("waited"))
    require_whole(noisy, waited, "waited")
    number = noisy.value(*train("submitted", wait=False))
    assert noisy.value("SELECT cerebro.wait(%s, 120)", number) == "finished"
    require_whole(noisy, number, "submitted")
    assert noisy.weights("waited") == noisy.weights("submitted")


def test_an_interruption_of_the_training(noisy: Lab) -> None:
    with no_hop(noisy):
        number = noisy.value(*train("killed", wait=False))
        noisy.end_driver(number)
        eventually(lambda: noisy.status(number) == "interrupted", 60, "the driver is gone")
    noisy.told()
    noisy("SELECT cerebro.resume(%s)", number)
    assert any("cerebro.predict('" in line for line in noisy.told())
    require_whole(noisy, number, "killed")


@pytest.mark.parametrize("step", landing([0, 1], 1))  # then the step before it is undone, too
def test_an_interruption_after_the_training(noisy: Lab, step: int) -> None:
    """While a step is carried out: the tables and the steps before it are undone with it."""
    model = f"undone_{step}"
    with transaction(noisy) as blocker:
        noisy(
            "CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF new.event = 'followed' AND new.detail ->> 'task' = TG_ARGV[0] THEN"
            " PERFORM pg_advisory_xact_lock(4711); END IF; RETURN new; END $$"
        )
        noisy(f"CREATE TRIGGER wait_here BEFORE INSERT ON cerebro.event FOR EACH ROW EXECUTE FUNCTION"
              f" wait_here('{STEPS[step]}')")  # fmt: skip
        run(blocker, "SELECT pg_advisory_xact_lock(4711)")
        try:
            call = Call(noisy, *train(model))
            waits = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 4711"
            ((pid,),) = eventually(lambda: noisy(waits), 120, "the step waits")
            name = f"{noisy.schema}.{model}"
            ((number, status),) = noisy("SELECT run, status FROM cerebro.runs WHERE model_table = %s", name)
            assert status == "finishing"
            noisy("SELECT pg_cancel_backend(%s)", pid)
            assert "cancel" in str(call.end())
        finally:
            blocker.rollback()
            noisy("DROP TRIGGER wait_here ON cerebro.event; DROP FUNCTION wait_here()")
    assert model not in noisy.tables() and followed(noisy, number) == []
    message = noisy.value("SELECT message FROM cerebro.runs WHERE run = %s", number)
    assert message == f"its models are in no table; SELECT cerebro.resume({number}) makes it"
    noisy("SELECT cerebro.resume(%s, wait => false)", number)
    assert noisy.value("SELECT cerebro.wait(%s, 120)", number) == "finished"
    require_whole(noisy, number, model)


def test_a_run_that_is_extended(noisy: Lab) -> None:
    number = noisy.value(*train("longer"))
    noisy("SELECT cerebro.resume(%s, epochs => 4)", number)
    require_whole(noisy, number, "longer", times=2)


def test_a_run_that_an_earlier_version_made(noisy: Lab) -> None:
    """Its options have no list."""
    with no_hop(noisy):
        number = noisy.value(*train("older", wait=False))
        noisy.end_driver(number)
        eventually(lambda: noisy.status(number) == "interrupted", 60, "the driver is gone")
    noisy("UPDATE cerebro.run SET options = options - 'follows' WHERE run = %s", number)
    noisy("SELECT cerebro.resume(%s)", number)
    assert noisy.status(number) == "finished" and followed(noisy, number) == []

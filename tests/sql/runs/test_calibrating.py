"""cerebro.train calibrates its best model, so that intervals can be predicted at once. It never fails over that."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from typing import Any

import psycopg2
import pytest

from tests.sql.lab import Lab, eventually, layer, run, sequential, trainer_processes
from tests.thorough import landing

HOUSES = """
CREATE TABLE houses AS SELECT i AS id, (i * 37 % 91)::real AS size, (i % 7)::real AS rooms,
  ((i * 37 % 91) * 40 + (i * 7919 % 13) * 100)::real AS price,
  CASE WHEN (i * 37 % 91) + (i * 7919 % 13) > 50 THEN 'dear' ELSE 'cheap' END AS class
FROM generate_series(1, 600) i;
"""
FEW = {"inputs": "size, rooms", "epochs": 2, "max_configurations": 2, "options": {"seed": 1}}
DONE = "NOTICE:  the best model is calibrated on the rows for validation"
NOT_DONE = "NOTICE:  the best model is not calibrated"


@pytest.fixture(scope="module")
def houses(lab: Lab) -> Lab:
    if lab.greenplum:
        pytest.skip("on Greenplum, an error would end the call")
    lab(HOUSES)
    return lab


def train(lab: Lab, model: str, target: str, on: Any = None, **more: Any) -> int:
    given = {"target": target, **FEW, **more}
    values = [json.dumps(one) if isinstance(one, (dict, list)) else one for one in given.values()]
    lab.told()
    named = ", ".join(f"{name} => %s" for name in given)
    return run(on or lab.db, f"SELECT cerebro.train('houses', %s, {named})", model, *values)[0][0]


def calibrated(lab: Lab, model: str) -> list[tuple[int, bool]]:
    """The configurations that have a calibration, with whether it is the best one."""
    return lab(
        f"SELECT configuration, objective_value = (SELECT min(objective_value) FROM {model}_info)"
        f" FROM {model}_info WHERE calibration IS NOT NULL"
    )


def test_intervals_at_once(houses: Lab) -> None:
    train(houses, "prices", "price")
    (said,) = [line for line in houses.told() if line.startswith(DONE)]
    assert re.search(r": intervals with coverage 0\.9 are [\d,.]+ wide on average", said)
    assert [best for _, best in calibrated(houses, "prices")] == [True]
    rows = houses(
        "SELECT lower, value, upper, price FROM houses JOIN"
        " cerebro.predict('prices', 'SELECT * FROM houses', coverage => 0.9) p ON p.key_value = id::text"
    )
    assert len(rows) == 600 and all(lower < value < upper for lower, value, upper, _ in rows)
    assert 0.8 < sum(lower <= price <= upper for lower, _, upper, price in rows) / 600 < 0.99
    # It is what calibrate() keeps.
    kept = houses("SELECT calibration FROM prices_info ORDER BY configuration")
    houses("UPDATE prices_info SET calibration = NULL; SELECT * FROM cerebro.calibrate('prices')")
    assert houses("SELECT calibration FROM prices_info ORDER BY configuration") == kept


def test_a_model_that_cannot_be_calibrated(houses: Lab) -> None:
    """Its outputs are no probabilities."""
    architecture = sequential([2], layer("Dense", "out", units=2))
    number = train(houses, "numbers", "class", architectures=[architecture], space={"loss": "mse"})
    assert houses.status(number) == "finished"
    (said,) = [line for line in houses.told() if "calibrated" in line]
    assert said.startswith(f"{NOT_DONE}: ") and "are no probabilities" in said
    assert "cerebro.calibrate(" not in said and not calibrated(houses, "numbers")  # which would be refused, too


@pytest.mark.parametrize("budget", landing(["2 seconds", "40 seconds"], "2 seconds"))
def test_whatever_the_budget_is(houses: Lab, budget: str) -> None:
    model = f"within_{budget.split()[0]}"
    number = train(houses, model, "price", budget=budget)
    assert houses.status(number) == "finished"
    assert any(line.startswith(DONE) for line in houses.told())
    assert len(calibrated(houses, model)) == 1


def test_a_cancel_ends_the_call(houses: Lab) -> None:
    """It is no error of the calibration.  The run is finished, and its models can still be handed out."""
    ended: list[psycopg2.Error] = []
    with contextlib.closing(houses.connect()) as caller:
        ((pid,),) = run(caller, "SELECT pg_backend_pid()")

        def call() -> None:
            try:
                train(houses, "ended", "price", on=caller)
            except psycopg2.Error as error:
                ended.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        # The caller's session has a trainer of its own only to calibrate.
        own = eventually(lambda: [one for one, session in trainer_processes(houses.home) if session == pid], 120)
        os.kill(own[0], signal.SIGSTOP)
        houses("SELECT pg_cancel_backend(%s)", pid)
        thread.join(60)
    assert not thread.is_alive() and [error.pgcode for error in ended] == ["57014"]
    assert "ended" not in houses.tables()
    ((number, status),) = houses("SELECT run, status FROM runs WHERE model_table ~ 'ended'")
    assert status == "finished"
    houses("SELECT materialize(%s, 'ended')", number)
    assert houses.value("SELECT count(*) FROM ended") >= 1

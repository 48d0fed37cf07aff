"""cerebro.create_predictor: replacing a predictor, and calling it while its model is replaced."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from tests.sql.lab import Lab, run
from tests.thorough import tries

TABLES = ("", "_info", "_summary")
CALL = "SELECT rent_of(10.0, 'Rome')"


@pytest.fixture(scope="module")
def twins(lab: Lab) -> Lab:
    """``low`` and ``high`` predict numbers far apart, from the same columns; ``kinds`` predicts a class."""
    lab(
        # The numbers of ``high`` are close together, compared with their size: they are different nevertheless.
        "CREATE TABLE flats AS SELECT (i % 91)::real AS size, (ARRAY['Rome', 'Bonn'])[1 + i % 2] AS city, i AS low,"
        " 1e6 + i AS high, CASE WHEN i % 3 = 0 THEN 'a' ELSE 'b' END AS kind FROM generate_series(1, 60) i"
    )
    for target in ("low", "high", "kind"):
        given = {
            "target": target, "inputs": "size, city", "prepare": {"low": "number", "size": "standard"}, "epochs": 1,
            "segments": 1, "validation": 0,
        }  # fmt: skip
        values = [json.dumps(one) if isinstance(one, dict) else one for one in given.values()]
        named = ", ".join(f"{name} => %s" for name in given)
        lab(f"SELECT cerebro.fit('flats', %s, %s, {named})", target, '{"architecture": "mlp", "units": 4}', *values)
    # Another run numbers its configurations in its own way.
    lab("UPDATE high SET configuration = 5; UPDATE high_info SET configuration = 5")
    return lab


def put(lab: Lab, model: str, name: str = "live") -> str:
    """Statements of one transaction that replace a model table."""
    dropped = ", ".join(f"{name}{ending}" for ending in TABLES)
    made = "; ".join(f"CREATE TABLE {name}{ending} AS TABLE {model}{ending}" for ending in TABLES)
    return f"BEGIN; DROP TABLE IF EXISTS {dropped}; {made}; COMMIT"


@pytest.fixture
def live(twins: Lab) -> Lab:
    twins("SET client_min_messages = warning; " + put(twins, "low"))
    twins("DROP FUNCTION IF EXISTS rent_of(real, text) CASCADE; DROP FUNCTION IF EXISTS rent_of(text) CASCADE")
    twins("SELECT create_predictor('live', 'rent_of')")
    return twins


def test_a_call_while_the_model_is_replaced_gives_the_old_or_the_new_answer(live: Lab) -> None:
    answers: list[float] = []
    failed: list[BaseException] = []
    end = threading.Event()

    def ask() -> None:
        with contextlib.closing(live.connect()) as connection:
            try:
                while not end.is_set():
                    answers.append(run(connection, CALL)[0][0])
            except BaseException as error:
                failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with contextlib.closing(live.connect()) as another:
            run(another, "SET client_min_messages = warning")
            for number in range(tries(8)):
                before = len(answers)
                run(another, put(live, ("high", "low")[number % 2]))
                while len(answers) < before + 2 and not failed:
                    end.wait(0.002)
    finally:
        end.set()
        asking.join()
    assert not failed, failed
    known = {live.value(CALL)}
    live(put(live, "high"))
    known.add(live.value(CALL))
    assert set(answers) == known and max(known) - min(known) > 1e5


def test_a_transaction_that_cannot_see_the_new_model_says_so(live: Lab) -> None:
    with contextlib.closing(live.connect()) as old:
        run(old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        live(put(live, "high"))
        with pytest.raises(errors.SerializationFailure, match="made after this transaction began") as error:
            run(old, CALL)
        assert "new transaction" in error.value.diag.message_hint
        run(old, "ROLLBACK")
        assert run(old, CALL)[0][0] > 1e5


def test_a_number_stays_chosen(live: Lab) -> None:
    live("SELECT create_predictor('live', 'rent_of', 1, replace => true)")
    before = live.value(CALL)
    live("UPDATE live SET configuration = 1; UPDATE live_info SET configuration = 1")
    assert live.value(CALL) == before
    live(put(live, "high"))
    with pytest.raises(psycopg2.Error, match="'live' has no configuration 1|has no configuration 1"):
        live(CALL)


def test_replacing_a_predictor(live: Lab) -> None:
    low = live.value(CALL)
    with pytest.raises(errors.DuplicateFunction, match="already exists with same argument types") as error:
        live("SELECT create_predictor('high', 'rent_of')")
    assert "replace => true" in error.value.diag.message_hint
    live("CREATE VIEW rents AS SELECT rent_of(10.0, 'Rome') AS rent")
    live("SELECT create_predictor('high', 'rent_of', replace => true)")
    assert live.value(CALL) == live.value("SELECT rent FROM rents") != low
    comment = "SELECT obj_description('rent_of(real, text)'::regprocedure)"
    assert live.value(comment) == f"Predicts high with the best model of {live.schema}.high. Made by cerebro_db."
    # Another result is another function, on which the view does not depend.
    with pytest.raises(errors.DependentObjectsStillExist, match="other objects depend on it") as error:
        live("SELECT create_predictor('kind', 'rent_of', replace => true)")
    assert error.value.diag.message_hint and live.value(CALL) != low
    live("DROP VIEW rents")
    live("SELECT create_predictor('kind', 'rent_of', replace => true)")
    assert live.value(CALL) in ("a", "b")


def test_a_column_that_a_call_leaves_out_is_null(live: Lab) -> None:
    for named, values in (("size => 10.0", "10.0, NULL"), ("city => 'Rome'", "NULL, 'Rome'"), ("", "NULL, NULL")):
        assert live.value(f"SELECT rent_of({named})") == live.value(f"SELECT rent_of({values})")
    assert live.value("SELECT rent_of(city => 'Rome', size => 10.0)") == live.value(CALL)


def test_only_predictors_are_replaced(live: Lab) -> None:
    live("CREATE FUNCTION mine(size real, city text) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'")
    live("CREATE FUNCTION rent_of(text) RETURNS text LANGUAGE sql AS 'SELECT $1'")
    with pytest.raises(errors.DuplicateFunction, match="already exists") as error:
        live("SELECT create_predictor('low', 'mine', replace => true)")
    assert "has not made it" in error.value.diag.message_hint
    live(
        "SELECT cerebro.fit('flats', 'sizes', '{\"architecture\": \"mlp\", \"units\": 4}', target => 'low',"
        ' inputs => \'size\', prepare => \'{"low": "number", "size": "standard"}\', epochs => 1, segments => 1,'
        " validation => 0)"
    )
    live("SELECT create_predictor('sizes', 'rent_of', replace => true)")
    found: list[Any] = live(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'rent_of' AND pronamespace = %s::regnamespace"
        " ORDER BY 1", live.schema,
    )  # fmt: skip
    assert found == [("rent_of(real)",), ("rent_of(text)",)]

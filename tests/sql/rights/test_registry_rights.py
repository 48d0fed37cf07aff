"""Who may do what with a registered model: nobody but its owner, until it is shared; and never more than was shared."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import errors

from cerebro_db import client
from cerebro_db.client.cerebro import Cerebro
from cerebro_db.core import protocol
from cerebro_db.core.parameters import params
from cerebro_db.core.protocol import BeginPrediction, PredictionInput, StateRef
from tests.conftest import ENGINE
from tests.sql.lab import eventually
from tests.sql.users import Town, User, equip, town

ROWS = "SELECT 1 AS id, ARRAY[0.3, 0.8]::real[] AS x"
ASK = "SELECT class, probability FROM cerebro.predict('{}', '" + ROWS + "')"


@dataclass
class Place:
    root: Town
    anna: User  # the owner
    ben: User  # a colleague
    model: str
    said: list[Any]

    @property
    def ask(self) -> str:
        return ASK.format(f"{self.model}@production")

    def table(self, ending: str = "", version: int = 1) -> str:
        return f'cerebro_registry."{self.model}@{version}{ending}"'


@pytest.fixture(scope="module")
def people(server: str) -> Iterator[tuple[Town, User, User]]:
    with town(server) as root:
        anna, ben = root.user("anna", "cerebro_user"), root.user("ben", "cerebro_user")
        configurations = [{"architecture": "mlp", "units": units} for units in (4, 8)]
        for user, given in ((anna, configurations), (ben, configurations[:1])):
            equip(user)
            user("SELECT cerebro.fit('packed', 'models', %s, epochs => 1)", json.dumps(given))
        yield root, anna, ben


@pytest.fixture
def place(people: tuple[Town, User, User], request: pytest.FixtureRequest) -> Place:
    root, anna, ben = people
    model = f"m_{root.mark}_{len(anna('SELECT registered_model FROM cerebro.registered_models'))}"
    anna(f"SELECT cerebro.register('{model}', 'models', 1, 'production')")
    return Place(root, anna, ben, model, anna(ASK.format(f"{model}@production")))


def test_without_a_right_there_is_no_model(place: Place) -> None:
    assert "there is no registered model" in str(place.ben.refused(place.ask, why=errors.UndefinedObject))
    for view in ("models", "versions", "aliases", "rights"):
        assert place.ben(f"SELECT * FROM cerebro.registered_{view} WHERE registered_model = '{place.model}'") == []
    assert place.ben("SELECT * FROM cerebro.registry_history WHERE registered_model = %s", place.model) == []
    for ending in ("", "_info", "_summary", "_weights"):
        place.ben.refused(f"SELECT * FROM {place.table(ending)}")
    place.ben.refused(ASK.format(place.table()))
    place.ben.refused(f"SELECT cerebro.register('{place.model}', 'models')")  # the name is anna's
    for call in ("set_alias('{}', 'production', 1)", "unregister('{}', 1)", "share('{}', 'cerebro_user')"):
        place.ben.refused(f"SELECT cerebro.{call.format(place.model)}", why=errors.UndefinedObject)


def test_the_right_to_use_gives_predictions_and_no_weights(place: Place, tmp_path: Path) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    assert place.ben(place.ask) == place.said
    assert place.ben(ASK.format(place.table())) == place.said  # by the name of its table
    judged = f"SELECT metric FROM cerebro.evaluate('{place.model}@1', '{ROWS}, ''up''::text AS y')"
    assert "accuracy" in place.ben(judged)
    refused = place.ben.refused(f"SELECT * FROM cerebro.embed('{place.model}@production', '{ROWS}')")
    assert "vectors of its layers would tell its weights" in str(refused)
    assert place.ben("SELECT may_use, may_read, may_move, owns FROM cerebro.registered_models"
                     " WHERE registered_model = %s", place.model) == [(True, False, False, False)]  # fmt: skip
    assert place.ben(f"SELECT weights FROM {place.table()}") == [None]
    place.ben.refused(f"SELECT * FROM {place.table('_weights')}")
    place.ben.refused(f"SELECT cerebro.register('mine_{place.root.mark}', '{place.model}@1')")
    place.ben.refused(f"SELECT cerebro.register('mine_{place.root.mark}', '{place.table()}')")
    place.ben.refused(f"CREATE TABLE copied AS SELECT * FROM {place.table('_weights')}")
    assert place.ben("SELECT * FROM cerebro.registered_models WHERE registered_model LIKE 'mine%'") == []
    with Cerebro(place.ben.dsn) as cerebro:
        for ending in ("safetensors", "keras", "cerebro"):
            with pytest.raises(client.ServerError, match="permission denied"):
                cerebro.export(f"{place.model}@production", str(tmp_path / f"x.{ending}"))
        with pytest.raises(client.ServerError, match="permission denied"):
            cerebro.model(f"{place.model}@production", 1)
    assert list(tmp_path.iterdir()) == []
    for call in ("set_alias('{}', 'production', 1)", "unregister('{}', 1)", "share('{}', 'cerebro_user')"):
        place.ben.refused(f"SELECT cerebro.{call.format(place.model)}")


def test_read_only_transactions_predict(place: Place) -> None:
    """As on a standby: the weights are fetched without writing anything."""
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    session = place.ben.another()
    session("BEGIN READ ONLY")
    assert session(place.ask) == place.said
    assert session(f"SELECT cerebro.registered_table('{place.model}@1')") == [f'"cerebro_registry"."{place.model}@1"']
    session("COMMIT")
    session.connection.close()


def test_versions_to_come_are_shared_too(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    place.anna(f"SELECT cerebro.register('{place.model}', 'models', 2, 'production')")
    assert place.ben(place.ask) == place.anna(ASK.format("models")) or place.ben(place.ask) != place.said
    assert place.ben(ASK.format(f"{place.model}@1")) == place.said
    place.ben.refused(f"SELECT * FROM {place.table('_weights', 2)}")


def test_a_right_that_was_taken_back_ends_at_once(place: Place) -> None:
    """Also in a session that has predicted, and for the trainer that waits for the user's next session."""
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    for _ in range(3):
        assert place.ben(place.ask) == place.said
    place.anna(f"SELECT cerebro.unshare('{place.model}', '{place.ben.name}')")
    place.ben.refused(place.ask, why=errors.UndefinedObject)
    place.ben.refused(ASK.format(place.table()))
    another = place.ben.another()
    another.refused(place.ask, why=errors.UndefinedObject)
    another.connection.close()
    rights = "SELECT * FROM cerebro.registered_rights WHERE registered_model = %s"
    assert place.anna(rights, place.model) == []
    events = (
        "SELECT event, role FROM cerebro.registry_history WHERE registered_model = %s AND role IS NOT NULL ORDER BY id"
    )
    assert place.anna(events, place.model) == [("shared", place.ben.name), ("unshared", place.ben.name)]


def test_the_right_to_read_gives_the_weights(place: Place, tmp_path: Path) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}', 'read')")
    assert place.ben(place.ask) == place.said
    with Cerebro(place.ben.dsn) as cerebro:
        made = cerebro.export(f"{place.model}@production", str(tmp_path / "x.safetensors"))
        assert made.difference < 1e-5
    assert place.ben(f"SELECT cerebro.register('b_{place.model}', '{place.model}@1')") == [1]
    assert place.ben(ASK.format(f"b_{place.model}@latest")) == place.said
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    place.anna(f"SELECT cerebro.unshare('{place.model}', '{place.ben.name}', 'read')")
    place.ben.refused(f"SELECT * FROM {place.table('_weights')}")
    assert place.ben(place.ask) == place.said  # the right to use stays


def test_the_right_to_move_aliases(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}', 'alias')")
    place.anna(f"SELECT cerebro.register('{place.model}', 'models', 2)")
    place.ben(f"SELECT cerebro.set_alias('{place.model}', 'production', 2, 'better')")
    moved = place.anna(
        f"SELECT version, set_by FROM cerebro.registered_aliases WHERE registered_model = '{place.model}'"
    )
    assert moved == [(2, place.ben.name)]
    assert place.ben(f"SELECT cerebro.roll_back('{place.model}', 'production')") == [1]
    place.ben.refused(ASK.format(place.table()))  # it is no right to predict
    place.ben.refused(f"SELECT cerebro.unregister('{place.model}', 2)")


def test_a_group_shares_its_rights(place: Place) -> None:
    group = f"team_{place.root.mark}"
    place.root(f"CREATE ROLE {group}; GRANT {group} TO {place.ben.name}")
    try:
        place.anna(f"SELECT cerebro.share('{place.model}', '{group}')")
        assert any("may call no function of cerebro_db yet" in notice for notice in place.anna.connection.notices)
        assert place.ben(place.ask) == place.said
        place.root(f"REVOKE {group} FROM {place.ben.name}")
        place.ben.refused(place.ask, why=errors.UndefinedObject)
    finally:
        place.root(f"DROP OWNED BY {group}; DROP ROLE {group}")
    # A role that is gone has no rights, and versions can be added.
    assert place.anna("SELECT * FROM cerebro.registered_rights WHERE registered_model = %s", place.model) == []
    assert place.anna(f"SELECT cerebro.register('{place.model}', 'models')") == [2]


def test_administrators_and_monitors(place: Place) -> None:
    adam, mona = place.root.user("adam", "cerebro_admin"), place.root.user("mona", "cerebro_monitor")
    place.anna(f"SELECT cerebro.register('{place.model}', 'models', 2)")
    adam(f"SELECT cerebro.set_alias('{place.model}', 'production', 2)")
    adam(f"SELECT cerebro.unregister('{place.model}', 1)")
    for call in ("share('{}', 'cerebro_admin', 'read')", "register('{}', 'models')"):
        adam.refused(f"SELECT cerebro.{call.format(place.model)}")
    adam.refused(place.ask)
    mona.refused("SELECT * FROM cerebro.registered_models")
    mona.refused("SELECT * FROM cerebro.registry_history")


def test_the_history_cannot_be_written_by_hand(place: Place) -> None:
    event = (
        f"INSERT INTO cerebro.registry_event (model, event, version, by) VALUES ('{place.model}', 'registered', 9, 'x')"
    )
    for user in (place.anna, place.ben):
        user.refused(event)
        user.refused("UPDATE cerebro.registry_event SET by = 'x'")
        user.refused("DELETE FROM cerebro.registry_event")
        user.refused("SELECT * FROM cerebro.registered_model")
        user.refused("SELECT cerebro_internal._as_registry()")
        user.refused("SET ROLE cerebro_registry")
        user.refused(f"CREATE TABLE {place.table('_more')} (a int)")
        user.refused(f"UPDATE {place.table('_info')} SET epoch = 7")
        user.refused(f"DROP TABLE {place.table()}")
        user.refused(f"ALTER TABLE {place.table()} DISABLE TRIGGER ALL")


@pytest.mark.throw_away  # on Greenplum, a function that a segment calls writes nothing
def test_no_code_of_a_user_runs_as_the_registry(place: Place) -> None:
    """A domain's check, a view as a model table, and a query that calls back: all that a user can put in its way."""
    anna = place.anna
    anna(
        "CREATE TABLE seen (who name);"
        " CREATE FUNCTION look(v anyelement) RETURNS boolean LANGUAGE plpgsql AS"
        f" $$ BEGIN INSERT INTO {anna.name}.seen VALUES (current_user); RETURN true; END $$;"
        " CREATE DOMAIN answer AS text CHECK (look(value));"
        " CREATE TABLE asked AS SELECT i AS id, i * 0.1 AS a, (ARRAY['no', 'yes'])[1 + i % 2]::answer AS b"
        " FROM generate_series(1, 40) i"
    )
    configuration = '[{"architecture": "mlp", "units": 4}]'
    anna("SELECT cerebro.fit('asked', 'answers', %s, target => 'b', epochs => 1, segments => 1)", configuration)
    for ending in ("", "_info", "_summary"):
        anna(f"ALTER TABLE answers{ending} RENAME TO kept{ending}")
        anna(f"CREATE VIEW answers{ending} AS SELECT * FROM kept{ending} WHERE look(1)")
    anna("TRUNCATE seen")
    anna(f"SELECT cerebro.register('answers_{place.root.mark}', 'answers')")
    asked = (
        "SELECT i AS id, i * 0.1 AS a, b FROM asked, generate_series(1, 2) i"
        " WHERE {anna}.call_back() AND asked.id = i".replace("{anna}", anna.name)
    )
    anna(
        "CREATE FUNCTION call_back() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " BEGIN PERFORM cerebro_internal._as_registry(); RAISE 'it ran';"
        " EXCEPTION WHEN insufficient_privilege THEN NULL; END;"
        f" PERFORM {anna.name}.look(1); RETURN true; END $$"
    )
    assert len(anna("SELECT * FROM cerebro.predict(%s, %s, 'id')", f"answers_{place.root.mark}@1", asked)) == 2
    assert set(anna("SELECT DISTINCT who FROM seen")) == {anna.name}


# -- orders by hand ------------------------------------------------------------------------------------------------


def to_predict(place: Place) -> str:
    """An order for the weights of the model, with an architecture of the enemy's own: its output is all weights."""
    oid = place.anna(f"SELECT '{place.table()}'::regclass::oid::bigint")[0]
    weights = "SELECT bytes / 4 FROM cerebro.registered_versions WHERE registered_model = %s AND version = 1"
    count = place.anna(weights, place.model)[0]
    keras = {"module": "keras.layers", "registered_name": None}
    layers = [
        {**keras, "class_name": "InputLayer", "config": {"batch_shape": [None, 1], "dtype": "int32", "name": "x"}},
        {**keras, "class_name": "Embedding", "config": {"input_dim": count, "output_dim": 1, "name": "all"}},
    ]
    network = {"module": "keras", "class_name": "Sequential", "config": {"name": "n", "layers": layers}}
    compiled = params.compile_params("optimizer='sgd', loss='mse'")
    configuration = {"architecture": network, "compile": compiled, "fit": params.fit_params(None)}
    inputs = [PredictionInput("x", "int32", [1])]
    return json.dumps(protocol.encode(BeginPrediction(configuration, inputs, StateRef.weights(f"registered {oid}"))))


ORDERS = (
    "cerebro_internal._work({order})",
    "cerebro_internal._state_in('w', 0, '\\x00')",
    "cerebro_internal._data_in('rows', 'x', '\\x00')",
    "(SELECT count(*) FROM cerebro_internal._state_out(1, 0))",
    "cerebro_internal._worker_open({settings})",
)


@pytest.mark.parametrize("call", ORDERS)
def test_no_order_by_hand_reaches_the_weights(place: Place, call: str) -> None:
    """While the model predicts, from a function of the query; and afterwards, while its trainer rests."""
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    settings = protocol.encode_settings(protocol.TrainerSettings(engine=ENGINE))
    given = call.format(order=f"$o${to_predict(place)}$o$", settings=f"$s${settings}$s$")
    place.ben(
        "CREATE TABLE IF NOT EXISTS told (said text); TRUNCATE told;"
        " CREATE OR REPLACE FUNCTION steal() RETURNS real[] LANGUAGE plpgsql AS $f$ DECLARE said text; BEGIN"
        f" BEGIN SELECT {given}::text INTO said; EXCEPTION WHEN OTHERS THEN said := SQLSTATE || ' ' || SQLERRM; END;"
        f" INSERT INTO {place.ben.name}.told VALUES (said); RETURN ARRAY[0.3, 0.8]; END $f$"
    )
    rows = f"SELECT 1 AS id, {place.ben.name}.steal() AS x"
    said = place.ben(f"SELECT class, probability FROM cerebro.predict('{place.model}@1', '{rows}')")
    assert said == place.said
    assert place.ben("SELECT said FROM told")[0].startswith("55006 "), place.ben("SELECT said FROM told")
    if "_worker_open" in call:  # another worker, which has no weights
        place.ben(f"SELECT {given}")
        place.ben(f"SELECT cerebro_internal._work($o${to_predict(place)}$o$)")
        one, other = ("cerebro_internal._array_bytes(ARRAY[0])", "cerebro_internal._array_bytes(ARRAY[1])")
        rows = f"SELECT cerebro_internal._predict(2, ARRAY[{one} || {other}])"
        error = place.ben.refused(rows, why=psycopg2.Error)
        assert "the model's state is not there" in str(error)
        place.ben("SELECT cerebro_internal._worker_close()")
    else:
        error = place.ben.refused(f"SELECT {given}", why=psycopg2.Error)
        assert "this process has no trainer" in str(error)
    assert place.ben(place.ask) == place.said


def test_what_an_earlier_order_has_left_gets_no_weights(place: Place) -> None:
    """A worker that its user has prepared: opened, with a state whose name is that of the weights to come."""
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    oid = place.anna(f"SELECT '{place.table()}'::regclass::oid::bigint")[0]
    settings = protocol.encode_settings(protocol.TrainerSettings(engine=ENGINE))
    place.ben(f"SELECT cerebro_internal._worker_open($s${settings}$s$)")
    place.ben(f"SELECT cerebro_internal._state_in('registered {oid}', 0, '\\x00000000')")
    place.ben(f"SELECT cerebro_internal._work($o${to_predict(place)}$o$)")
    before = place.ben("SELECT pg_backend_pid()")
    assert place.ben(place.ask) == place.said
    error = place.ben.refused(f"SELECT cerebro_internal._state_in('registered {oid}', 4, '\\x00')", why=psycopg2.Error)
    assert "this process has no trainer" in str(error) and place.ben("SELECT pg_backend_pid()") == before
    assert place.ben(place.ask) == place.said
    place.ben(
        "CREATE OR REPLACE FUNCTION close_it() RETURNS real[] LANGUAGE plpgsql AS $f$ BEGIN"
        " PERFORM cerebro_internal._worker_close(); RETURN ARRAY[0.3, 0.8]; END $f$"
    )
    rows = f"SELECT 1 AS id, {place.ben.name}.close_it() AS x"
    place.ben.refused(f"SELECT * FROM cerebro.predict('{place.model}@1', '{rows}')", why=errors.ObjectInUse)


def test_a_large_table_is_predicted_in_the_own_session(place: Place) -> None:
    """Worker sessions take orders by statements, which functions in views could send, too."""
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    place.ben(
        "CREATE TABLE many AS SELECT i AS id, ARRAY[sin(i), cos(i)]::real[] AS x, repeat('x', 500) AS wide"
        " FROM generate_series(1, 12000) i"
    )
    assert place.ben("SELECT pg_total_relation_size('many') > 4 << 20") == [True]
    assert place.ben(f"SELECT cerebro.predict_into('{place.model}@1', 'many', 'said', 'id')") == [12000]
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'cerebro_db segment%%'"
    assert place.ben(sessions) == [0]
    asked = f"SELECT key_value, class, probability FROM cerebro.predict('{place.model}@1', 'SELECT * FROM many', 'id')"
    assert sorted(place.ben(asked)) == sorted(place.ben("SELECT id::text, predicted_y, probability FROM said"))


# -- snapshots, locks and repairs ------------------------------------------------------------------------------------


def test_an_old_snapshot_gives_no_right_back(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}', 'read')")
    other = place.anna.another()
    other("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    place.anna(f"SELECT cerebro.unshare('{place.model}', '{place.ben.name}', 'read')")
    other.refused(f"SELECT cerebro.register('{place.model}', 'models', 2)", why=errors.SerializationFailure)
    other("ROLLBACK")
    other.connection.close()


def test_a_right_that_is_taken_while_a_call_waits(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}', 'alias')")
    place.anna("BEGIN")
    place.anna(f"SELECT cerebro.unshare('{place.model}', '{place.ben.name}', 'alias')")
    said: list[Any] = []

    def move() -> None:
        said.append(place.ben.refused(f"SELECT cerebro.set_alias('{place.model}', 'x', 1)", why=psycopg2.Error))

    waiting = threading.Thread(target=move)
    waiting.start()
    eventually(lambda: place.root("SELECT count(*) FROM pg_locks WHERE NOT granted")[0] > 0)
    place.anna("COMMIT")
    waiting.join()
    assert said[0].pgcode == "42704" and "there is no registered model" in str(said[0])


def test_unsharing_what_was_not_shared(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}', 'read')")
    error = place.anna.refused(
        f"SELECT cerebro.unshare('{place.model}', '{place.ben.name}')", why=errors.UndefinedObject
    )
    assert error.diag.message_hint == f"{place.ben.name} has read."
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    place.anna.connection.notices.clear()
    place.anna(f"SELECT cerebro.unshare('{place.model}', '{place.ben.name}')")
    assert any("still has the right 'use'" in notice for notice in place.anna.connection.notices)
    assert place.ben(place.ask) == place.said
    for call in ("share('{}', 'cerebro_registry')", f"unshare('{{}}', '{place.anna.name}')"):
        place.anna.refused(f"SELECT cerebro.{call.format(place.model)}", why=errors.InvalidParameterValue)
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.anna.name}')")  # gives lost privileges again


def test_dropped_privileges_are_given_again(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    place.root(f"REVOKE SELECT ON {place.table()} FROM {place.ben.name}")
    place.ben.refused(place.ask)
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    assert place.ben(place.ask) == place.said


def test_a_reader_holds_up_nobody_else(place: Place) -> None:
    place.anna(f"SELECT cerebro.share('{place.model}', '{place.ben.name}')")
    place.anna(f"SELECT cerebro.register('{place.model}', 'models', 2, 'production')")
    place.ben(f"BEGIN; SELECT 1 FROM {place.table()}")
    error = place.anna.refused(f"SELECT cerebro.unregister('{place.model}', 1)", why=errors.ObjectInUse)
    assert "is being read" in str(error)
    place.anna(f"SELECT cerebro.set_alias('{place.model}', 'other', 2)")
    place.ben("COMMIT")
    place.anna(f"SELECT cerebro.unregister('{place.model}', 1)")


def test_what_users_write_breaks_no_view(place: Place) -> None:
    """The history repeats what the summary says; a value that is no date, or much too long, does not come into it."""
    anna = place.anna
    anna("CREATE TABLE bad AS TABLE models; CREATE TABLE bad_info AS TABLE models_info")
    anna("CREATE TABLE bad_summary AS SELECT s.*, 1 AS more FROM models_summary s")
    anna("ALTER TABLE bad_summary ALTER started_at TYPE text USING 'not a date'")
    anna.refused(f"SELECT cerebro.register('{place.model}', 'bad')", why=psycopg2.Error)
    anna("UPDATE bad_summary SET started_at = NULL, run_name = repeat('x', 2000000)")
    error = anna.refused(f"SELECT cerebro.register('{place.model}', 'bad')", why=errors.InvalidParameterValue)
    assert "too long" in str(error)
    error = anna.refused(f"SELECT cerebro.set_alias('{place.model}', 'a', 1, repeat('x', 200000))",
                         why=errors.InvalidParameterValue)  # fmt: skip
    assert "reason has more than 100,000 bytes" in str(error)
    assert anna(f"SELECT version FROM cerebro.registered_versions WHERE registered_model = '{place.model}'") == [1]
    anna("DROP TABLE bad, bad_info, bad_summary")


def test_a_new_name_in_two_sessions_of_its_owner(place: Place) -> None:
    name, other, found = f"new_{place.model}", place.anna.another(), []
    other("BEGIN")
    assert other(f"SELECT cerebro.register('{name}', 'models', 1)") == [1]
    waiting = threading.Thread(
        target=lambda: found.extend(place.anna(f"SELECT cerebro.register('{name}', 'models', 2)"))
    )
    waiting.start()
    eventually(lambda: place.root("SELECT count(*) FROM pg_locks WHERE NOT granted")[0] > 0)
    other("COMMIT")
    waiting.join()
    assert found == [2]
    other.connection.close()


# -- models of groups ------------------------------------------------------------------------------------------------


@pytest.fixture
def grouped(people: tuple[Town, User, User], place: Place) -> Place:
    """The model of the place has another version, with models of groups; each has weights of 4 MB and more, or few."""
    anna = place.anna
    if anna("SELECT to_regclass('by_side') IS NULL") == [True]:
        anna(
            "CREATE TABLE sides AS SELECT i AS id, ARRAY[sin(i), cos(i)]::real[] AS x, 'side ' || i % 3 AS side,"
            " CASE WHEN sin(i) > 0 THEN 'up' ELSE 'down' END AS y FROM generate_series(1, 62) i"
        )
        anna(
            'SELECT cerebro.fit(\'sides\', \'by_side\', $c$[{"architecture": "mlp", "units": 4},'
            " {\"architecture\": \"mlp\", \"units\": 8}]$c$, target => 'y', inputs => 'x', group_by => 'side',"
            " epochs => 1, segments => 1)"
        )
    assert anna(f"SELECT cerebro.register('{place.model}', 'by_side', alias => 'production')") == [2]
    return place


SIDES = "SELECT i AS id, ARRAY[sin(i), 0]::real[] AS x, 'side ' || i % 3 AS side FROM generate_series(1, 9) i"
ASK_SIDES = f"SELECT key_value, class, probability FROM cerebro.predict('{{}}', $q${SIDES}$q$, 'id') ORDER BY 1"


def test_who_may_use_models_of_groups_reads_no_weights(grouped: Place, tmp_path: Path) -> None:
    anna, ben = grouped.anna, grouped.ben
    ask, said = ASK_SIDES.format(f"{grouped.model}@production"), anna(ASK_SIDES.format("by_side"))
    assert anna(ask) == said and len(said) == 9
    for ending in ("_groups", "_group_weights"):
        ben.refused(f"SELECT * FROM {grouped.table(ending, 2)}")
    anna(f"SELECT cerebro.share('{grouped.model}', '{ben.name}')")
    for _ in range(2):
        assert ben(ask) == said
        assert ben(ASK.format(f"{grouped.model}@1")) == grouped.said  # another model in the same session
    session = ben.another()
    session("BEGIN READ ONLY")
    assert session(ask) == said
    session("COMMIT")
    session.connection.close()
    ben(f"CREATE TABLE mine AS {SIDES}")
    assert ben(f"SELECT cerebro.predict_into('{grouped.model}@2', 'mine', 'sides_told', 'id')") == [9]
    assert sorted(ben("SELECT id::text, predicted_y, probability FROM sides_told")) == said
    ben(f"SELECT cerebro.create_predictor('{grouped.model}@production', 'side_of')")
    assert ben("SELECT side_of('side 1', ARRAY[sin(1), 0]::real[])") == [said[0][1]]
    judged = (
        f"SELECT metric, value FROM cerebro.evaluate('{{}}', $q${SIDES.replace('FROM', ', $$up$$::text AS y FROM')}$q$)"
    )
    # A sum over rows in any order: its last bit may differ.
    assert dict(ben(judged.format(f"{grouped.model}@2"))) == pytest.approx(dict(anna(judged.format("by_side"))))
    ben("DROP TABLE mine, sides_told")
    # It sees the groups, and no weights.
    assert ben(f"SELECT group_value, weights FROM {grouped.table('_groups', 2)} ORDER BY 1") == [
        (f"side {number}", None) for number in range(3)
    ]
    for ending in ("_weights", "_group_weights"):
        ben.refused(f"SELECT * FROM {grouped.table(ending, 2)}")
    for group in ("", ", group_value => 'side 1'"):
        ben.refused(f"SELECT cerebro.register('mine_{grouped.root.mark}', '{grouped.model}@2'{group})")
    with Cerebro(ben.dsn) as cerebro:
        for group in (None, "side 1"):
            with pytest.raises(client.ServerError, match="permission denied"):
                cerebro.export(f"{grouped.model}@2", str(tmp_path / "x.safetensors"), group=group)
            with pytest.raises(client.ServerError, match="permission denied"):
                cerebro.model(f"{grouped.model}@2", group=group)
    assert list(tmp_path.iterdir()) == []
    anna(f"SELECT cerebro.unshare('{grouped.model}', '{ben.name}')")
    ben.refused(ask, why=errors.UndefinedObject)
    for ending in ("_groups", ""):
        ben.refused(f"SELECT * FROM {grouped.table(ending, 2)}")


def test_who_may_read_models_of_groups_copies_them(grouped: Place, tmp_path: Path) -> None:
    anna, ben = grouped.anna, grouped.ben
    anna(f"SELECT cerebro.share('{grouped.model}', '{ben.name}', 'read')")
    ask, said = ASK_SIDES.format("{}"), anna(ASK_SIDES.format("by_side"))
    assert ben(ask.format(f"{grouped.model}@2")) == said
    copy = f"b_{grouped.model}"
    assert ben(f"SELECT cerebro.register('{copy}', '{grouped.model}@2')") == [1]
    assert ben(ask.format(f"{copy}@1")) == said
    assert ben(f"SELECT cerebro.register('{copy}', '{grouped.model}@2', group_value => 'side 1')") == [2]
    ofside = ASK_SIDES.replace("ORDER BY", "WHERE key_value::int % 3 = 1 ORDER BY")
    assert ben(ofside.format(f"{copy}@2")) == ben(ofside.format(f"{copy}@1"))
    with Cerebro(ben.dsn) as cerebro:
        made = cerebro.export(f"{grouped.model}@2", str(tmp_path / "x.safetensors"), group="side 1")
        assert made.difference < 1e-5
    anna(f"SELECT cerebro.unshare('{grouped.model}', '{ben.name}', 'read')")
    ben.refused(f"SELECT * FROM {grouped.table('_group_weights', 2)}")


@pytest.mark.parametrize("call", ORDERS)
def test_no_order_by_hand_reaches_the_weights_of_groups(grouped: Place, call: str) -> None:
    """While the models of groups predict, one after the other, from a function of the query."""
    anna, ben = grouped.anna, grouped.ben
    said = anna(ASK_SIDES.format("by_side"))
    anna(f"SELECT cerebro.share('{grouped.model}', '{ben.name}')")
    settings = protocol.encode_settings(protocol.TrainerSettings(engine=ENGINE))
    given = call.format(order=f"$o${to_predict(grouped)}$o$", settings=f"$s${settings}$s$")
    ben(
        "CREATE TABLE IF NOT EXISTS told (said text); TRUNCATE told;"
        " CREATE OR REPLACE FUNCTION steal(side text) RETURNS text LANGUAGE plpgsql AS $f$ DECLARE said text; BEGIN"
        f" BEGIN SELECT {given}::text INTO said; EXCEPTION WHEN OTHERS THEN said := SQLSTATE || ' ' || SQLERRM; END;"
        f" BEGIN INSERT INTO {ben.name}.told VALUES (said);"
        " EXCEPTION WHEN feature_not_supported THEN RAISE NOTICE 'told %', said; END; RETURN side; END $f$"
    )  # a segment of Greenplum writes nothing
    ben(
        "CREATE OR REPLACE VIEW steals AS "
        + SIDES.replace("'side ' || i % 3 AS", f"{ben.name}.steal('side ' || i % 3) AS")
    )
    asked = (
        f"SELECT key_value, class, probability FROM cerebro.predict('{grouped.model}@2', 'SELECT * FROM steals', 'id')"
    )
    assert sorted(ben(asked)) == said
    noticed = [line.partition("told ")[2] for line in ben.connection.notices if "told " in line]
    found = {one[:6] for one in (*ben("SELECT DISTINCT said FROM told"), *noticed)}
    expected = {"55006 "}
    if anna.greenplum:  # the rows are read on segments, whose processes have no trainer
        expected = {"58M01 ", '{"plac'} if "_worker_open" in call else {"58M01 "}  # a new one has no weights
    assert found == expected, (found, noticed)
    if "_worker_open" not in call:
        assert "this process has no trainer" in str(ben.refused(f"SELECT {given}", why=psycopg2.Error))
    ben("DROP VIEW steals")


def test_a_version_of_groups_leaves_the_registry(grouped: Place) -> None:
    anna = grouped.anna
    anna(f"SELECT cerebro.set_alias('{grouped.model}', 'production', 1)")
    anna(f"SELECT cerebro.unregister('{grouped.model}', 2)")
    for ending in ("", "_info", "_summary", "_weights", "_groups", "_group_weights"):
        assert anna(f"SELECT to_regclass('{grouped.table(ending, 2)}') IS NULL") == [True]

"""Who may do what with a registered model: nobody but its owner, until it is shared; and never more than was shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg2 import errors

from cerebro_db import client
from cerebro_db.client.cerebro import Cerebro
from tests.sql.users import Town, User, equip, town

pytestmark = pytest.mark.throw_away

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
        configurations = '[{"architecture": "mlp", "units": 4}, {"architecture": "mlp", "units": 8}]'
        for user in (anna, ben):
            equip(user)
            user("SELECT cerebro.fit('packed', 'models', %s, epochs => 1)", configurations)
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
        user.refused("SELECT cerebro._as_registry()")
        user.refused("SET ROLE cerebro_registry")
        user.refused(f"CREATE TABLE {place.table('_more')} (a int)")
        user.refused(f"UPDATE {place.table('_info')} SET epoch = 7")
        user.refused(f"DROP TABLE {place.table()}")
        user.refused(f"ALTER TABLE {place.table()} DISABLE TRIGGER ALL")


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
    anna("SELECT cerebro.fit('asked', 'answers', %s, target => 'b', epochs => 1)", configuration)
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
        " BEGIN PERFORM cerebro._as_registry(); RAISE 'it ran'; EXCEPTION WHEN insufficient_privilege THEN NULL; END;"
        f" PERFORM {anna.name}.look(1); RETURN true; END $$"
    )
    assert len(anna("SELECT * FROM cerebro.predict(%s, %s, 'id')", f"answers_{place.root.mark}@1", asked)) == 2
    assert set(anna("SELECT DISTINCT who FROM seen")) == {anna.name}

"""Registered models: their versions, what names them, what is kept of them, and what becomes of them."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from collections.abc import Iterator

import psycopg2
import pytest

from tests.sql.lab import Lab, eventually, run

NAMES = (f"flower_{secrets.token_hex(3)}_{number}" for number in itertools.count())
ROW = "SELECT 7 AS id, 5.1::real AS sl, 3.5::real AS sw, 1.4::real AS pl, 0.2::real AS pw"
ASK = "SELECT class, probability FROM cerebro.predict('{}', $q$" + ROW + "$q$)"
HASH = (
    "SELECT encode(sha256(string_agg(payload, ''::bytea ORDER BY start)), 'hex') FROM cerebro_registry.\"{}_weights\""
)


def refused(place: Lab, statement: str, match: str, hint: str = "") -> None:
    with pytest.raises(psycopg2.Error, match=match) as error:
        place(statement)
    assert hint in (error.value.diag.message_hint or "")


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Lab]:
    lab.iris(segments=1)
    configurations = [{"architecture": "mlp", "units": 8, "learning_rate": rate} for rate in (0.001, 0.1)]
    lab(
        "SELECT cerebro.fit('flowers', 'model', %s, target => 'species', inputs => 'sl, sw, pl, pw', epochs => 2,"
        " segments => 1, options => %s)",
        json.dumps(configurations),
        json.dumps({"deterministic": True, "seed": 1}),
    )
    yield lab


@pytest.fixture
def name(place: Lab) -> str:
    """The name of a new registered model with the two versions 1 and 2, of two configurations."""
    name = next(NAMES)
    for configuration in (1, 2):
        assert place.value(f"SELECT cerebro.register('{name}', 'model', {configuration})") == configuration
    return name


def test_a_version_predicts_what_its_model_predicts(place: Lab, name: str) -> None:
    for version in (1, 2):
        asked = f"SELECT * FROM cerebro.predict('{{}}', $q${ROW}$q$, 'id'{{}}, top => 3)"
        said = place(asked.format(f"{name}@{version}", ""))
        assert said == place(asked.format("model", f", configuration => {version}")) and len(said) == 3
    assert place(ASK.format(f"{name}@latest")) == place(ASK.format(f"{name}@2")) != place(ASK.format(f"{name}@1"))
    assert place(ASK.format(f" {name.upper()}@LATEST ")) == place(ASK.format(f"{name}@2"))
    judged = "SELECT metric, value FROM cerebro.evaluate('{}', 'SELECT * FROM garden'{})"
    figures = (dict(place(judged.format(*which))) for which in ((f"{name}@1", ""), ("model", ", configuration => 1")))
    assert next(figures) == pytest.approx(next(figures), rel=1e-12)  # segments add them up in any order
    place(f"SELECT cerebro.predict_into('{name}@1', 'garden', 'said_{name}', 'id')")
    assert place.value(f"SELECT count(*) FROM said_{name}") == place.value("SELECT count(*) FROM garden")


def test_what_is_known_of_a_version(place: Lab, name: str) -> None:
    columns = "run, configuration, model_table, source_table, rows, target, bytes, sha256, aliases, may_read"
    ((run_number, configuration, table, source, rows, target, size, sha256, aliases, may_read),) = place(
        f"SELECT {columns} FROM cerebro.registered_versions WHERE registered_model = '{name}' AND version = 2"
    )
    assert (run_number, rows) == place("SELECT run, (layout->>'rows')::bigint FROM model_summary")[0]
    assert (configuration, table, source, target) == (2, f"{place.schema}.model", f"{place.schema}.flowers", "species")
    weights = "SELECT encode(sha256(weights), 'hex'), octet_length(weights) FROM model WHERE configuration = 2"
    assert [(sha256, size)] == place(weights) and aliases is None and may_read
    assert place.value(HASH.format(f"{name}@2")) == sha256
    info = "SELECT to_jsonb(i) FROM {} i WHERE configuration = 2"
    assert place(info.format(f'cerebro_registry."{name}@2_info"')) == place(info.format("model_info"))
    assert place.value(f"SELECT cerebro.registered_table('{name}@2')") == f'"cerebro_registry"."{name}@2"'
    assert place(f"SELECT * FROM cerebro.models WHERE model_table LIKE '%{name}%'") == []


def test_a_version_stays_when_its_model_goes(place: Lab) -> None:
    lasting = next(NAMES)
    place(
        "SELECT cerebro.fit('flowers', 'short_lived', %s, target => 'species', inputs => 'sl, sw, pl, pw',"
        " epochs => 1, segments => 1)",
        json.dumps([{"architecture": "mlp", "units": 4}]),
    )
    number = place.value("SELECT run FROM short_lived_summary")
    place("SELECT cerebro.register(%s, 'short_lived', alias => 'production', description => 'Flowers')", lasting)
    said = place(ASK.format(f"{lasting}@production"))
    assert said == place(ASK.format("short_lived"))
    place("SELECT cerebro.drop_model('short_lived')")
    place(f"SELECT cerebro.forget({number})")
    assert place(ASK.format(f"{lasting}@production")) == said
    assert place("SELECT description, versions, latest, aliases, owns FROM cerebro.registered_models"
                 " WHERE registered_model = %s", lasting) == [("Flowers", 1, 1, "production@1", True)]  # fmt: skip


def test_an_alias_moves_and_returns(place: Lab, name: str) -> None:
    first, second = (place(ASK.format(f"{name}@{version}")) for version in (1, 2))
    ask = ASK.format(f"{name}@production")
    place(f"SELECT cerebro.set_alias('{name}', 'production', 1, 'the first')")
    assert place(ask) == place(ask) == first
    place(f"SELECT cerebro.set_alias('{name}', 'production', 2)")
    assert place(ask) == second
    assert place.value(f"SELECT cerebro.roll_back('{name}', 'production', 'worse')") == 1
    assert place(ask) == first
    assert place.value(
        f"SELECT aliases FROM cerebro.registered_versions WHERE registered_model = '{name}' AND version = 1"
    ) == ("production")
    history = place(
        "SELECT event, version, alias, reason FROM cerebro.registry_history"
        f" WHERE registered_model = '{name}' ORDER BY id"
    )
    assert history == [
        ("registered", 1, None, None), ("registered", 2, None, None), ("alias", 1, "production", "the first"),
        ("alias", 2, "production", None), ("alias", 1, "production", "worse"),
    ]  # fmt: skip
    place(f"SELECT cerebro.set_alias('{name}', 'production', NULL)")
    refused(place, ask, f"cerebro.predict: the model '{name}' has no alias 'production'")
    assert place(f"SELECT * FROM cerebro.registered_aliases WHERE registered_model = '{name}'") == []


def test_an_open_session_follows_the_alias(place: Lab, name: str) -> None:
    """Also by its resident predictor: what was remembered of the alias is another version now."""
    ask = ASK.format(f"{name}@live")
    place(f"SELECT cerebro.set_alias('{name}', 'live', 1)")
    other = place.connect()
    first = [run(other, ask) for _ in range(3)]
    place(f"SELECT cerebro.set_alias('{name}', 'live', 2)")
    second = [run(other, ask) for _ in range(3)]
    other.close()
    assert [*first, *second] == [*3 * [place(ASK.format(f"{name}@1"))], *3 * [place(ASK.format(f"{name}@2"))]]
    new = place.connect()  # may get the trainer of the session before
    place(f"SELECT cerebro.set_alias('{name}', 'live', 1)")
    assert run(new, ask) == first[0]
    new.close()


def test_a_predictor_follows_the_alias(place: Lab, name: str) -> None:
    place(f"SELECT cerebro.set_alias('{name}', 'production', 1)")
    place(f"SELECT cerebro.create_predictor('{name}@production', 'kind_of_{name}')")
    call = f"SELECT kind_of_{name}(5.1, 3.5, 1.4, 0.2)"
    for version in (1, 2):
        place(f"SELECT cerebro.set_alias('{name}', 'production', {version})")
        assert place.value(call) == place(ASK.format(f"{name}@{version}"))[0][0]
    comment = place.value(f"SELECT obj_description('kind_of_{name}'::regproc)")
    assert comment.startswith(f"Predicts species with the registered model {name}@production.")


def test_a_version_leaves_the_registry(place: Lab, name: str) -> None:
    place(f"SELECT cerebro.set_alias('{name}', 'production', 1)")
    refused(place, f"SELECT cerebro.unregister('{name}', 1)", f"version 1 of '{name}' stays, because it is production")
    place(f'CREATE VIEW looks_at_{name} AS SELECT * FROM cerebro_registry."{name}@2_info"')
    place(f"SELECT cerebro.unregister('{name}', 2, 'a mistake')")
    assert place(f"SELECT * FROM looks_at_{name}") == []  # the view of a user stays, and its table is empty
    refused(place, ASK.format(f"{name}@2"), f"the model '{name}' has no version 2", hint="It has 1")
    assert place(ASK.format(f"{name}@latest")) == place(ASK.format(f"{name}@1"))
    assert place.value("SELECT unregistered_at IS NOT NULL FROM cerebro.registered_versions"
                       f" WHERE registered_model = '{name}' AND version = 2")  # fmt: skip
    refused(place, f"SELECT cerebro.set_alias('{name}', 'production', 2)", "has no version 2")
    refused(
        place, f"SELECT cerebro.roll_back('{name}', 'production')", "has named no other version that is still there"
    )
    assert place.value(f"SELECT cerebro.register('{name}', '{name}@1')") == 3  # its number is not used again
    assert place(ASK.format(f"{name}@3")) == place(ASK.format(f"{name}@1"))


def test_what_does_not_work(place: Lab, name: str) -> None:
    refused(place, "SELECT cerebro.register('Churn', 'model')", "registered_model must have 1 to 40 lower-case letters")
    refused(place, f"SELECT cerebro.register('{name}', 'no_such_table')", "no_such_table")
    refused(place, f"SELECT cerebro.register('{name}', 'model', alias => 'latest')", "alias must have .* nor be latest")
    refused(place, f"SELECT cerebro.register('{name}', 'model', 99)", "has no configuration 99")
    refused(place, "SELECT cerebro.set_alias('no_such_model', 'a', 1)", "there is no registered model 'no_such_model'")
    refused(place, f"SELECT cerebro.set_alias('{name}', 'a', 9)", "has no version 9", hint="It has 1, 2")
    refused(place, f"SELECT cerebro.roll_back('{name}', 'a')", "has no alias 'a'")
    refused(place, f"SELECT * FROM cerebro.calibrate('{name}@1')", "a registered version never changes")
    refused(place, f"SELECT cerebro.drop_model('{name}@1')", "is a registered model", hint="unregister")
    refused(place, ASK.format("no_such_model@1"), "there is no registered model 'no_such_model'")
    refused(place, ASK.format(f"{name}@"), "names no registered model")
    refused(place, f"SELECT cerebro.share('{name}', 'no_such_role')", "there is no role 'no_such_role'")
    refused(place, f"SELECT cerebro.share('{name}', 'cerebro_user', 'write')", "right must be one of use, read, alias")
    refused(place, "SELECT cerebro._as_registry()", "is a part of cerebro.register")
    assert place.value(f"SELECT count(*) FROM cerebro.registered_versions WHERE registered_model = '{name}'") == 2


def test_where_only_a_table_will_do(place: Lab, name: str) -> None:
    """The error says why a registered model will not do, and not that its name needs double quotes."""
    for statement, match in (
        (f"SELECT cerebro.ensemble('{name}@1', 'mean')", "is a registered model, and an ensemble takes the models"),
        (f"SELECT cerebro.fit('flowers', '{name}@1', '[{{}}]', target => 'species', epochs => 1, warm_start => true)",
         "is a registered model, and a warm start replaces the table"),
    ):  # fmt: skip
        refused(
            place, statement, f"model_table: '{name}@1' {match}", hint="cerebro.registered_versions says which table"
        )
    for statement in (
        f"SELECT cerebro.fit('flowers', '{name}@1', '[{{}}]', target => 'species', epochs => 1)",
        f"SELECT cerebro.ensemble('model', '{name}@1')",
        f"SELECT cerebro.pack('{name}@1', 'packed', target => 'species')",
    ):
        refused(place, statement, "is not an identifier", hint="means a version of a registered model")


def test_a_failed_call_leaves_nothing(place: Lab, name: str) -> None:
    session = place.connect()
    session.autocommit = False
    run(session, f"SELECT cerebro.register('{name}', 'model', alias => 'production')")
    session.rollback()
    assert place.value(f"SELECT max(version) FROM cerebro.registered_versions WHERE registered_model = '{name}'") == 2
    assert place(f"SELECT * FROM cerebro.registered_aliases WHERE registered_model = '{name}'") == []
    assert place.value(f"SELECT to_regclass('cerebro_registry.\"{name}@3\"')") is None
    session.close()
    assert place.value(f"SELECT cerebro.register('{name}', 'model')") == 3


def test_two_sessions_register_one_after_the_other(place: Lab, name: str) -> None:
    session = place.connect()
    session.autocommit = False
    assert run(session, f"SELECT cerebro.register('{name}', 'model', 1)") == [(3,)]
    other, found = place.connect(), []
    waiting = threading.Thread(
        target=lambda: found.extend(run(other, f"SELECT cerebro.register('{name}', 'model', 2)"))
    )
    waiting.start()
    eventually(lambda: place.value("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
    session.commit()
    waiting.join()
    assert found == [(4,)]
    session.close()
    other.close()


def test_large_weights_are_cut_and_joined(place: Lab) -> None:
    place(
        "SELECT cerebro.fit('flowers', 'wide', %s, target => 'species', inputs => 'sl, sw, pl, pw', epochs => 1,"
        " segments => 1)",
        json.dumps([{"architecture": "mlp", "units": 1300, "layers": 2}]),
    )
    wide = next(NAMES)
    place(f"SELECT cerebro.register('{wide}', 'wide')")
    assert place.value(f'SELECT count(*) FROM cerebro_registry."{wide}@1_weights"') == 2
    weights = "SELECT encode(sha256(weights), 'hex') FROM wide"
    assert place.value(HASH.format(f"{wide}@1")) == place.value(weights)
    assert place(ASK.format(f"{wide}@latest")) == place(ASK.format("wide"))


@pytest.mark.parametrize(("table", "column"), [("_info", "reason"), ("_summary", "objective"), ("_summary", "mine")])
def test_a_cast_of_a_strangers_type_does_not_run(place: Lab, table: str, column: str) -> None:
    """to_jsonb() runs the cast to json of a type that the owner of the model table has made."""
    for ending in ("", "_info", "_summary"):
        place(f"DROP TABLE IF EXISTS trap{ending}; CREATE TABLE trap{ending} AS TABLE model{ending}")
    place(
        "DROP TYPE IF EXISTS evil CASCADE; DROP TABLE IF EXISTS casts; CREATE TYPE evil AS ENUM ('x');"
        " CREATE TABLE casts (n integer);"
        " CREATE FUNCTION as_json(evil) RETURNS json LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO casts VALUES (1); RETURN '\"x\"'; END$$;"
        " CREATE CAST (evil AS json) WITH FUNCTION as_json(evil)"
    )
    place(f"ALTER TABLE trap{table} DROP IF EXISTS {column}; ALTER TABLE trap{table} ADD {column} evil DEFAULT 'x'")
    name = next(NAMES)
    if column == "mine":  # no function reads it
        assert place.value(f"SELECT cerebro.register('{name}', 'trap', 1)") == 1
    else:
        refused(
            place, f"SELECT cerebro.register('{name}', 'trap', 1)", f"column '{column}' of '.*trap{table}' is of type"
        )
    assert place("SELECT * FROM casts") == []

"""Registered models from Python and from the command line."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from small_run import Trained
from typer.testing import CliRunner

from cerebro_db import client
from cerebro_db.client import cli

QUERY = "SELECT * FROM iris WHERE id < 3"


@pytest.fixture
def name(trained: Trained) -> Iterator[str]:
    name = f"iris_{secrets.token_hex(3)}"
    yield name
    for one in trained.cerebro.registered_versions(name):
        if one.unregistered_at is None:
            for alias in (one.aliases or "").split(", ") if one.aliases else []:
                trained.cerebro.set_alias(name, alias, None)
            trained.cerebro.unregister(name, one.version, "the test is over")


def test_from_a_model_to_production_and_back(trained: Trained, name: str) -> None:
    cerebro = trained.cerebro
    assert cerebro.register(name, "models", 1, alias="production", description="Irises") == 1
    assert cerebro.register(name, "models", 2, reason="better") == 2
    first, second = (cerebro.predict(f"{name}@{version}", QUERY, "id", top=3) for version in (1, 2))
    assert cerebro.predict(f"{name}@production", QUERY, "id", top=3) == first != second
    cerebro.set_alias(name, "production", 2)
    assert cerebro.predict(f"{name}@production", QUERY, "id", top=3) == second
    assert cerebro.roll_back(name, "production", "worse") == 1
    latest, one = cerebro.registered_versions(name)
    assert (latest.version, latest.reason, latest.aliases) == (2, "better", None)
    assert (one.version, one.aliases, one.run, one.may_read) == (1, "production", trained.run, True)
    assert [(a.alias, a.version, a.reason) for a in cerebro.registered_aliases(name)] == [("production", 1, "worse")]
    history = cerebro.registry_history(name)
    assert [(event.event, event.version, event.alias, event.reason) for event in history] == [
        ("registered", 1, None, None), ("alias", 1, "production", None), ("registered", 2, None, "better"),
        ("alias", 2, "production", None), ("alias", 1, "production", "worse"),
    ]  # fmt: skip
    assert history == sorted(history, key=lambda event: event.at) and history[0].by == latest.registered_by
    cerebro.share(name, "cerebro_user", "read")
    assert [(right.role, right.right) for right in cerebro.registered_rights(name)] == [("cerebro_user", "read")]
    assert {event.id for event in history} < {event.id for event in cerebro.registry_history()}
    model: Any = cerebro.model(f"{name}@production")  # a version has one configuration
    assert all((a == b).all() for a, b in zip(model.get_weights(), cerebro.model("models", 1).get_weights()))


def test_the_command(trained: Trained, name: str) -> None:
    nothing = CliRunner().invoke(cli.app, ["registry", name, "--dsn", trained.dsn])
    assert nothing.exit_code == 1 and f"There is no registered model '{name}' that you may use." in nothing.output
    trained.cerebro.register(name, "models", 1, alias="production", reason="[bold]first[/bold]")
    trained.cerebro.share(name, "cerebro_user")
    said = CliRunner().invoke(cli.app, ["registry", name, "--dsn", trained.dsn], env={"COLUMNS": "200"})
    assert said.exit_code == 0 and f"{name}@1" in said.output and "production" in said.output
    for line in ("registered version 1", "alias production names version 1", "shared with cerebro_user: use"):
        assert line in said.output.partition("History")[2]
    assert "[bold]first[/bold]" in said.output and "Rights" in said.output and "Aliases" in said.output
    told = json.loads(CliRunner().invoke(cli.app, ["registry", name, "--json", "--dsn", trained.dsn]).output)
    (row,) = told["versions"]
    assert (row["registered_model"], row["version"], row["aliases"]) == (name, 1, "production")
    assert [event["event"] for event in told["history"]] == ["registered", "alias", "shared"]
    assert told["aliases"][0]["version"] == 1 and told["rights"][0]["right"] == "use"
    every = json.loads(CliRunner().invoke(cli.app, ["registry", "--json", "--dsn", trained.dsn]).output)
    assert (name, 1) in [(one["registered_model"], one["version"]) for one in every]


def test_drift_and_retraining(trained: Trained, name: str) -> None:
    cerebro = trained.cerebro
    columns = "attributes[1] AS sl, attributes[2] AS sw, attributes[3] AS pl, attributes[4] AS pw, kind AS species"
    cerebro.rows(f"CREATE TABLE retrained_iris AS SELECT id, {columns} FROM iris")
    try:
        cerebro.fit(
            "retrained_iris", "retrained_models", [{"architecture": "mlp", "units": 4}], target="species", epochs=1
        )
        cerebro.register(name, "retrained_models", alias="production")
        first, *_ = cerebro.drift(f"{name}@production", "SELECT id, 2 * sl AS sl, sw, pl, pw FROM retrained_iris")
        assert first.column_name == "sl" and first.psi > 1 and first.rows == 150 and not first.is_target
        cerebro.rows("DELETE FROM retrained_iris WHERE id < 20")

        def said(*arguments: str) -> str:
            done = CliRunner().invoke(cli.app, [*arguments, "--dsn", trained.dsn], env={"COLUMNS": "200"})
            assert done.exit_code == 0, done.output
            return done.output

        assert "largest change" in said("drift", name + "@production", "SELECT * FROM client_tests.retrained_iris")
        assert f"{name}@2: log_loss " in said("retrain", name, "--epochs", "1", "--margin", "100")
        found = cerebro.retrain(name, if_unchanged=True, epochs=3, metric="accuracy")
        assert found is not None and found.version == 3 and found.metric == "accuracy" and found.after is not None
        production = [one.version for one in cerebro.registered_versions(name) if one.aliases == "production"]
        assert production == [3 if found.promoted else 1]
        assert cerebro.retrain(name) is None or not found.promoted
    finally:
        cerebro.rows("DROP TABLE IF EXISTS retrained_models, retrained_models_summary, retrained_models_info")
        cerebro.rows("DROP TABLE retrained_iris")


def test_errors_of_the_server_are_told(trained: Trained, name: str) -> None:
    trained.cerebro.register(name, "models", 1)
    trained.cerebro.share(name, "cerebro_user")
    trained.cerebro.unshare(name, "cerebro_user")
    with pytest.raises(client.ServerError, match="there is no role"):
        trained.cerebro.share(name, "no_such_role")
    with pytest.raises(client.ServerError, match="has no alias 'production'"):
        trained.cerebro.export(f"{name}@production", "/tmp/never.keras")

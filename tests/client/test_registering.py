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
    model: Any = cerebro.model(f"{name}@production", 1)
    assert all((a == b).all() for a, b in zip(model.get_weights(), cerebro.model("models", 1).get_weights()))


def test_the_command(trained: Trained, name: str) -> None:
    nothing = CliRunner().invoke(cli.app, ["registry", name, "--dsn", trained.dsn])
    assert nothing.exit_code == 0 and nothing.output.startswith("No registered models yet: SELECT cerebro.register(")
    trained.cerebro.register(name, "models", 1, alias="production")
    said = CliRunner().invoke(cli.app, ["registry", name, "--dsn", trained.dsn], env={"COLUMNS": "200"})
    assert said.exit_code == 0 and f"{name}@1" in said.output and "production" in said.output
    (row,) = json.loads(CliRunner().invoke(cli.app, ["registry", name, "--json", "--dsn", trained.dsn]).output)
    assert (row["registered_model"], row["version"], row["aliases"]) == (name, 1, "production")


def test_errors_of_the_server_are_told(trained: Trained, name: str) -> None:
    trained.cerebro.register(name, "models", 1)
    trained.cerebro.share(name, "cerebro_user")
    trained.cerebro.unshare(name, "cerebro_user")
    with pytest.raises(client.ServerError, match="there is no role"):
        trained.cerebro.share(name, "no_such_role")
    with pytest.raises(client.ServerError, match="has no alias 'production'"):
        trained.cerebro.export(f"{name}@production", "/tmp/never.keras")

"""The methods of the client that steer a run: each asks for something and returns the number of the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg2 import sql
from psycopg2.extras import Json

from ..database import DatabaseClient
from ..run_handle import AnyRun, number_of, owner_of


class SteeringMethods(DatabaseClient):
    """What concerns a model in training takes effect at the end of its epoch, everything else at once.

    If no session drives the run, the request waits until ``resume``. ``Cerebro.requests(run)`` says what became of it.
    """

    def stop_model(
        self,
        run: AnyRun,
        configuration: int | None = None,
        *,
        model: int | None = None,
        reason: str | None = None,
        owner: str | None = None,
    ) -> int:
        """Stops a model. ``model`` is its number, if the configuration has several."""
        return self._request("stop_model", run, owner, configuration=configuration, model=model, reason=reason)

    def go_on(
        self,
        run: AnyRun,
        configuration: int | None = None,
        *,
        model: int | None = None,
        reason: str | None = None,
        owner: str | None = None,
    ) -> int:
        """Lets a model that was stopped train on from its last state."""
        return self._request("go_on", run, owner, configuration=configuration, model=model, reason=reason)

    def clone_model(
        self,
        run: AnyRun,
        configuration: int | None = None,
        changes: Mapping[str, Any] | None = None,
        *,
        model: int | None = None,
        reason: str | None = None,
        owner: str | None = None,
    ) -> int:
        """Adds a model that begins with the whole state of another, and has some other parameters.

        ``changes`` is for instance {"learning_rate": 0.001, "batch_size": 64}.
        """
        given = None if changes is None else Json(dict(changes))
        return self._request(
            "clone_model", run, owner, configuration=configuration, changes=given, model=model, reason=reason
        )

    def add_configuration(
        self,
        run: AnyRun,
        parameters: Mapping[str, Any],
        *,
        reason: str | None = None,
        owner: str | None = None,
    ) -> int:
        """Adds a configuration, such as {"units": 64, "learning_rate": 0.01}. Its model begins from the start."""
        return self._request("add_configuration", run, owner, parameters=Json(dict(parameters)), reason=reason)

    def extend(self, run: AnyRun, epochs: int, *, reason: str | None = None, owner: str | None = None) -> int:
        """Gives all models of a run more epochs. ``epochs`` is the new total."""
        return self._request("extend", run, owner, epochs=epochs, reason=reason)

    def set_budget(
        self, run: AnyRun, budget: str | Mapping[str, float], *, reason: str | None = None, owner: str | None = None
    ) -> int:
        """Replaces the budget of a run: "2 hours", or seconds, unit_hours, hops, configurations; {} has no limit."""
        given = budget if isinstance(budget, str) else Json(dict(budget))
        return self._request("set_budget", run, owner, budget=given, reason=reason)

    def _request(self, function: str, run: AnyRun, owner: str | None, **arguments: Any) -> int:
        values = {"run": number_of(run), **arguments, "owner": owner_of(run, owner)}
        given = {name: value for name, value in values.items() if value is not None}
        named = sql.SQL(", ").join(
            sql.SQL("{} => {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in given
        )
        statement = sql.SQL("SELECT cerebro.{}({})").format(sql.Identifier(function), named)
        return self.rows(statement, given)[0][0]

"""The methods of the client about registered models."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from psycopg2 import sql
from sqlalchemy import select

from ..database import DatabaseClient
from ..orm import RegisteredVersion
from ..row_lists import RowList

Row = TypeVar("Row", bound=NamedTuple)


class RegisteredAlias(NamedTuple):
    """A row of ``cerebro.registered_aliases``: the version that an alias names now."""

    registered_model: str
    alias: str
    version: int
    set_at: datetime
    set_by: str
    reason: str | None


class RegisteredRight(NamedTuple):
    """A row of ``cerebro.registered_rights``: a right that ``share`` has given."""

    registered_model: str
    role: str
    right: str
    shared_at: datetime
    shared_by: str


class RegistryEvent(NamedTuple):
    """A row of ``cerebro.registry_history``: who did what, and why."""

    registered_model: str
    id: int
    at: datetime
    by: str
    event: str
    version: int | None
    alias: str | None
    role: str | None
    right: str | None
    reason: str | None


class Retraining(NamedTuple):
    """What ``cerebro.retrain`` returns: the new version, and the metric of the old and of the new one.

    With ``wait=False`` only ``run`` has a value.
    """

    run: int
    version: int | None
    metric: str | None
    before: float | None
    after: float | None
    promoted: bool | None


class RegistryMethods(DatabaseClient):
    """A registered model has versions, which nobody changes, and aliases, which name a version: ``churn@production``.

    ``predict``, ``evaluate``, ``export`` and other methods take such a name wherever they take a model table.
    """

    def registered_versions(self, registered_model: str | None = None) -> RowList[RegisteredVersion]:
        """The versions of registered models that you may see, the latest first; those that were unregistered, too."""
        latest = select(RegisteredVersion).order_by(
            RegisteredVersion.registered_model, RegisteredVersion.version.desc()
        )
        if registered_model is not None:
            latest = latest.where(RegisteredVersion.registered_model == registered_model)
        return RowList(RegisteredVersion, self.objects(latest))

    def registered_aliases(self, registered_model: str | None = None) -> RowList[RegisteredAlias]:
        """The aliases of registered models, and the version that each names now."""
        return self._of_registry(RegisteredAlias, "registered_aliases", "registered_model, alias", registered_model)

    def registered_rights(self, registered_model: str | None = None) -> RowList[RegisteredRight]:
        """The rights that ``share`` has given. The owner of a model has all rights."""
        return self._of_registry(
            RegisteredRight, "registered_rights", "registered_model, role, right", registered_model
        )

    def registry_history(self, registered_model: str | None = None) -> RowList[RegistryEvent]:
        """Who did what with registered models, the earliest event first."""
        return self._of_registry(RegistryEvent, "registry_history", "id", registered_model)

    def _of_registry(self, kind: type[Row], view: str, order: str, registered_model: str | None) -> RowList[Row]:
        listed: Any = sql.SQL(", ").join(map(sql.Identifier, kind._fields))
        statement = sql.SQL(
            "SELECT {} FROM cerebro.{} WHERE %(model)s IS NULL OR registered_model = %(model)s ORDER BY {}"
        ).format(listed, sql.Identifier(view), sql.SQL(", ").join(map(sql.Identifier, order.split(", "))))
        return RowList(kind, map(kind._make, self.rows(statement, {"model": registered_model})))

    def register(
        self,
        registered_model: str,
        model_table: str,
        configuration: int | None = None,
        *,
        alias: str | None = None,
        description: str | None = None,
        reason: str | None = None,
        group_value: str | None = None,
        merged: bool = False,
    ) -> int:
        """Adds a copy of a trained model as a version, and returns its number. ``alias``: names this version then.

        Of a table with models of groups, the version has all that predict. ``group_value``: a ``group_value``
        or ``group_key`` of the table ``…_groups``; the version is the model of this group alone.
        ``merged``: adapters are added to the weights of their layers, and the version is a plain model.
        """
        given = (registered_model, model_table, configuration, alias, description, reason, group_value, merged)
        return self.rows("SELECT cerebro.register(%s, %s, %s, %s, %s, %s, %s, %s)", given)[0][0]

    def set_alias(self, registered_model: str, alias: str, version: int | None, reason: str | None = None) -> None:
        """Lets an alias name a version. ``version``: None removes the alias."""
        self.rows("SELECT cerebro.set_alias(%s, %s, %s, %s)", (registered_model, alias, version, reason))

    def roll_back(self, registered_model: str, alias: str, reason: str | None = None) -> int:
        """Lets an alias name the version that it named before, and returns its number."""
        return self.rows("SELECT cerebro.roll_back(%s, %s, %s)", (registered_model, alias, reason))[0][0]

    def retrain(
        self,
        registered_model: str,
        alias: str = "production",
        source_table: str | None = None,
        query: str | None = None,
        metric: str | None = None,
        margin: float = 0.0,
        *,
        epochs: int | None = None,
        use_gpus: bool = False,
        if_unchanged: bool = False,
        wait: bool = True,
        validation_table: str | None = None,
        budget: str | None = None,
        standard_errors: float = 1.0,
    ) -> Retraining | None:
        """Trains the configuration of a version on the rows of today, and moves the alias to it if it is better. None:
        there was nothing to do. The comment of cerebro.retrain describes the arguments."""
        given = (registered_model, alias, source_table, query, metric, margin, epochs, use_gpus, if_unchanged, wait,
                 validation_table, budget, standard_errors)  # fmt: skip
        listed, marks = ", ".join(Retraining._fields), ", ".join(["%s"] * len(given))
        rows = self.rows(f"SELECT {listed} FROM cerebro.retrain({marks})", given)
        return Retraining._make(rows[0]) if rows else None

    def unregister(self, registered_model: str, version: int, reason: str | None = None) -> None:
        """Removes a version that no alias names. Its history stays."""
        self.rows("SELECT cerebro.unregister(%s, %s, %s)", (registered_model, version, reason))

    def share(self, registered_model: str, role: str, right: str = "use") -> None:
        """Gives a role a right to a model of yours: ``use`` (predict), ``read`` (weights, too) or ``alias``."""
        self.rows("SELECT cerebro.share(%s, %s, %s)", (registered_model, role, right))

    def unshare(self, registered_model: str, role: str, right: str = "use") -> None:
        """Takes a right back."""
        self.rows("SELECT cerebro.unshare(%s, %s, %s)", (registered_model, role, right))

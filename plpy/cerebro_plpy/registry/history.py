"""The history of registered models, and what follows from it."""

from __future__ import annotations

from typing import Any

from cerebro_db.core.errors import InvalidArgument, NotPermitted, UndefinedObject
from cerebro_db.core.records import dataclass
from cerebro_db.core.sql import sql

from ..database.access import Database
from ..definitions import references
from .steps import as_registry

LONGEST_TEXT = 100_000  # bytes of a reason or a description


@dataclass(frozen=True)
class RegisteredModel:
    """A registered model, and what the caller may do with it."""

    name: str
    owner: str | None  # None: the role is gone
    caller: str
    owns: bool
    manages: bool  # unregisters
    may_move: bool  # its aliases

    @property
    def whose(self) -> str:
        return "a role that is gone" if self.owner is None else self.owner


def find(db: Database, name: str | None) -> RegisteredModel | None:
    """The model of this name; None if there is none that the caller may see."""
    named = references.require_name(name, "registered_model", "churn")
    row = db.one(
        sql("SELECT (SELECT r.rolname::text FROM pg_catalog.pg_roles r WHERE r.oid = m.owner) AS owner,"
            " current_user::text AS caller, owns, manages, may_move"
            " FROM cerebro_internal._my_registered m WHERE registered_model = $1"),
        ("text",),
        named,
    )  # fmt: skip
    return None if row is None else RegisteredModel(named, **row)


def known(db: Database, name: str | None) -> RegisteredModel:
    """As ``find``, with an error if there is none."""
    model = find(db, name)
    if model is None:
        raise UndefinedObject(
            f"there is no registered model '{name}' that you may use.",
            hint="SELECT * FROM cerebro.registered_versions lists the models; cerebro.register() adds one.",
        )
    return model


def locked(db: Database, name: str | None) -> RegisteredModel:
    """As ``known``; nobody else changes the model until the transaction ends.

    What the caller may do is read after the lock: whoever had it may have taken a right back.  The lock is an UPDATE,
    so that a transaction whose snapshot is older than the last change gets a serialization failure.
    """
    named = known(db, name).name
    lock = sql("UPDATE cerebro.registered_model SET description = description WHERE name = $1")
    as_registry(db, lambda registry: registry.execute(lock, ("text",), named))
    return known(db, named)


def require(model: RegisteredModel, may: bool, *, admin: bool) -> None:
    """An error unless the caller may do it.  ``admin``: an administrator may."""
    if not may:
        others = "a member of that role, or cerebro_admin" if admin else "or a member of that role"
        raise NotPermitted(f"'{model.name}' belongs to {model.whose}.", hint=f"Its owner may do it, {others}.")


def require_short(argument: str, text: str | None) -> None:
    if text is not None and len(text.encode()) > LONGEST_TEXT:
        raise InvalidArgument(f"{argument} has more than {LONGEST_TEXT:,} bytes.", hint="Write a shorter one.")


# -- within a step: the caller's rights to the model were checked ---------------------------------------------


def versions(registry: Database, model: str) -> list[int]:
    """The versions that are there."""
    rows = registry.rows(
        sql(
            "SELECT version FROM cerebro.registry_event WHERE model = $1 AND event IN ('registered', 'unregistered')"
            " GROUP BY version HAVING count(*) = 1 ORDER BY version"
        ),
        ("text",),
        model,
    )
    return [row["version"] for row in rows]


def aliases(registry: Database, model: str) -> dict[str, int]:
    """The version of each alias."""
    rows = registry.rows(
        sql(
            "SELECT alias, version FROM cerebro_internal._alias_now"
            " WHERE model = $1 AND version IS NOT NULL ORDER BY alias"
        ),
        ("text",),
        model,
    )
    return {row["alias"]: row["version"] for row in rows}


def earlier(registry: Database, model: str, alias: str) -> list[int]:
    """The versions that an alias has named, the last one first."""
    rows = registry.rows(
        sql(
            "SELECT version FROM cerebro.registry_event WHERE model = $1 AND alias = $2 AND version IS NOT NULL"
            " ORDER BY id DESC"
        ),
        ("text", "text"),
        model,
        alias,
    )
    return [row["version"] for row in rows]


def next_version(registry: Database, model: str) -> int:
    """A number that was never used, not even by a table that came back without its history."""
    number = sql(
        "SELECT 1 + GREATEST("
        "(SELECT max(version) FROM cerebro.registry_event WHERE model = $1 AND event = 'registered'),"
        " (SELECT max(pg_catalog.substring(c.relname::text, '@([0-9]+)$')::integer) FROM pg_catalog.pg_class c"
        "   WHERE c.relnamespace = 'cerebro_registry'::pg_catalog.regnamespace"
        "    AND pg_catalog.split_part(c.relname::text, '@', 1) = $1), 0)"
    )
    return int(registry.value(number, ("text",), model))


def shared(registry: Database, model: str) -> dict[str, tuple[str, ...]]:
    """The rights of each role that still exists."""
    rows = registry.rows(
        sql(
            'SELECT r.rolname::text AS role, array_agg(s."right") AS rights FROM cerebro_internal._right_now s'
            " JOIN pg_catalog.pg_roles r ON r.oid = s.role WHERE s.model = $1 GROUP BY r.rolname"
        ),
        ("text",),
        model,
    )
    return {row["role"]: tuple(row["rights"]) for row in rows}


def write(
    registry: Database,
    model: str,
    event: str,
    *,
    by: str,
    version: int | None = None,
    alias: str | None = None,
    role: str | None = None,
    right: str | None = None,
    reason: str | None = None,
    details: str | None = None,
) -> None:
    """Add to the history."""
    values: tuple[Any, ...] = (model, event, version, alias, role, right, by, reason, details)
    registry.execute(
        sql(
            'INSERT INTO cerebro.registry_event (model, event, version, alias, role, "right", by, reason, details)'
            " VALUES ($1, $2, $3, $4, pg_catalog.quote_ident($5)::pg_catalog.regrole, $6, $7, $8, $9::pg_catalog.json)"
        ),
        ("text", "text", "integer", "text", "text", "text", "text", "text", "text"),
        *values,
    )
